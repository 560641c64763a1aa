package rebase_test

import (
	"context"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// Q2: jobs whose worker died run one at a time at first, but one that goes on for long does not
// hold up the others: a long and a short job both run again soon.
func TestALongJobThatCameBackDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long, short := r.enqueue("x", nil), r.enqueue("x", nil)
	r.exec(`update rebase.jobs set crashes = 1, attempts = 1, run_at = now() - case id when $1 then interval '1 hour' else '0' end`, long)
	began, release := make(chan int64, 2), make(chan struct{})
	s := r.handle("x", &rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, func(ctx context.Context, job *rebase.Job) error {
		began <- job.ID
		if job.ID == long {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	})
	require.Equal(t, long, receive(t, began))
	require.Equal(t, short, receive(t, began)) // while the long one runs
	r.ends(short, rebase.StatusSucceeded)
	require.Equal(t, rebase.StatusRunning, r.job(long).Status)
	close(release)
	r.ends(long, rebase.StatusSucceeded)
	require.NoError(t, s.stop())
}

// J12: a suspended machine's monotonic clock stands still. When it wakes, the local deadlines of
// its leases are brought forward by that time, and the renewal is the first thing to happen.
func TestAfterASuspendTheLeasesAreRenewedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	began, release := make(chan int64, 1), make(chan struct{})
	w := r.worker(nil)
	w.Register("x", func(context.Context, *rebase.Job) error {
		began <- 1
		<-release
		return nil
	}, nil)
	s := r.start(w)
	receive(t, began)
	before := r.job(id).LockedUntil
	rebase.Suspend(w, time.Minute)
	r.until(func() bool { return r.job(id).LockedUntil.After(*before) }, "the lease was not renewed")
	r.until(func() bool { return len(r.log.matching("the machine was suspended")) > 0 }, "nothing was said")
	close(release)
	r.ends(id, rebase.StatusSucceeded)
	require.NoError(t, s.stop())
}
