package rebasetest

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/intest"
)

// Running one job in the test's transaction. The attempt is the worker's own code, reached
// through internal/intest; here is only what a test is told when there is nothing to run.

// A Result is what became of an attempt.
type Result struct {
	// Job is the row afterwards.
	Job *rebase.Job
	// Outcome is the event that a worker would tell of: rebase.EventSucceeded, EventFailed (it
	// will be tried again), EventDead (it will not), EventSnoozed, EventCancelled,
	// EventSetback, or EventLeaseLost if the handler's result was dropped because the handler
	// itself has cancelled its job.
	Outcome rebase.EventKind
	// Delay is how long the job then waits before it runs again; 0 if it has ended.
	Delay time.Duration
	// Err is what the handler returned, a *rebase.PanicError if it panicked, or
	// rebase.ErrTimeout if it took too long.
	Err error
}

var workTx = intest.WorkTx.(func(context.Context, pgx.Tx, *rebase.Worker, string, int64) (*rebase.Job, intest.Outcome, error))

// WorkOne runs the task's next job that is due, in the transaction, with the worker's handler
// for the task, and records the outcome in the job's row as the worker would. The worker must
// not have been started for this. If no job is due, or the task is paused, it fails the test.
//
// A job that is due later, or waits for its next attempt, is run by [WorkJob].
func WorkOne[T any](t TB, tx pgx.Tx, w *rebase.Worker, task rebase.Task[T]) *Result {
	t.Helper()
	result := work(t, tx, w, string(task), 0)
	if result != nil {
		return result
	}
	all := jobs(t, tx, string(task))
	switch {
	case len(all) == 0:
		t.Fatalf("rebasetest: no job of task %q is enqueued; %s", task, others(t, tx, string(task)))
	case paused(t, tx, string(task)):
		t.Fatalf("rebasetest: task %q is paused; there %s:%s", task, areJobs(len(all)), list(t, tx, all))
	}
	t.Fatalf("rebasetest: no job of task %q is due, or another transaction has locked it (WorkJob runs one that is not due); there %s:%s",
		task, areJobs(len(all)), list(t, tx, all))
	return nil
}

// WorkJob is WorkOne for one job, whether it is due or not, so that no test has to wait for a
// delay, a backoff or a snooze. The job must be pending.
func WorkJob(t TB, tx pgx.Tx, w *rebase.Worker, job *rebase.Job) *Result {
	t.Helper()
	if job == nil {
		t.Fatalf("rebasetest: WorkJob: nil job")
		return nil
	}
	result := work(t, tx, w, job.Task, job.ID)
	if result != nil {
		return result
	}
	for _, now := range jobs(t, tx, job.Task) {
		if now.ID != job.ID {
			continue
		}
		reason := "it is " + string(now.Status) + ", not pending"
		if now.Status == rebase.StatusPending {
			reason = "another transaction has locked it"
		}
		if paused(t, tx, job.Task) {
			reason = "its task is paused"
		}
		t.Fatalf("rebasetest: job %d of task %q can't be run: %s:%s", job.ID, job.Task, reason, list(t, tx, []*rebase.Job{now}))
	}
	t.Fatalf("rebasetest: job %d of task %q can't be run: this transaction doesn't see it", job.ID, job.Task)
	return nil
}

// work returns nil if there is nothing to run.
func work(t TB, tx pgx.Tx, w *rebase.Worker, task string, id int64) *Result {
	t.Helper()
	if w == nil {
		t.Fatalf("rebasetest: task %q: nil worker", task)
		return nil
	}
	job, o, err := workTx(t.Context(), tx, w, task, id)
	if err != nil {
		t.Fatalf("rebasetest: task %q: %v", task, err)
	}
	if job == nil {
		return nil
	}
	return &Result{Job: job, Outcome: rebase.EventKind(o.Event), Delay: o.Delay, Err: o.Err}
}

func paused(t TB, tx pgx.Tx, task string) (is bool) {
	t.Helper()
	err := tx.QueryRow(t.Context(), "select exists (select from rebase.paused where task = $1)", task).Scan(&is)
	if err != nil {
		t.Fatalf("rebasetest: ask whether task %q is paused: %v", task, err)
	}
	return is
}
