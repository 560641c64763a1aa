package rebase_test

// Claiming ahead: a stock for quick handlers, so that their slots never wait for a claim; none
// where a job in stock would only wait. What waits in it nevertheless goes back.

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// The stock is what the slots get through while the next claim is on its way, at most 500 over
// a short link and 8 MiB of payloads; nothing while the handler's time is unknown or long.
func TestAWorkerHoldsInStockWhatItsSlotsGetThroughDuringAClaim(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name        string
		mean, claim time.Duration
		bytes       float64
		want        int
	}{
		{"unknown", 0, ms, 100, 0},
		{"1 ms, claims of 1 ms", ms, ms, 100, 5 * (2 + 5)},
		{"1 ms, claims of 10 ms", ms, 10 * ms, 100, 5 * (20 + 5)},
		{"100 ms", 100 * ms, ms, 100, 0},
		{"1 s", time.Second, ms, 100, 0},
		{"1 s, over a slow link", time.Second, 200 * ms, 100, 0},
		{"1 µs: the cap", time.Microsecond, ms, 100, 500},
		{"1 µs, over a slow link: a higher cap", time.Microsecond, time.Second, 100, 4000},
		{"payloads of 1 MiB", time.Microsecond, ms, 1 << 20, 8},
	} {
		w := newWorker(t, pgtest.New(t), 5, "stock", nothing, nil)
		require.Equal(t, c.want, rebase.Ahead(w, "stock", c.mean, c.claim, c.bytes), c.name)
	}
	limited := newWorker(t, pgtest.New(t), 5, "stock", nothing, &rebase.TaskOptions{LaneConcurrency: 2})
	require.Zero(t, rebase.Ahead(limited, "stock", ms, ms, 100), "it would count as running")
	few := newWorker(t, pgtest.New(t), 5, "stock", nothing, &rebase.TaskOptions{Concurrency: 2})
	require.Equal(t, 2*(2+5), rebase.Ahead(few, "stock", ms, ms, 100), "two slots")
}

// J8: handlers that were quick get stuck: what was claimed ahead for them goes back after a
// second, its attempt unused, for others to run.
func TestWhatWaitsTooLongInStockIsGivenBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const quick, n = 1000, 3000
	enqueueMany(t, pool, "stock", n, nil)
	var begun atomic.Int64
	release := make(chan struct{})
	w := newWorker(t, pool, 3, "stock", func(context.Context, *rebase.Job) error {
		if begun.Add(1) > quick {
			<-release
		}
		return nil
	}, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	count := func(where string) (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from rebase.jobs where "+where).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return begun.Load() == quick+3 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return count("status = 'running'") == 3 }, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, n-quick-3, count("status = 'pending' and attempts = 0"))
	require.Positive(t, count("status = 'pending' and runs > 0"), "nothing was claimed ahead")
	require.Zero(t, count("status = 'pending' and history is not null"))
	close(release)
	require.Eventually(t, func() bool { return count("status = 'succeeded'") == n }, 30*time.Second, 20*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
