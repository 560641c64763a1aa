package rebase_test

// N1: a job with a time starts when it is due: not before, and not at the next look. The
// worker learns of the next due time with each look, and is woken by an enqueue that may
// come before it. The database's clock decides; how late a start was is read there.

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// punctual requires that the job began when it was due.
func (r *rig) punctual(id int64) {
	r.t.Helper()
	r.ends(id, rebase.StatusSucceeded) // a job that was claimed ahead has no started_at before
	late := time.Duration(ask[float64](r, `select extract(epoch from started_at - run_at)::float8 * 1e9 from rebase.jobs where id = $1`, id))
	require.GreaterOrEqual(r.t, late, time.Duration(0), "before its time")
	require.Less(r.t, late, 3*time.Second, "not by its time, but by a look")
	r.t.Logf("%v late", late)
}

// N1: from elsewhere, to a sleeper, by a delay and by a time; a later one first.
func TestN1ADelayedJobStartsWhenItIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.sleeper(nil, "a")
	q := r.elsewhere(rebase.Gated)
	far := one(t)(q.Enqueue(t.Context(), "a", nil, &rebase.EnqueueOptions{Delay: 2 * time.Second}))
	w.sleeps()
	near := one(t)(q.Enqueue(t.Context(), "a", nil, &rebase.EnqueueOptions{RunAt: ask[time.Time](r, `select now() + interval '1 second'`)}))
	require.Equal(t, near, await(t, w.began))
	require.Equal(t, far, await(t, w.began))
	r.punctual(near)
	r.punctual(far)
}

// N1: also without LISTEN, from the process that enqueues and from the table alone.
func TestN1ADelayedJobNeedsNoListen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.q = r.elsewhere(rebase.Never)
	early := r.enqueue("a", &rebase.EnqueueOptions{Delay: time.Second})
	w := r.drowsy(&rebase.WorkerOptions{PollOnly: true, PollInterval: time.Hour}, "a")
	own := r.enqueue("a", &rebase.EnqueueOptions{Delay: 1500 * time.Millisecond})
	require.Equal(t, early, await(t, w.began))
	require.Equal(t, own, await(t, w.began))
	r.punctual(early)
	r.punctual(own)
}

// N1: a retry and a snooze, and the worker that did neither takes them when the one that
// did is gone.
func TestN1ARetryOfAWorkerThatIsGoneStartsWhenItIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	second := &rig{t: t, pool: r.pool, q: r.elsewhere(rebase.Gated), log: r.log}
	var runs atomic.Int32
	first := second.worker(&rebase.WorkerOptions{Backoff: at(20 * time.Second)}) // long enough to stop it; falling asleep takes as long as other tests hold transactions open
	begun := make(chan struct{})
	first.Register("a", func(context.Context, *rebase.Job) error {
		if runs.Add(1) == 1 {
			close(begun)
		}
		return errBoom
	}, nil)
	running := second.start(first)
	id := r.enqueue("a", nil)
	await(t, begun)
	w := r.sleeper(nil, "a")
	require.NoError(t, running.stop())
	require.Equal(t, id, await(t, w.began))
	require.EqualValues(t, 1, runs.Load())
	r.punctual(id)
}

// N1: a due job whose row somebody has locked is no reason to sleep: it starts soon after
// the lock is gone.
func TestN1ALockedJobStartsSoonAfterItsLockIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("a", nil)
	release := r.hold(id)
	w := r.drowsy(&rebase.WorkerOptions{PollOnly: true, PollInterval: time.Hour}, "a")
	r.until(func() bool { d := w.UntilLook(); return d > 100*time.Millisecond && d <= time.Second }, "it looks now and then")
	require.Empty(t, w.began)
	release()
	w.starts(id)
}
