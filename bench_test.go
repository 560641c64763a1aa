package rebase_test

// What the parts cost. Compare base against head on one machine; the figures of two machines
// say nothing about each other, nor does a server without fsync about one with it.

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

func BenchmarkEnqueueOne(b *testing.B) {
	q := rebase.New(pgtest.New(b), &rebase.Options{Logger: quiet()})
	for b.Loop() {
		_, err := q.Enqueue(b.Context(), "bench", 1, nil)
		require.NoError(b, err)
	}
}

func BenchmarkEnqueue1000(b *testing.B) {
	pool := pgtest.New(b)
	for b.Loop() {
		enqueueMany(b, pool, "bench", 1000, nil)
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// Claims and results of 500 jobs by one engine without its loops: what the statements cost.
func BenchmarkClaimAndComplete500(b *testing.B) {
	pool := pgtest.New(b)
	s := newStepper(b, pool, nil, "bench")
	for b.Loop() {
		b.StopTimer()
		enqueueMany(b, pool, "bench", 500, nil)
		b.StartTimer()
		holds, err := s.Claim("bench", 500, true, false)
		require.NoError(b, err)
		require.Len(b, holds, 500)
		for _, h := range holds {
			s.Begin(h)
			s.Finish(h, nil)
		}
		require.NoError(b, s.Record())
	}
	b.ReportMetric(500*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// A whole worker that drains 20,000 jobs with nothing to do.
func BenchmarkDrain(b *testing.B) {
	const n = 20_000
	pool := pgtest.New(b)
	for b.Loop() {
		b.StopTimer()
		enqueueMany(b, pool, "bench", n, nil)
		b.StartTimer()
		drainOnce(b, n, func(h rebase.Handler) *rebase.Worker { return newWorker(b, pool, 10, "bench", h, nil) })
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

func drainOnce(b *testing.B, n int64, newWorker func(rebase.Handler) *rebase.Worker) {
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var begun atomic.Int64
	err := newWorker(func(context.Context, *rebase.Job) error {
		if begun.Add(1) == n {
			stop() // Run returns when the last result is written
		}
		return nil
	}).Run(ctx)
	require.NoError(b, err)
}

func BenchmarkExponential(b *testing.B) {
	backoff := rebase.Exponential(time.Second, 5, time.Hour)
	for n := 1; b.Loop(); n++ {
		backoff(n % 20)
	}
}
