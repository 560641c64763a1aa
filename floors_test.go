package rebase_test

// Floors: while an old snapshot is held, claims start above the dead index entries. A floor is
// a hint, and the tests are about what it must not do: hide a job that comes in below it,
// outlive its reason, or survive a clock that is set back (Q18, Q52, Q53).

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// holdSnapshot keeps dead rows from being removed until it is released.
func holdSnapshot(t *testing.T, pool *pgxpool.Pool) (release func()) {
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "select from rebase.jobs limit 1")
	require.NoError(t, err)
	release = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(release)
	return release
}

// bury makes n jobs that have come and gone at the head of the task's lane.
func bury(t *testing.T, pool *pgxpool.Pool, n int) {
	_, err := pool.Exec(t.Context(), "insert into rebase.jobs (task, run_at) select 'floored', now() - interval '1 day' from generate_series(1, $1::int)", n)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), "update rebase.jobs set status = 'succeeded', finished_at = now() where run_at < now() - interval '23 hours'")
	require.NoError(t, err)
}

// Q52: the floor follows claims: a full one sets it exactly, also downwards; a short one only
// raises it. It stays behind the clock by the time that commits may be out of order.
func TestAFloorFollowsTheClaimsOfItsLane(t *testing.T) {
	t.Parallel()
	floor := newStepper(t, pgtest.New(t), nil, "floored").Floor("floored", "")
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	floor.Advance(ago(time.Minute), 7, 10, true, now)
	at, _ := floor.Start()
	require.Zero(t, at, "a floor that is not in use")
	floor.Use()
	start := func() (time.Time, int64) { return floor.Start() }
	expect := func(wantAt time.Time, wantID int64) {
		t.Helper()
		at, id := start()
		require.Equal(t, wantAt, at)
		require.Equal(t, wantID, id)
	}
	expect(ago(time.Minute), 7)
	floor.Advance(ago(time.Hour), 3, 10, true, now) // a full claim of older jobs
	expect(ago(time.Hour), 3)
	floor.Advance(ago(2*time.Hour), 1, 2, false, now) // a short one says only that nothing else was there
	expect(ago(time.Hour), 3)
	floor.Advance(ago(time.Hour), 9, 2, false, now) // one run_at for many ids: the pair counts
	expect(ago(time.Hour), 9)
	floor.Advance(now, 20, 10, true, now)
	expect(ago(rebase.FloorLag), 0)
}

// Q53: the clock was set back, so every new job lies below the floor. The look before a sleep
// starts at the head, finds them, and the floor is gone.
func TestAFloorAboveTheClockHidesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, nil, "floored")
	floor := s.Floor("floored", "")
	floor.Use()
	future := time.Now().Add(time.Hour) // as it was before the failover
	floor.Advance(future, 1, 10, true, future.Add(time.Minute))
	enqueueMany(t, pool, "floored", 20, nil)

	holds, err := s.Claim("floored", 5, false, false)
	require.NoError(t, err)
	require.Empty(t, holds, "the floor is in use")
	holds, err = s.IdleClaim("floored", 100) // a short one, which by itself never lowers a floor
	require.NoError(t, err)
	require.Len(t, holds, 20)
	enqueueMany(t, pool, "floored", 15, nil)
	holds, err = s.Claim("floored", 100, false, false)
	require.NoError(t, err)
	require.Len(t, holds, 15)
}

// Q18: a floor comes when looking at the head gets dear, and goes when the snapshot is gone.
func TestAFloorEndsWithTheSnapshotThatMadeItNecessary(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	_, err := pool.Exec(t.Context(), "alter table rebase.jobs set (autovacuum_enabled = off)")
	require.NoError(t, err)
	s := newStepper(t, pool, nil, "floored")
	floor := s.Floor("floored", "")
	release := holdSnapshot(t, pool)
	bury(t, pool, 20_000)
	enqueueMany(t, pool, "floored", 10, nil)
	_, err = s.Claim("floored", 5, false, false)
	require.NoError(t, err)
	require.False(t, floor.InUse())
	_, err = s.LookAtHead(floor)
	require.NoError(t, err)
	require.True(t, floor.InUse(), "a look over 20,000 dead entries takes more than 1 ms")

	release()
	require.Eventually(t, func() bool {
		_, err := pool.Exec(t.Context(), "vacuum rebase.jobs")
		require.NoError(t, err)
		_, err = s.LookAtHead(floor)
		require.NoError(t, err)
		return !floor.InUse()
	}, 30*time.Second, 50*time.Millisecond)
	holds, err := s.Claim("floored", 100, false, false)
	require.NoError(t, err)
	require.Len(t, holds, 5)
}

// Q52: a claim from the floor passes over a job below it; a head look finds it, and it is
// claimed by its id.
func TestAHeadLookFindsWhatLiesBelowTheFloor(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, nil, "floored")
	floor := s.Floor("floored", "")
	enqueueMany(t, pool, "floored", 10, &rebase.EnqueueOptions{RunAt: time.Now().Add(-time.Minute)})
	_, err := s.Claim("floored", 5, false, false)
	require.NoError(t, err)
	floor.Use()
	late := enqueueMany(t, pool, "floored", 1, &rebase.EnqueueOptions{RunAt: time.Now().Add(-time.Hour)})

	holds, err := s.Claim("floored", 3, false, false)
	require.NoError(t, err)
	require.Len(t, holds, 3)
	for _, h := range holds {
		require.NotEqual(t, late[0], h.Job().ID)
	}
	found, err := s.LookAtHead(floor)
	require.NoError(t, err)
	require.Equal(t, late, found)
	holds, err = s.ClaimIDs(found)
	require.NoError(t, err)
	require.Len(t, holds, 1)
}

// Q18, Q52: under a held snapshot a worker gets a floor by itself, and a job that comes in
// below it while a long stream keeps every claim full runs long before the stream ends.
func TestAStragglerBelowTheFloorOfABusyLaneRunsWithinABound(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	holdSnapshot(t, pool)
	bury(t, pool, 20_000)
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	var begun, straggler atomic.Int64
	ran := make(chan int64, 1)
	w := newWorker(t, pool, 4, "floored", func(_ context.Context, job *rebase.Job) error {
		n := begun.Add(1)
		if job.ID == straggler.Load() {
			ran <- n
		}
		return nil
	}, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() { stop(); require.NoError(t, <-ended) }()

	fed := int64(0)
	feed := func() { // keeps every claim full
		if fed-begun.Load() < 20_000 {
			fed += int64(len(enqueueMany(t, pool, "floored", 5000, nil)))
		}
	}
	for deadline := time.Now().Add(time.Minute); !rebase.FloorInUse(w, "floored", ""); feed() {
		require.True(t, time.Now().Before(deadline), "no floor")
	}
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	late, err := q.EnqueueTx(t.Context(), tx, "floored", nil, &rebase.EnqueueOptions{RunAt: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	straggler.Store(late.ID)
	since, at := begun.Load(), time.Now()
	require.NoError(t, tx.Commit(t.Context()))
	for {
		select {
		case n := <-ran:
			t.Logf("the straggler began after %v and %d other jobs", time.Since(at), n-since)
			require.Less(t, time.Since(at), 10*time.Second)
			return
		default:
			require.Less(t, time.Since(at), 30*time.Second, "the straggler has not run")
			feed()
		}
	}
}
