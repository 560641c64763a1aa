package rebasetest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/rebasetest"
)

// The handler and the bookkeeping share the test's transaction: effects, CompleteTx and
// failed statements mean in it what they mean on a connection of the handler's own, and
// nobody outside notices.

// effect writes in a transaction of the handler's: here a savepoint, in a service a real one.
func effect(ctx context.Context, tx pgx.Tx, complete *rebase.Job) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into effects values ($1)", "done"); err != nil {
			return err
		}
		return complete.CompleteTx(ctx, tx)
	})
}

func newEffects(t *testing.T) *bench {
	b := newBench(t)
	b.exec("create table effects (what text)")
	b.mail("ada", nil)
	return b
}

func (b *bench) effects() int {
	b.Helper()
	return query[int](b, b.tx, "select count(*)::int from effects")
}

// J16: committed, it has succeeded, whatever the handler returns afterwards.
func TestCompleteTxEndsTheJob(t *testing.T) {
	t.Parallel()
	for _, returned := range []error{nil, errBoom} {
		b := newEffects(t)
		result := rebasetest.WorkOne(t, b.tx, b.worker(func(ctx context.Context, job *rebase.Job, _ mail) error {
			require.NoError(t, effect(ctx, b.tx, job))
			return returned
		}, nil), sendMail)
		require.Equal(t, rebase.EventSucceeded, result.Outcome)
		require.Equal(t, rebase.StatusSucceeded, result.Job.Status)
		require.Equal(t, returned, result.Err)
		require.Empty(t, result.Job.LastError)
		require.Equal(t, 1, b.effects())
	}
}

// J16: the test's transaction itself may be the one.
func TestCompleteTxInTheTestsOwnTransaction(t *testing.T) {
	t.Parallel()
	b := newEffects(t)
	result := rebasetest.WorkOne(t, b.tx, b.worker(func(ctx context.Context, job *rebase.Job, _ mail) error {
		return job.CompleteTx(ctx, b.tx)
	}, nil), sendMail)
	require.Equal(t, rebase.EventSucceeded, result.Outcome)
	require.NoError(t, result.Err)
}

// J16: called but rolled back, an error is a failure and nil is one, too.
func TestCompleteTxThatIsRolledBackIsAFailure(t *testing.T) {
	t.Parallel()
	for _, returned := range []error{nil, errBoom} {
		b := newEffects(t)
		result := rebasetest.WorkOne(t, b.tx, b.worker(func(ctx context.Context, job *rebase.Job, _ mail) error {
			tx, err := b.tx.Begin(ctx)
			require.NoError(t, err)
			require.NoError(t, effect(ctx, tx, job))
			require.NoError(t, tx.Rollback(ctx))
			return returned
		}, nil), sendMail)
		require.Equal(t, rebase.EventFailed, result.Outcome)
		require.Zero(t, b.effects())
		if returned == nil {
			require.ErrorContains(t, result.Err, "the transaction of CompleteTx was not committed")
		} else {
			require.ErrorIs(t, result.Err, errBoom)
		}
		require.Equal(t, result.Err.Error(), result.Job.LastError)
	}
}

// J12: after the attempt the job is no longer the handler's.
func TestCompleteTxAfterTheAttemptIsRefused(t *testing.T) {
	t.Parallel()
	b := newEffects(t)
	var kept *rebase.Job
	rebasetest.WorkOne(t, b.tx, b.worker(func(_ context.Context, job *rebase.Job, _ mail) error {
		kept = job
		return errBoom
	}, nil), sendMail)
	require.ErrorIs(t, kept.CompleteTx(t.Context(), b.tx), rebase.ErrLeaseLost)
}

// J18, J12: a handler that cancels its own job has lost it.
func TestHandlerThatCancelsItsOwnJobHasLostIt(t *testing.T) {
	t.Parallel()
	b := newEffects(t)
	result := rebasetest.WorkOne(t, b.tx, b.worker(func(ctx context.Context, job *rebase.Job, _ mail) error {
		return b.queue.CancelTx(ctx, b.tx, job.ID, "no longer wanted")
	}, nil), sendMail)
	require.Equal(t, rebase.EventLeaseLost, result.Outcome)
	require.ErrorIs(t, result.Err, rebase.ErrLeaseLost)
	require.Equal(t, rebase.StatusCancelled, result.Job.Status)
	require.Equal(t, "no longer wanted", result.Job.LastError)
}

// A failed statement aborts a transaction in PostgreSQL. The outcome is recorded all the same.
func TestFailedStatementOfTheHandlerIsAnOrdinaryFailure(t *testing.T) {
	t.Parallel()
	b := newEffects(t)
	result := rebasetest.WorkOne(t, b.tx, b.worker(func(ctx context.Context, _ *rebase.Job, _ mail) error {
		if _, err := b.tx.Exec(ctx, "insert into effects values ('undone')"); err != nil {
			return err
		}
		_, err := b.tx.Exec(ctx, "insert into no_such_table values (1)")
		return err
	}, nil), sendMail)
	require.Equal(t, rebase.EventFailed, result.Outcome)
	require.Contains(t, result.Job.LastError, "no_such_table")
	require.Zero(t, b.effects(), "the transaction was aborted, so what it had done is undone")
	require.Len(t, rebasetest.Enqueued(t, b.tx, sendMail), 1, "the test goes on")
}

// What a handler has written before it returns an error stays, as on its own connection.
func TestWritesOfAHandlerThatFailsStay(t *testing.T) {
	t.Parallel()
	b := newEffects(t)
	rebasetest.WorkOne(t, b.tx, b.worker(func(ctx context.Context, _ *rebase.Job, _ mail) error {
		_, err := b.tx.Exec(ctx, "insert into effects values ('written')")
		return errors.Join(err, errBoom)
	}, nil), sendMail)
	require.Equal(t, 1, b.effects())
}

func TestFollowUpOfTheHandlerIsEnqueuedInTheTransaction(t *testing.T) {
	t.Parallel()
	b := newEffects(t)
	w := b.worker(func(ctx context.Context, _ *rebase.Job, _ mail) error {
		_, err := resize.EnqueueTx(ctx, b.queue, b.tx, 7, nil)
		return err
	}, nil)
	rebasetest.WorkOne(t, b.tx, w, sendMail)
	rebasetest.RequireEnqueued(t, b.tx, resize, func(n int) bool { return n == 7 })
}

// J2, J5: a worker on the same database sees nothing of the test, and takes its rows neither
// before the end nor after: rolled back they never were, committed they have ended.
func TestWorkerOnTheSameDatabaseIsNotDisturbed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran := make(chan string, 10)
	record := func(_ context.Context, _ *rebase.Job, m mail) error {
		ran <- m.To
		return nil
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	running := b.worker(record, nil)
	go func() { done <- running.Run(ctx) }()
	next := func(to string) {
		t.Helper()
		_, err := sendMail.Enqueue(t.Context(), b.queue, mail{to}, nil)
		require.NoError(t, err)
		require.Equal(t, to, await(t, ran), "nothing else has run before it")
	}
	next("first")
	id := b.mail("committed", nil)
	require.Equal(t, rebase.EventSucceeded, rebasetest.WorkOne(t, b.tx, b.worker(fine, nil), sendMail).Outcome)
	other := newBenchOn(t, b.pool)
	other.mail("rolled back", nil)
	rebasetest.WorkOne(t, other.tx, other.worker(returns(rebase.Snooze(0)), nil), sendMail)
	next("meanwhile")
	require.NoError(t, other.tx.Rollback(t.Context()))
	require.NoError(t, b.tx.Commit(t.Context()))
	next("last")
	stop()
	require.NoError(t, await(t, done))
	job, err := b.queue.Job(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, rebase.StatusSucceeded, job.Status)
	require.Equal(t, 4, query[int](b, b.pool, "select count(*)::int from rebase.jobs where status = 'succeeded'"))
	require.Equal(t, 4, query[int](b, b.pool, "select count(*)::int from rebase.jobs"))
}

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		require.FailNow(t, "waited in vain")
		panic("unreachable")
	}
}

// A transaction's own settings and pgx's modes don't matter.
func TestEveryModeAndSettingsOfTheTestsOwnWork(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := newBenchOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
			b.exec("set transaction isolation level serializable")
			b.exec("set local search_path = ''")
			b.exec("set local timezone = 'Asia/Kathmandu'")
			b.exec("set local intervalstyle = 'iso_8601'")
			b.mail("ada", nil)
			w := b.worker(returns(errBoom), &rebase.WorkerOptions{Backoff: slow})
			result := rebasetest.WorkOne(t, b.tx, w, sendMail)
			require.Equal(t, rebase.EventFailed, result.Outcome)
			require.WithinDuration(t, result.Job.UpdatedAt.Add(time.Hour), result.Job.RunAt, time.Millisecond)
			require.Len(t, result.Job.History, 1)
			w = b.worker(func(ctx context.Context, job *rebase.Job, _ mail) error { return job.CompleteTx(ctx, b.tx) }, nil)
			require.Equal(t, rebase.EventSucceeded, rebasetest.WorkJob(t, b.tx, w, result.Job).Outcome)
		})
	}
}

// J4: of two tests that enqueue the same two keys in opposite order one fails, as the package
// comment says; with keys of their own neither waits.
func TestParallelTestsNeedIdempotencyKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for name, c := range map[string]struct {
		keys [2]string // of the second test, whose keys are "1" and "2" in the first
		want []string
	}{"the same": {[2]string{"2", "1"}, []string{"40P01"}}, "their own": {[2]string{"3", "4"}, nil}} {
		a, b := newBenchOn(t, pool), newBenchOn(t, pool)
		a.mail("ada", &rebase.EnqueueOptions{IdempotencyKey: "1"})
		b.mail("ada", &rebase.EnqueueOptions{IdempotencyKey: c.keys[0]})
		done := make(chan error, 2)
		for bench, key := range map[*bench]string{a: "2", b: c.keys[1]} {
			go func() {
				_, err := sendMail.EnqueueTx(t.Context(), bench.queue, bench.tx, mail{"ada"}, &rebase.EnqueueOptions{IdempotencyKey: key})
				if err != nil {
					_ = bench.tx.Rollback(t.Context()) // the other goes on then
				}
				done <- err
			}()
		}
		var codes []string
		for range 2 {
			if err := <-done; err != nil {
				pgErr, ok := errors.AsType[*pgconn.PgError](err)
				require.True(t, ok, "%v", err)
				codes = append(codes, pgErr.Code)
			}
		}
		require.Equal(t, c.want, codes, name)
		for _, bench := range []*bench{a, b} {
			_ = bench.tx.Rollback(t.Context()) // one is already
		}
	}
}
