package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/cmd/rebase/internal/cli"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// What the tests share: a desk is a database of its own and the command line on it, run in
// this process with buffers. A command sees no terminal unless the test gives it one.

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds every wait; the machine may be slow.
const patience = 90 * time.Second

type desk struct {
	t    testing.TB
	pool *pgxpool.Pool
	q    *rebase.Queue
	// terminal makes all three streams terminals, with this on standard input.
	terminal bool
	stdin    string
	height   int
}

func newDesk(t testing.TB) *desk { return newDeskOn(t, pgtest.New(t)) }

func newDeskOn(t testing.TB, pool *pgxpool.Pool) *desk {
	return &desk{t: t, pool: pool, q: rebase.New(pool, &rebase.Options{Logger: pgtest.Logger(t)}), height: 50}
}

// A result is what a command left.
type result struct {
	code     int
	out, err string
}

func (d *desk) run(args ...string) result { return d.runCtx(d.t.Context(), args...) }

func (d *desk) runCtx(ctx context.Context, args ...string) result {
	var out, errs bytes.Buffer
	code := cli.Run(ctx, args, d.streams(&out, &errs))
	return result{code, out.String(), errs.String()}
}

func (d *desk) streams(out, errs io.Writer) cli.Streams {
	url := pgtest.URL(d.t, d.pool)
	return cli.Streams{
		In: strings.NewReader(d.stdin), Out: out, Err: errs, InTTY: d.terminal, OutTTY: d.terminal, ErrTTY: d.terminal,
		Size: func() (int, int) { return 120, d.height },
		Env:  func(name string) string { return map[string]string{"DATABASE_URL": url}[name] },
	}
}

// ok runs a command that must succeed and returns what it printed.
func (d *desk) ok(args ...string) string {
	d.t.Helper()
	r := d.run(args...)
	require.Zero(d.t, r.code, "%v: %s", args, r.err)
	return r.out
}

// fails runs a command that must end with the code, and returns what it said.
func (d *desk) fails(code int, args ...string) string {
	d.t.Helper()
	r := d.run(args...)
	require.Equal(d.t, code, r.code, "%v: %s%s", args, r.out, r.err)
	require.NotEmpty(d.t, r.err, args)
	return r.err
}

// decode reads JSON lines.
func decode[T any](t testing.TB, text string) (list []T) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	for {
		var v T
		err := dec.Decode(&v)
		if err == io.EOF {
			return list
		}
		require.NoError(t, err, text)
		list = append(list, v)
	}
}

func (d *desk) enqueue(task string, opts *rebase.EnqueueOptions) int64 {
	d.t.Helper()
	done, err := d.q.Enqueue(d.t.Context(), task, nil, opts)
	require.NoError(d.t, err)
	return done.ID
}

func (d *desk) job(id int64) *rebase.Job {
	d.t.Helper()
	j, err := d.q.Job(d.t.Context(), id)
	require.NoError(d.t, err)
	return j
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	_, err := d.pool.Exec(d.t.Context(), sql, args...)
	require.NoError(d.t, err)
}

// end makes a job end so long ago.
func (d *desk) end(id int64, status rebase.Status, ago time.Duration, lastError string) {
	d.t.Helper()
	d.exec(`update rebase.jobs set status = $2, dead = $2 = 'failed', finished_at = now() - $3::interval, last_error = nullif($4, ''), attempts = 3 where id = $1`, id, string(status), ago, lastError)
}

// ended makes n jobs that have ended.
func (d *desk) ended(n int, task string, status rebase.Status, ago time.Duration) {
	d.t.Helper()
	d.exec(`insert into rebase.jobs (task, status, dead, finished_at) select $2, $3, $3 = 'failed', now() - $4::interval - i * interval '1 ms' from generate_series(1, $1::int) i`,
		n, task, string(status), ago)
}

func (d *desk) count(where string) int {
	d.t.Helper()
	rows, _ := d.pool.Query(d.t.Context(), "select count(*)::int from rebase.jobs where "+where) // the next line tells the error
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	require.NoError(d.t, err)
	return n
}

// work runs a worker until the test ends or stop is called.
func (d *desk) work(w *rebase.Worker) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			d.t.Error("the worker didn't stop")
		}
	})
	d.t.Cleanup(stop)
	return stop
}

// until waits for what only the table can tell.
func (d *desk) until(what string, ok func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		require.True(d.t, time.Now().Before(deadline), "waited in vain: %s", what)
		select {
		case <-d.t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}
