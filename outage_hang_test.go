package rebase_test

// Q13 and Q15: sockets that hang, and Run's context ending at every possible moment.

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// Q13: every socket of the worker is in a black hole. Each call has a deadline, so the
// worker makes new connections when the network is back, and goes on.
func TestQ13ABlackHoleEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	s := far.sleeper(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second, PollInterval: 100 * time.Millisecond}, "a")
	proxy.BlackHole(true)
	s.RenewNow()
	id := one(t)(r.q.Enqueue(t.Context(), "a", nil, nil))
	far.until(func() bool { return len(far.log.matching("can't be reached")) > 0 }, "it is noticed")
	proxy.BlackHole(false)
	require.Equal(t, id, await(t, s.began))
	s.sleeps()
	away, back := far.outageLines()
	require.Equal(t, []int{1, 1}, []int{away, back})
}

// Q13: Run ends in its time although the database doesn't answer.
func TestQ13RunEndsInABlackHole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	s := far.sleeper(&rebase.WorkerOptions{ShutdownTimeout: 2 * time.Second}, "a")
	proxy.BlackHole(true)
	asked := time.Now()
	require.NoError(t, s.stop())
	require.Less(t, time.Since(asked), 2*time.Second+soon)
}

// Q15: a context that has ended already, a second Run, an end while starting.
func TestQ15RunEndsWheneverItIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{ShutdownTimeout: time.Second})
	w.Register("a", func(context.Context, *rebase.Job) error { return nil }, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, w.Run(ended))
	require.NoError(t, w.Run(ended), "a worker may run again")

	for range rounds(50, 500) {
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := w.Run(ctx); err != nil && err.Error() != "rebase: worker is already running" {
					t.Error(err)
				}
			})
		}
		pause(rand.N(30 * time.Millisecond))
		cancel()
		both.Wait()
	}
	r.until(func() bool {
		return ask[int](r, `select count(*)::int from rebase.workers`) == 0 && r.locks() == 0
	}, "nothing is left of them")
}

// Q15: an end while all connections are being made anew.
func TestQ15RunEndsWhileReconnecting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	for range rounds(5, 50) {
		proxy.Refuse(false)
		s := far.sleeper(&rebase.WorkerOptions{ShutdownTimeout: time.Second}, "a")
		kill(proxy)
		s.RenewNow()
		pause(rand.N(200 * time.Millisecond))
		asked := time.Now()
		require.NoError(t, s.stop())
		require.Less(t, time.Since(asked), time.Second+soon)
	}
}
