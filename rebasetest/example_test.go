// Examples for the package's documentation. They need a database, so they are compiled only;
// what they show runs in the tests.
package rebasetest_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/rebasetest"
)

func ExampleRequireEnqueued() {
	check := func(t *testing.T, tx pgx.Tx) {
		job := rebasetest.RequireEnqueued(t, tx, SendWelcome, func(w Welcome) bool {
			return w.Email == "ada@example.org"
		})
		require.Equal(t, "tenant-7", job.Lane)
		require.WithinDuration(t, job.CreatedAt.Add(time.Hour), job.RunAt, time.Second)

		// A task that is known by its name only.
		rebasetest.RequireEnqueued(t, tx, rebase.Task[any]("resize"))
	}
	_ = check
}

// Exactly these jobs, in this order.
func ExamplePayloads() {
	check := func(t *testing.T, tx pgx.Tx) {
		require.Equal(t, []Welcome{{"ada@example.org"}, {"grace@example.org"}}, rebasetest.Payloads(t, tx, SendWelcome))
	}
	_ = check
}

func ExampleWorkOne() {
	check := func(t *testing.T, tx pgx.Tx, queue *rebase.Queue, mailer *Mailer) {
		worker := rebase.NewWorker(queue, nil)
		RegisterMail(worker, tx, mailer)
		result := rebasetest.WorkOne(t, tx, worker, SendWelcome)
		require.NoError(t, result.Err)
		require.Equal(t, rebase.StatusSucceeded, result.Job.Status)
	}
	_ = check
}

// Until the last attempt has failed, without waiting for the backoff.
func ExampleWorkJob() {
	check := func(t *testing.T, tx pgx.Tx, worker *rebase.Worker) {
		job := rebasetest.RequireEnqueued(t, tx, SendWelcome)
		for job.Status == rebase.StatusPending {
			job = rebasetest.WorkJob(t, tx, worker, job).Job
		}
		require.Equal(t, rebase.StatusFailed, job.Status)
		require.Len(t, job.History, job.MaxAttempts)
	}
	_ = check
}
