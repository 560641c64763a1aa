package rebase_test

import (
	"context"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// Q6, J12: the fence alone stands between a stale attempt and the row that another worker holds
// by now: the first worker hears of its loss only when it tries to write.
func TestTheFenceRefusesAStaleAttemptOfAnotherWorker(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{
		"success": nil, "failure": errBoom, "permanent": rebase.Permanent(errBoom), "snooze": rebase.Snooze(time.Hour), "cancelled": rebase.ErrCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stale := newRig(t)
			began, finish := make(chan int64, 1), make(chan struct{})
			one := stale.handle("x", &rebase.WorkerOptions{Concurrency: 1, PollOnly: true}, func(_ context.Context, job *rebase.Job) error {
				began <- job.ID
				<-finish
				return result
			})
			// Its first renewal has passed, so that it hears of nothing before it writes.
			stale.until(func() bool { return ask[int](stale, "select count(*)::int from rebase.workers") == 1 }, "the first heartbeat")
			id := stale.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
			require.Equal(t, id, receive(t, began))
			stale.lose(id)

			holder := newRigOn(t, stale.pool)
			holds, end := make(chan int64, 1), make(chan struct{})
			two := holder.handle("x", nil, func(_ context.Context, job *rebase.Job) error {
				holds <- job.Fence
				<-end
				return nil
			})
			fence := receive(t, holds)
			close(finish)
			stale.until(func() bool { return len(stale.log.matching("WARN", "lease lost")) == 1 }, "the loss is logged")
			job := stale.job(id)
			require.Equal(t, rebase.StatusRunning, job.Status)
			require.Equal(t, fence, job.Fence)
			require.Empty(t, job.LastError)
			close(end)
			require.Equal(t, 2, stale.ends(id, rebase.StatusSucceeded).Runs)
			require.NoError(t, one.stop())
			require.NoError(t, two.stop())
		})
	}
}
