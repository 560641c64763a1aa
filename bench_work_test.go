package rebase_test

// What work costs that isn't a plain success, beside BenchmarkClaimAndComplete500: attempts that
// fail, lanes, and a look that finds nothing.

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// Claims of 500 jobs whose handlers fail: each is put off with an entry in its history.
func BenchmarkClaimAndFail500(b *testing.B) {
	pool := pgtest.New(b)
	s := newStepper(b, pool, &rebase.TaskOptions{Backoff: at(time.Hour)}, "bench")
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		b.StopTimer()
		enqueueMany(b, pool, "bench", 500, nil)
		b.StartTimer()
		holds, err := s.Claim("bench", 500, true, false)
		require.NoError(b, err)
		require.Len(b, holds, 500)
		for _, h := range holds {
			s.Begin(h)
			s.Finish(h, errBoom)
		}
		require.NoError(b, s.Record())
		n += 500
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "jobs/s")
	require.Equal(b, n, newRigOn(b, pool).count("status = 'pending' and attempts = 1 and jsonb_array_length(history) = 1 and run_at > now()"))
}

// A hundred lanes of four jobs each, as many of a lane at once as its limit allows: with a limit
// of one it takes twice the claims that it takes with two.
func BenchmarkClaimLanes(b *testing.B) {
	for _, limit := range []int{1, 2} {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) { benchmarkLanes(b, limit) })
	}
}

func benchmarkLanes(b *testing.B, limit int) {
	const lanes, each = 100, 4
	pool := pgtest.New(b)
	s := newStepper(b, pool, &rebase.TaskOptions{LaneConcurrency: limit}, "bench")
	b.ReportAllocs()
	n, claims := 0, 0
	for b.Loop() {
		b.StopTimer()
		enqueueLanes(b, pool, lanes, each)
		b.StartTimer()
		for done := 0; done < lanes*each; claims++ {
			holds, err := s.Claim("bench", lanes*each, true, false)
			require.NoError(b, err)
			require.LessOrEqual(b, len(holds), lanes*limit)
			for _, h := range holds {
				s.Begin(h)
				s.Finish(h, nil)
			}
			require.NoError(b, s.Record())
			done += len(holds)
			require.Less(b, claims, 100*(n/(lanes*each)+1), "claims that find nothing")
		}
		n += lanes * each
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(float64(claims)/float64(n), "claims/job")
	require.Equal(b, n, newRigOn(b, pool).count("status = 'succeeded' and runs = 1"))
}

func enqueueLanes(b *testing.B, pool *pgxpool.Pool, lanes, each int) {
	b.Helper()
	items := make([]rebase.Item, lanes*each)
	for i := range items {
		items[i] = rebase.Item{Task: "bench", Options: &rebase.EnqueueOptions{Lane: fmt.Sprint("lane ", i%lanes)}}
	}
	_, err := rebase.New(pool, &rebase.Options{Logger: quiet()}).EnqueueMany(b.Context(), items)
	require.NoError(b, err)
}

// What a program costs that a timer starts, when there is nothing to do: it connects, looks at
// everything that may be due, and ends.
func BenchmarkRunOnceOnAnEmptyQueue(b *testing.B) {
	w := newWorker(b, pgtest.New(b), 10, "bench", nothing, nil)
	b.ReportAllocs()
	for b.Loop() {
		n, err := w.RunOnce(b.Context())
		require.NoError(b, err)
		require.Zero(b, n)
	}
}
