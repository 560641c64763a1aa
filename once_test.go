package rebase_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// J9, J11: a RunOnce takes back what has expired only if its holder, who may be alive behind an
// outage that has just ended, doesn't renew it in the time that it needs for that.

// waits waits until a RunOnce has found something expired.
func (r *rig) waits() {
	r.t.Helper()
	r.until(func() bool { return len(r.log.matching("INFO", "RunOnce found leases that have expired")) == 1 }, "it waits")
}

// J9: after an outage all leases have run out, and their holders live: nothing is taken back, no
// attempt used, and what the handler returns counts, also in its last attempt.
func TestJ9RunOnceAfterAnOutageTakesNothingFromTheLiving(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	begun, end := make(chan struct{}), make(chan struct{})
	far.handle("x", &shortLease, func(context.Context, *rebase.Job) error { close(begun); <-end; return nil })
	await(t, begun)
	kill(proxy)
	r.until(func() bool { return r.count("locked_until < clock_timestamp()") == 1 }, "the lease has run out")
	proxy.Refuse(false)
	n, err := r.worker(&shortLease).RunOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, rebase.StatusRunning, r.job(id).Status, r.job(id).LastError)
	close(end)
	require.Equal(t, 1, r.ends(id, rebase.StatusSucceeded).Attempts)
}

// J11: the jobs of the dead come back, also to a RunOnce without any handler; those that had not
// begun run in it.
func TestJ11RunOnceTakesBackWhatIsNotRenewed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	r.crash("x", &shortLease, always)
	_, err := r.worker(nil).RunOnce(t.Context())
	require.NoError(t, err)
	j := r.job(id)
	require.Equal(t, rebase.StatusPending, j.Status)
	require.Contains(t, j.LastError, "stopped renewing its lease")

	ahead := r.enqueue("y", nil)
	r.crash("y", &shortLease, always)
	r.exec("update rebase.jobs set started_at = null where id = $1", ahead)
	require.Equal(t, 1, r.once("y", nil, succeed))
	require.Equal(t, 1, r.job(ahead).Attempts)
}

// J11: it works while it waits, and the end of its context ends the wait: then nothing is taken back.
func TestJ11RunOnceWorksWhileItWaitsAndItsContextEndsTheWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	held := r.enqueue("x", nil)
	r.crash("x", nil, always) // a lease of 5 min: it waits for 41.5 s
	due := r.enqueue("y", nil)
	w := r.worker(nil)
	w.Register("y", succeed, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		n, _ := w.RunOnce(ctx)
		done <- n
	}()
	r.waits()
	r.ends(due, rebase.StatusSucceeded)
	require.Equal(t, rebase.StatusRunning, r.job(held).Status)
	began := time.Now()
	cancel()
	require.Equal(t, 1, await(t, done))
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, rebase.StatusRunning, r.job(held).Status)
}

// J9: when the database goes away in the wait, the time doesn't count: RunOnce ends with the error.
func TestJ9RunOnceTakesNothingBackWhenTheDatabaseGoesAwayInItsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	held := r.enqueue("x", nil)
	r.crash("x", nil, always)
	far, proxy := r.behind()
	w := far.worker(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second, ShutdownTimeout: 300 * time.Millisecond})
	done := make(chan error)
	go func() {
		_, err := w.RunOnce(t.Context())
		done <- err
	}()
	far.waits()
	far.until(func() bool { return len(far.log.matching("INFO", "worker started")) == 1 }, "it works")
	kill(proxy)
	require.ErrorContains(t, await(t, done), "RunOnce")
	require.Equal(t, rebase.StatusRunning, r.job(held).Status)
}
