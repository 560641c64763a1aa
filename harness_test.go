package rebase_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/faultnet"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/stretchr/testify/require"
)

// What the tests of workers share: a rig is a queue on a database of its own, with
// what it logs and reports. Workers that a rig runs end with the test. A cut-off
// worker, one behind a proxy whose connections are gone, stands for a process that
// was killed: it can write nothing any more.

// soonEnough bounds every wait for something that must happen; the machine may be slow.
const soonEnough = 30 * time.Second

type rig struct {
	t    testing.TB
	pool *pgxpool.Pool
	q    *rebase.Queue
	log  *logbook
}

func newRig(t testing.TB) *rig { return newRigOn(t, pgtest.New(t)) }

func newRigOn(t testing.TB, pool *pgxpool.Pool) *rig {
	log := newLogbook(t)
	return &rig{t: t, pool: pool, log: log, q: rebase.New(pool, &rebase.Options{Logger: slog.New(log)})}
}

// observed is a rig whose queue reports its events to the function.
func observed(t testing.TB, f func(rebase.Event)) *rig {
	r := newRig(t)
	r.q = rebase.New(r.pool, &rebase.Options{Logger: slog.New(r.log), OnEvent: f})
	return r
}

// worker makes a worker that retries at once.
func (r *rig) worker(opts *rebase.WorkerOptions) *rebase.Worker {
	o := rebase.WorkerOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Backoff == nil {
		o.Backoff = at(0)
	}
	w := rebase.NewWorker(r.q, &o)
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.log.workers = append(r.log.workers, w)
	return w
}

// at is a backoff of always the same delay.
func at(d time.Duration) rebase.Backoff { return func(int) time.Duration { return d } }

// A running worker.
type running struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set when done is closed
}

// start runs the worker until the end of the test, or until stop.
func (r *rig) start(w *rebase.Worker) *running {
	ctx, cancel := context.WithCancel(context.Background())
	s := &running{t: r.t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = w.Run(ctx)
	}()
	r.t.Cleanup(func() { s.stop() })
	return s
}

// stop ends Run and returns what it returned.
func (s *running) stop() error {
	s.t.Helper()
	s.cancel()
	await(s.t, s.done)
	return s.err
}

// handle runs one task on a new worker until the end of the test.
func (r *rig) handle(task string, opts *rebase.WorkerOptions, h rebase.Handler) *running {
	w := r.worker(opts)
	w.Register(task, h, nil)
	return r.start(w)
}

// once runs one task by RunOnce and returns the number of attempts.
func (r *rig) once(task string, opts *rebase.WorkerOptions, h rebase.Handler) int {
	r.t.Helper()
	w := r.worker(opts)
	w.Register(task, h, nil)
	n, err := w.RunOnce(r.t.Context())
	require.NoError(r.t, err)
	return n
}

func (r *rig) enqueue(task string, opts *rebase.EnqueueOptions) int64 {
	r.t.Helper()
	done, err := r.q.Enqueue(r.t.Context(), task, nil, opts)
	require.NoError(r.t, err)
	require.False(r.t, done.Duplicate)
	return done.ID
}

// enqueueMany makes n jobs and returns their ids.
func (r *rig) enqueueMany(task string, n int, opts *rebase.EnqueueOptions) []int64 {
	r.t.Helper()
	done, err := r.q.EnqueueMany(r.t.Context(), slices.Repeat([]rebase.Item{{Task: task, Options: opts}}, n))
	require.NoError(r.t, err)
	ids := make([]int64, n)
	for i, d := range done {
		ids[i] = d.ID
	}
	return ids
}

func (r *rig) job(id int64) *rebase.Job {
	r.t.Helper()
	j, err := r.q.Job(context.WithoutCancel(r.t.Context()), id)
	require.NoError(r.t, err)
	return j
}

// ends waits until the job has the status.
func (r *rig) ends(id int64, status rebase.Status) *rebase.Job {
	r.t.Helper()
	r.until(func() bool { return r.job(id).Status == status }, "job %d is %s", id, status)
	return r.job(id)
}

// until waits for what only the table, or a counter, can tell.
func (r *rig) until(ok func() bool, format string, args ...any) {
	r.t.Helper()
	for deadline := time.Now().Add(soonEnough); !ok(); {
		require.Truef(r.t, time.Now().Before(deadline), "waited in vain until "+format, args...)
		select {
		case <-r.t.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(context.WithoutCancel(r.t.Context()), sql, args...)
	require.NoError(r.t, err)
}

// ask returns the one value that the query gives.
func ask[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	rows, _ := r.pool.Query(context.WithoutCancel(r.t.Context()), sql, args...) // CollectExactlyOneRow tells the error
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(r.t, err)
	return v
}

// count counts the jobs that the condition holds for.
func (r *rig) count(where string, args ...any) int {
	r.t.Helper()
	return ask[int](r, "select count(*)::int from rebase.jobs where "+where, args...)
}

// expire makes all leases end now, as if their time had passed.
func (r *rig) expire() {
	r.exec(`update rebase.jobs set locked_until = now() - interval '1 second' where status = 'running'`)
	r.exec(`update rebase.claims set locked_until = now() - interval '1 second'`)
}

// lose takes a running job from whoever has it, as the reaper would.
func (r *rig) lose(id int64) {
	r.exec(`update rebase.jobs set status = 'pending', fence = 0, locked_until = null, attempts = attempts - 1 where id = $1 and status = 'running'`, id)
}

// hold locks the job's row in a transaction until the returned function is called.
func (r *rig) hold(id int64) (release func()) {
	tx, err := r.pool.Begin(r.t.Context())
	require.NoError(r.t, err)
	_, err = tx.Exec(r.t.Context(), `select from rebase.jobs where id = $1 for update`, id)
	require.NoError(r.t, err)
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) }) // a closed connection is released too
	r.t.Cleanup(release)
	return release
}

// behind is a second queue on the same database, through a proxy.
func (r *rig) behind() (*rig, *faultnet.Proxy) { return r.behindWith(nil) }

func (r *rig) behindWith(configure func(*pgxpool.Config)) (*rig, *faultnet.Proxy) {
	cc := r.pool.Config().ConnConfig
	target := fmt.Sprintf("%s:%d", cc.Host, cc.Port)
	if strings.HasPrefix(cc.Host, "/") {
		target = fmt.Sprintf("%s/.s.PGSQL.%d", cc.Host, cc.Port)
	}
	proxy, err := faultnet.Listen(target)
	require.NoError(r.t, err)
	r.t.Cleanup(proxy.Close)
	cfg, err := pgxpool.ParseConfig(proxy.URL(r.pool.Config().ConnString()))
	require.NoError(r.t, err)
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(r.t.Context(), cfg)
	require.NoError(r.t, err)
	r.t.Cleanup(pool.Close)
	return newRigOn(r.t, pool), proxy
}

// kill cuts everybody behind the proxy off for good: to the database they are dead.
func kill(p *faultnet.Proxy) {
	p.Refuse(true)
	p.Cut()
}

// await waits for a channel to give something or to be closed.
func await[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(soonEnough):
		require.FailNow(t, "waited in vain")
		panic("unreachable")
	}
}

// A logbook keeps what is logged, for tests that say what an operator must be told.
type logbook struct {
	mu    sync.Mutex
	lines []string // guarded by mu: level, message, key=value …
	next  slog.Handler
	// Asked with each line whether they live, as a user's handler may: nothing is logged while a
	// worker holds its lock. Guarded by mu.
	workers []*rebase.Worker
}

func newLogbook(t testing.TB) *logbook { return &logbook{next: pgtest.Logger(t).Handler()} }

func (l *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logbook) WithAttrs([]slog.Attr) slog.Handler {
	panic("not needed: rebase logs with plain calls")
}
func (l *logbook) WithGroup(string) slog.Handler { panic("not needed: rebase logs with plain calls") }

func (l *logbook) Handle(ctx context.Context, rec slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", rec.Level, rec.Message)
	rec.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	l.lines = append(l.lines, b.String())
	workers := slices.Clone(l.workers)
	l.mu.Unlock()
	for _, w := range workers {
		_ = w.Live() // one that has ended says so
	}
	return l.next.Handle(ctx, rec)
}

// matching returns the lines that have all the parts.
func (l *logbook) matching(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) })
	})
}

// errBoom is a handler's ordinary failure.
var errBoom = errors.New("boom")
