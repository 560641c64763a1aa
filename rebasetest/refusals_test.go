package rebasetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/rebasetest"
)

// When there is nothing to run, or the transaction is of no more use, the test is told why.

// J3: only what is due is next.
func TestJobThatIsNotDueIsLeftToWorkJob(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.worker(fine, nil)
	id := b.mail("ada", &rebase.EnqueueOptions{Delay: time.Hour + 40*time.Millisecond})
	b.says(b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) }), []int64{id},
		`rebasetest: no job of task "send-mail" is due, or another transaction has locked it (WorkJob runs one that is not due); there is 1:`,
		`job #: pending, due in 1h0m0s, payload {"To": "ada"}`)
	result := rebasetest.WorkJob(t, b.tx, w, rebasetest.RequireEnqueued(t, b.tx, sendMail))
	require.Equal(t, id, result.Job.ID)
	require.Equal(t, rebase.EventSucceeded, result.Outcome)

	b.says(b.failure(func(tb rebasetest.TB) { rebasetest.WorkJob(tb, b.tx, w, result.Job) }), []int64{id, id},
		`rebasetest: job # of task "send-mail" can't be run: it is succeeded, not pending:`,
		`job #: succeeded, attempts 1 of 3, payload {"To": "ada"}`)
}

func TestAttemptsAndLastErrorAreToldWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.mail("ada", nil)
	w := b.worker(returns(errBoom), &rebase.WorkerOptions{Backoff: slow})
	rebasetest.WorkOne(t, b.tx, w, sendMail)
	message := b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) })
	b.says(message, []int64{id},
		`rebasetest: no job of task "send-mail" is due, or another transaction has locked it (WorkJob runs one that is not due); there is 1:`,
		`job #: pending, due in 1h0m0s, attempts 1 of 3, payload {"To": "ada"}, last error "boom"`)
}

func TestTaskWithoutJobsHasNothingToRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.worker(fine, nil)
	require.Equal(t, `rebasetest: no job of task "send-mail" is enqueued; this transaction sees no jobs at all`,
		b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) }))
}

func TestDatabaseWithoutTheSchemaIsToldSo(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(tb rebasetest.TB, b *bench){
		"Enqueued":        func(tb rebasetest.TB, b *bench) { rebasetest.Enqueued(tb, b.tx, sendMail) },
		"RequireEnqueued": func(tb rebasetest.TB, b *bench) { rebasetest.RequireEnqueued(tb, b.tx, sendMail) },
		"WorkOne":         func(tb rebasetest.TB, b *bench) { rebasetest.WorkOne(tb, b.tx, b.worker(fine, nil), sendMail) },
	} {
		b := newBenchOn(t, pgtest.Empty(t))
		require.Contains(t, b.failure(func(tb rebasetest.TB) { f(tb, b) }), "the schema is missing, call Queue.Migrate: ", name)
	}
}

// J18.
func TestPausedTaskIsNotRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.worker(fine, nil)
	id := b.mail("ada", nil)
	b.exec("insert into rebase.paused (task) values ($1)", string(sendMail))
	b.says(b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) }), []int64{id},
		`rebasetest: task "send-mail" is paused; there is 1:`, `job #: pending, due, payload {"To": "ada"}`)
	job := rebasetest.RequireEnqueued(t, b.tx, sendMail)
	b.says(b.failure(func(tb rebasetest.TB) { rebasetest.WorkJob(tb, b.tx, w, job) }), []int64{id, id},
		`rebasetest: job # of task "send-mail" can't be run: its task is paused:`, `job #: pending, due, payload {"To": "ada"}`)
}

// J5: a job that somebody has locked is left to them.
func TestJobThatAnotherTransactionHasLockedIsNotRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	done, err := sendMail.Enqueue(t.Context(), b.queue, mail{"ada"}, nil)
	require.NoError(t, err)
	newBenchOn(t, b.pool).exec("select from rebase.jobs where id = $1 for update", done.ID)
	w := b.worker(fine, nil)
	require.Contains(t, b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) }), "another transaction has locked it")
	job := rebasetest.RequireEnqueued(t, b.tx, sendMail)
	require.Contains(t, b.failure(func(tb rebasetest.TB) { rebasetest.WorkJob(tb, b.tx, w, job) }), "can't be run: another transaction has locked it")
}

func TestJobOfAnotherTransactionIsNotRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	job := rebasetest.RequireEnqueued(t, b.tx, sendMail)
	other := newBenchOn(t, b.pool)
	require.Contains(t, other.failure(func(tb rebasetest.TB) { rebasetest.WorkJob(tb, other.tx, other.worker(fine, nil), job) }),
		"this transaction doesn't see it")
}

// J6.
func TestWorkerWithoutAHandlerForTheTaskIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w := b.worker(fine, nil)
	require.Equal(t, `rebasetest: task "resize": the worker has no handler for task "resize", only for ["send-mail"]`,
		b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, resize) }))
	require.Equal(t, `rebasetest: task "resize": nil worker`,
		b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, nil, resize) }))
	require.Equal(t, `rebasetest: WorkJob: nil job`,
		b.failure(func(tb rebasetest.TB) { rebasetest.WorkJob(tb, b.tx, w, nil) }))
}

// A statement that is cut off takes pgx's connection with it. The test must not go on as if
// there were a result.
func TestTransactionThatTheHandlersTimeoutHasBrokenFailsTheTest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	w := b.worker(func(ctx context.Context, _ *rebase.Job, _ mail) error {
		_, err := b.tx.Exec(ctx, "select pg_sleep(60)")
		return err
	}, &rebase.WorkerOptions{Timeout: 50 * time.Millisecond})
	message := b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) })
	require.Contains(t, message, "has broken the transaction")
	require.Contains(t, message, rebase.ErrTimeout.Error())
}

// A handler that calls require in the test's own goroutine ends the test, as anywhere in it.
func TestHandlerMayEndTheTest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	message := b.failure(func(tb rebasetest.TB) {
		w := b.worker(func(context.Context, *rebase.Job, mail) error {
			tb.Fatalf("seen enough")
			return nil
		}, nil)
		rebasetest.WorkOne(tb, b.tx, w, sendMail)
	})
	require.Equal(t, "seen enough", message)
}

// A row that can't be read is an error, not "nothing to run".
func TestRowThatCannotBeReadFailsTheTest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.mail("ada", nil)
	b.exec(`update rebase.jobs set meta = '[1]' where id = $1`, id)
	w := b.worker(func(context.Context, *rebase.Job, mail) error { return errors.New("must not run") }, nil)
	message := b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) })
	require.Contains(t, message, fmt.Sprintf(`rebasetest: task "send-mail": claim: job %d: meta: json: cannot unmarshal`, id))
	message = b.failure(func(tb rebasetest.TB) { rebasetest.Enqueued(tb, b.tx, sendMail) })
	require.Contains(t, message, fmt.Sprintf(`rebasetest: list the jobs of task "send-mail": job %d: meta: json: cannot unmarshal`, id))
}

// J5: what a worker runs is not run a second time.
func TestJobThatAWorkerRunsIsLeftToIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	begun, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	running := b.worker(func(context.Context, *rebase.Job, mail) error {
		close(begun) // panics at a second time
		<-end
		return nil
	}, nil)
	enqueued, err := sendMail.Enqueue(t.Context(), b.queue, mail{"ada"}, nil)
	require.NoError(t, err)
	go func() {
		_, err := running.RunOnce(t.Context())
		done <- err
	}()
	await(t, begun)
	w := b.worker(fine, nil)
	ids := []int64{enqueued.ID, enqueued.ID}
	b.says(b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) }), ids[:1],
		`rebasetest: no job of task "send-mail" is due, or another transaction has locked it (WorkJob runs one that is not due); there is 1:`,
		`job #: running, attempts 1 of 3, payload {"To": "ada"}`)
	b.says(b.failure(func(tb rebasetest.TB) {
		rebasetest.WorkJob(tb, b.tx, w, rebasetest.RequireEnqueued(tb, b.tx, sendMail))
	}), ids,
		`rebasetest: job # of task "send-mail" can't be run: it is running, not pending:`,
		`job #: running, attempts 1 of 3, payload {"To": "ada"}`)
	close(end)
	require.NoError(t, await(t, done))
	require.Equal(t, rebase.StatusSucceeded, rebasetest.RequireEnqueued(t, b.tx, sendMail).Status)
}
