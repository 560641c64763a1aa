package rebase_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// An asynchronous standby that takes over lacks what the old primary committed last. Here SQL takes
// that back, and a restart stands for the takeover: to a worker both are another server. With a real
// standby it is done by internal/torture.

// J12: the standby never heard of the claim, and gives the job out as in its first run, to the same
// worker. The handler of the lost claim is told, although the new claim is renewed under the job's id.
func TestAWorkerThatClaimsAgainWhatAFailoverLostEndsItsFirstRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type run struct {
		ctx context.Context
		job rebase.Job
	}
	runs, release := make(chan run, 10), make(chan struct{})
	w := r.worker(&rebase.WorkerOptions{Concurrency: 2, VisibilityTimeout: 3 * time.Second})
	w.Register("x", func(ctx context.Context, job *rebase.Job) error {
		runs <- run{ctx, *job}
		<-release
		return nil
	}, nil)
	s := r.start(w)
	id := r.enqueue("x", nil)
	stale := await(t, runs)
	w.HoldsOfAnotherServer()
	r.exec(`
with gone as (delete from rebase.claims)
update rebase.jobs set status = 'pending', fence = 0, attempts = 0, runs = 0, locked_by = null, locked_until = null, started_at = null where id = $1`, id)
	r.exec(`notify rebase_jobs, 't:x'`) // before the next renewal, which would find out as well
	again := await(t, runs)
	require.Equal(t, 1, again.job.Runs)
	await(t, stale.ctx.Done())
	require.ErrorIs(t, context.Cause(stale.ctx), rebase.ErrLeaseLost)
	require.NoError(t, again.ctx.Err())
	close(release)
	r.ends(id, rebase.StatusSucceeded)
	require.NoError(t, s.stop())
}

// J11: a confirmed result is lost, so its job is running again, by a claim that the worker still holds for
// another job. When that ends too the claim stays in the ledger, so that a reaper finds the first.
func TestAJobWhoseResultAFailoverLostComesBackAfterItsLease(t *testing.T) {
	t.Parallel()
	r, server := private(t)
	first, second := r.enqueue("x", nil), r.enqueue("x", nil)
	release := make(chan struct{})
	began := make(chan int64, 10)
	r.handle("x", &rebase.WorkerOptions{Concurrency: 3, VisibilityTimeout: 3 * time.Second}, func(_ context.Context, job *rebase.Job) error {
		if began <- job.ID; job.ID == second {
			<-release
		}
		return nil
	})
	await(t, began)
	await(t, began)
	r.ends(first, rebase.StatusSucceeded)
	require.Equal(t, 1, ask[int](r, `select count(*)::int from rebase.claims where ids @> $1`, []int64{first, second}), "one claim has brought both")
	r.exec(`update rebase.jobs set status = 'running', fence = -fence, finished_at = null, locked_until = now() + interval '1 s' where id = $1`, first)
	require.NoError(t, server.Restart("immediate"))
	r.back()
	close(release)
	r.ends(second, rebase.StatusSucceeded)
	require.Equal(t, first, await(t, began))
	r.ends(first, rebase.StatusSucceeded)
}
