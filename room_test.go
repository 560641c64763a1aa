package rebase_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J13, J27: a worker whose slots are all taken waits for room, and hears nothing meanwhile.
// However a slot comes free, the next job begins at once; with two tasks none of them is at a
// limit of its own.

// half is less than the half minute after which a worker looks in any case.
const half = soonEnough / 2

// hangs is a worker with two slots whose handlers hang until their contexts end, when they are told to.
func hangs(r *rig, opts rebase.WorkerOptions) (w *rebase.Worker, began chan int64) {
	opts.Concurrency = 2
	w, began = r.worker(&opts), make(chan int64, 10)
	h := func(ctx context.Context, job *rebase.Job) error {
		began <- job.ID
		if job.Meta["hang"] != "" {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	w.Register("a", h, nil)
	w.Register("b", h, nil)
	return w, began
}

func TestHoweverASlotComesFreeTheNextJobBegins(t *testing.T) {
	t.Parallel()
	hang := &rebase.EnqueueOptions{MaxAttempts: 1, Meta: map[string]string{"hang": "yes"}}
	for name, c := range map[string]struct {
		opts rebase.WorkerOptions
		free func(r *rig, id int64)
	}{
		"timed out for good": {rebase.WorkerOptions{Timeout: 2 * time.Second}, func(*rig, int64) {}},
		"cancelled": {rebase.WorkerOptions{}, func(r *rig, id int64) {
			require.NoError(r.t, r.elsewhere(rebase.Gated).Cancel(r.t.Context(), id, ""))
		}},
		"lease lost": {rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, func(r *rig, id int64) {
			r.exec(`delete from rebase.jobs where id = $1`, id)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ids := []int64{r.enqueue("a", hang), r.enqueue("b", hang)}
			w, began := hangs(r, c.opts)
			r.start(w)
			require.ElementsMatch(t, ids, []int64{await(t, began), await(t, began)})
			next, err := r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)
			require.NoError(t, err)
			for _, id := range ids {
				c.free(r, id)
			}
			select {
			case id := <-began:
				require.Equal(t, next.ID, id)
			case <-time.After(half):
				require.Fail(t, "both slots are free, and the next job has not begun")
			}
		})
	}
}

// J15: so does RunOnce end when its last jobs have timed out for good.
func TestRunOnceEndsAfterTimeouts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hang := &rebase.EnqueueOptions{MaxAttempts: 1, Meta: map[string]string{"hang": "yes"}}
	r.enqueue("a", hang)
	r.enqueue("b", hang)
	w, _ := hangs(r, rebase.WorkerOptions{Timeout: time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), half)
	defer cancel()
	n, err := w.RunOnce(ctx)
	require.NoError(t, err)
	require.NoError(t, ctx.Err())
	require.Equal(t, 2, n)
}

// J9: nothing is claimed while the connection for results can't be had, although the one for
// claims works: its leases could not be renewed. Claims go on when it is back.
func TestJ9NothingIsClaimedWhileNoLeaseCanBeRenewed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Register("x", succeed, nil)
	o := rebase.NewOutages(w)
	require.True(t, o.Claims())
	o.Round(false, time.Now(), rebase.LostRound(io.EOF))
	require.True(t, o.Claims(), "a connection that broke is made anew at once")
	o.Round(false, time.Now(), rebase.LostRound(io.EOF))
	require.False(t, o.Claims())
	o.Round(true, time.Now(), nil)
	require.False(t, o.Claims())
	o.Round(false, time.Now(), nil)
	require.True(t, o.Claims())
}

// J24: a worker whose results are all refused doesn't go through the whole queue.
func TestJ24ResultsThatCannotBeWrittenStopClaims(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Register("x", succeed, nil)
	o := rebase.NewOutages(w)
	o.Unsaved(rebase.MostUnsaved - 1)
	require.True(t, o.Claims())
	o.Unsaved(rebase.MostUnsaved)
	require.False(t, o.Claims())
}

// J18: a job that another process cancels while its result is on the way is told as cancelled,
// not as a lost lease.
func TestJ18ACancelThatOvertakesTheResultIsToldAsCancelled(t *testing.T) {
	t.Parallel()
	var cancelled, lost atomic.Int64
	r := observed(t, func(e rebase.Event) {
		switch e.Kind {
		case rebase.EventCancelled:
			cancelled.Add(1)
		case rebase.EventLeaseLost:
			lost.Add(1)
		}
	})
	id := r.enqueue("x", nil)
	r.handle("x", &rebase.WorkerOptions{PollOnly: true}, func(ctx context.Context, job *rebase.Job) error {
		return r.elsewhere(rebase.Never).Cancel(ctx, job.ID, "not wanted")
	})
	r.until(func() bool { return cancelled.Load()+lost.Load() > 0 }, "it is told")
	require.Equal(t, rebase.StatusCancelled, r.job(id).Status)
	require.EqualValues(t, 1, cancelled.Load())
	require.Empty(t, r.log.matching("lease lost"))
}
