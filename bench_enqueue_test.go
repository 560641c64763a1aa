package rebase_test

// What the ways to enqueue cost beside BenchmarkEnqueueOne and BenchmarkEnqueue1000. Each counts
// its jobs at the end: a refused or swallowed one would be a quick one.

import (
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// A key of its own for each job, so that each is looked for and none found.
func BenchmarkEnqueueKey(b *testing.B) {
	pool := pgtest.New(b)
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		_, err := q.Enqueue(b.Context(), "bench", 1, &rebase.EnqueueOptions{IdempotencyKey: strconv.Itoa(n)})
		require.NoError(b, err)
	}
	require.Equal(b, n, newRigOn(b, pool).count("idempotency_key is not null"))
}

// The caller's transaction has nothing else in it: begin, enqueue, commit.
func BenchmarkEnqueueTx(b *testing.B) {
	pool := pgtest.New(b)
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			_, err := q.EnqueueTx(b.Context(), tx, "bench", 1, nil)
			return err
		}))
	}
	require.Equal(b, n, newRigOn(b, pool).count("true"))
}

func BenchmarkEnqueue1000Keys(b *testing.B) {
	pool := pgtest.New(b)
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	items := make([]rebase.Item, 1000)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for i := range items {
			n++
			items[i] = rebase.Item{Task: "bench", Payload: 1, Options: &rebase.EnqueueOptions{IdempotencyKey: strconv.Itoa(n)}}
		}
		_, err := q.EnqueueMany(b.Context(), items)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "jobs/s")
	require.Equal(b, n, newRigOn(b, pool).count("idempotency_key is not null"))
}
