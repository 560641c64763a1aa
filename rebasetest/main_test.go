package rebasetest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/rebasetest"
)

// What the tests share: a bench is a transaction as a user's test has one, on a database of
// its own, and a fake stands in for a test that is expected to fail.

func TestMain(m *testing.M) { pgtest.Main(m) }

type mail struct{ To string }

const (
	sendMail rebase.Task[mail] = "send-mail"
	resize   rebase.Task[int]  = "resize"
)

type bench struct {
	*testing.T
	pool  *pgxpool.Pool
	queue *rebase.Queue
	tx    pgx.Tx
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOn(t, pgtest.New(t))
}

func newBenchOn(t *testing.T, pool *pgxpool.Pool) *bench {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // some tests commit or break it
	return &bench{t, pool, rebase.New(pool, &rebase.Options{Logger: pgtest.Logger(t)}), tx}
}

// mail enqueues a job in the transaction.
func (b *bench) mail(to string, opts *rebase.EnqueueOptions) int64 {
	b.Helper()
	done, err := sendMail.EnqueueTx(b.Context(), b.queue, b.tx, mail{to}, opts)
	require.NoError(b, err)
	return done.ID
}

type handler = func(context.Context, *rebase.Job, mail) error

// worker has one handler, for sendMail.
func (b *bench) worker(h handler, opts *rebase.WorkerOptions) *rebase.Worker {
	w := rebase.NewWorker(b.queue, opts)
	sendMail.Handle(w, h, nil)
	return w
}

func fine(context.Context, *rebase.Job, mail) error { return nil }

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	_, err := b.tx.Exec(b.Context(), sql, args...)
	require.NoError(b, err)
}

func query[T any](b *bench, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, sql string, args ...any) T {
	b.Helper()
	rows, _ := db.Query(b.Context(), sql, args...) // CollectExactlyOneRow tells the error
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(b, err)
	return v
}

// fake is a test that is expected to fail.
type fake struct {
	t    *testing.T
	said string
}

func (f *fake) Helper()                  {}
func (f *fake) Context() context.Context { return f.t.Context() }
func (f *fake) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure runs f as a test of its own and returns what that said when it failed.
func (b *bench) failure(f func(rebasetest.TB)) string {
	b.Helper()
	tb := &fake{t: b.T}
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
		returned = true
	}()
	<-done
	require.False(b, returned, "it did not fail")
	return tb.said
}

// says requires that the message has these lines, apart from ids, which a "#" stands for.
func (b *bench) says(message string, ids []int64, lines ...string) {
	b.Helper()
	want := strings.Join(lines, "\n\t")
	for _, id := range ids {
		want = strings.Replace(want, "#", fmt.Sprint(id), 1)
	}
	require.Equal(b, want, message)
}
