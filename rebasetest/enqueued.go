package rebasetest

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/intest"
)

// Looking at what was enqueued, in the transaction in which it was. Nothing is skipped
// silently: a payload that doesn't decode fails the test, and who asked in vain is told what
// is there instead.

// TB is what the functions need of a *testing.T, *testing.B or *testing.F.
type TB interface {
	Helper()
	Context() context.Context
	// Fatalf must not return.
	Fatalf(format string, args ...any)
}

// jobsTx has no other type: package rebase has set it before this package is initialised.
var jobsTx = intest.JobsTx.(func(context.Context, pgx.Tx, string) ([]*rebase.Job, error))

// Enqueued returns the task's jobs that the transaction sees, in the order in which they were
// enqueued, also those that have ended.
func Enqueued[T any](t TB, tx pgx.Tx, task rebase.Task[T]) []*rebase.Job {
	t.Helper()
	return jobs(t, tx, string(task))
}

// Payloads returns the payloads of the jobs that [Enqueued] returns:
//
//	require.Equal(t, []Welcome{{"ada@example.org"}}, rebasetest.Payloads(t, tx, SendWelcome))
func Payloads[T any](t TB, tx pgx.Tx, task rebase.Task[T]) []T {
	t.Helper()
	payloads := []T{}
	for _, job := range jobs(t, tx, string(task)) {
		payloads = append(payloads, decode[T](t, job))
	}
	return payloads
}

// RequireEnqueued returns the first job of the task whose payload every match accepts; without
// any, the first job. If there is none it fails the test and says what was enqueued instead.
func RequireEnqueued[T any](t TB, tx pgx.Tx, task rebase.Task[T], match ...func(payload T) bool) *rebase.Job {
	t.Helper()
	all := jobs(t, tx, string(task))
	if found := matching(t, all, match); len(found) > 0 {
		return found[0]
	}
	if len(all) > 0 {
		t.Fatalf("rebasetest: no job of task %q matches; there %s:%s", task, areJobs(len(all)), list(t, tx, all))
	}
	t.Fatalf("rebasetest: no job of task %q is enqueued; %s", task, others(t, tx, string(task)))
	return nil
}

// RequireNotEnqueued fails the test if the task has a job whose payload every match accepts;
// without any, if the task has a job.
func RequireNotEnqueued[T any](t TB, tx pgx.Tx, task rebase.Task[T], match ...func(payload T) bool) {
	t.Helper()
	if found := matching(t, jobs(t, tx, string(task)), match); len(found) > 0 {
		t.Fatalf("rebasetest: task %q is to have no such job, but there %s:%s", task, areJobs(len(found)), list(t, tx, found))
	}
}

func jobs(t TB, tx pgx.Tx, task string) []*rebase.Job {
	t.Helper()
	all, err := jobsTx(t.Context(), tx, task)
	if err != nil {
		t.Fatalf("rebasetest: list the jobs of task %q: %v", task, err)
	}
	return all
}

func matching[T any](t TB, all []*rebase.Job, match []func(T) bool) (found []*rebase.Job) {
	t.Helper()
	for _, job := range all {
		if len(match) == 0 || accepted(decode[T](t, job), match) {
			found = append(found, job)
		}
	}
	return found
}

func accepted[T any](payload T, match []func(T) bool) bool {
	for _, m := range match {
		if !m(payload) {
			return false
		}
	}
	return true
}

// decode does what the task's handler gets done.
func decode[T any](t TB, job *rebase.Job) (payload T) {
	t.Helper()
	if err := json.Unmarshal(job.Payload, &payload); err != nil {
		t.Fatalf("rebasetest: the payload of job %d of task %q is no %T: %v: %s", job.ID, job.Task, payload, err, short(job.Payload))
	}
	return payload
}

func areJobs(n int) string {
	if n == 1 {
		return "is 1"
	}
	return fmt.Sprintf("are %d", n)
}
