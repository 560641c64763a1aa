package rebase_test

// J17: deleting what is old doesn't slow down what is due. The same number of jobs is
// drained with nothing to delete and with many expired rows. Ordinarily the test is small and
// requires only that both get done; REBASE_LONG=1 measures a million rows and compares.

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// drained runs n jobs to their end beside old expired rows and returns how many it did in a
// second, and how many old rows were left then.
func drained(t *testing.T, n, old int) (rate float64, left int) {
	r := newRig(t)
	r.exec(`insert into rebase.jobs (task, status, finished_at) select 'old', 'succeeded', now() - interval '4 days' - i * interval '1 ms' from generate_series(1, $1::int) i`, old)
	r.exec(`insert into rebase.jobs (task) select 'x' from generate_series(1, $1::int)`, n)
	r.exec(`vacuum analyze rebase.jobs`)
	var begun atomic.Int64
	first, last := make(chan struct{}), make(chan struct{})
	s := r.handle("x", &rebase.WorkerOptions{Concurrency: 20}, func(context.Context, *rebase.Job) error {
		switch begun.Add(1) {
		case 1:
			close(first)
		case int64(n):
			close(last)
		}
		return nil
	})
	await(t, first)
	start := time.Now()
	select {
	case <-last:
	case <-time.After(20 * time.Minute):
		require.FailNow(t, "not drained")
	}
	rate = float64(n) / time.Since(start).Seconds()
	left = r.count("task = 'old'")
	if os.Getenv("REBASE_LONG") == "" {
		r.until(func() bool { return r.count("task = 'old'") == 0 }, "all that has expired is gone")
	}
	require.NoError(t, s.stop())
	require.Equal(t, n, r.count("status = 'succeeded' and task = 'x'"))
	return rate, left
}

func TestJ17DrainingKeepsItsPaceWhileOldRowsAreDeleted(t *testing.T) {
	if os.Getenv("REBASE_LONG") == "" {
		t.Parallel()
		rate, _ := drained(t, 3_000, 5_000)
		require.Positive(t, rate)
		return
	}
	without, _ := drained(t, 2_000_000, 0)
	with, left := drained(t, 2_000_000, 1_000_000)
	t.Logf("%.0f jobs/s with nothing to delete, %.0f jobs/s beside the deleting of %d rows: %.2f", without, with, 1_000_000-left, with/without)
	require.Less(t, left, 1_000_000, "some were deleted meanwhile")
	require.GreaterOrEqual(t, with/without, 0.8)
}
