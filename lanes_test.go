package rebase_test

// J26: lanes of a task are found by themselves, share its slots fairly, and can be limited
// over all processes. What is running is counted from the rows, so nothing can be left over
// by a worker that died.

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// J26: a thousand lanes of one job each, and jobs without a lane beside them, are all run, by
// workers that were not told which lanes there are.
func TestAThousandLanesOfOneJobEachAreDrained(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	var items []rebase.Item
	for i := range 1000 {
		items = append(items, rebase.Item{Task: "laned", Options: &rebase.EnqueueOptions{Lane: fmt.Sprintf("tenant %d", i)}})
	}
	for range 100 {
		items = append(items, rebase.Item{Task: "laned"})
	}
	done, err := q.EnqueueMany(t.Context(), items)
	require.NoError(t, err)
	var ids []int64
	for _, d := range done {
		ids = append(ids, d.ID)
	}
	count := newTally()
	drain(t, pool, newWorker(t, pool, 5, "laned", count.handle, nil), newWorker(t, pool, 5, "laned", count.handle, nil))
	count.once(t, ids)
}

// J26: a job that comes in a lane of its own doesn't wait behind the hundreds of another.
func TestALaneOfManyDoesNotDelayALaneOfOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	enqueueMany(t, pool, "laned", 300, &rebase.EnqueueOptions{Lane: "many"})
	enqueueMany(t, pool, "laned", 1, &rebase.EnqueueOptions{Lane: "one"})
	enqueueMany(t, pool, "laned", 1, nil)
	var mu sync.Mutex
	var order []string
	w := newWorker(t, pool, 2, "laned", func(_ context.Context, job *rebase.Job) error {
		pause(time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		order = append(order, job.Lane)
		return nil
	}, nil)
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 302, n)
	require.Contains(t, order[:20], "one")
	require.Contains(t, order[:20], "")
}

// J26: so also when the worker knows that jobs are quick, and takes many at once: of lanes that it
// sees for the first time it takes no more each than it has free slots.
func TestAFirstLookAtLanesTakesALittleOfEach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lanes := make(chan string, 1000)
	r.handle("x", &rebase.WorkerOptions{Concurrency: 2}, func(_ context.Context, job *rebase.Job) error {
		lanes <- job.Lane
		if job.Lane != "" {
			pause(time.Millisecond) // or a slot whose goroutine the system makes wait is overtaken by twenty
		}
		return nil
	})
	r.enqueueMany("x", 100, nil)
	for range 100 {
		require.Empty(t, await(t, lanes))
	}
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	items := make([]rebase.Item, 301)
	for i := range items {
		items[i] = rebase.Item{Task: "x", Options: &rebase.EnqueueOptions{Lane: "many"}}
	}
	items[300].Options = &rebase.EnqueueOptions{Lane: "one"}
	_, err = r.q.EnqueueManyTx(t.Context(), tx, items)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	first := make([]string, 20)
	for i := range first {
		first[i] = await(t, lanes)
	}
	require.Contains(t, first, "one")
}

// J26: of ten lanes that all have plenty, none gets more than its share of the claims.
func TestLanesShareTheSlots(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for i := range 10 {
		enqueueMany(t, pool, "laned", 100, &rebase.EnqueueOptions{Lane: fmt.Sprintf("lane %d", i)})
	}
	s := newStepper(t, pool, nil, "laned")
	shares := map[string]int{}
	claimed := 0
	for round := 0; claimed < 500; round++ {
		require.Less(t, round, 500)
		holds, err := s.Claim("laned", 10, false, false)
		require.NoError(t, err)
		claimed += len(holds)
		for _, h := range holds {
			shares[h.Job().Lane]++
		}
	}
	require.Len(t, shares, 10)
	for lane, n := range shares {
		require.InDelta(t, 50, n, 15, lane)
	}
}

// J26: with LaneConcurrency 2 no lane ever has three jobs running, over two workers; every
// lane gets its two; and jobs without a lane aren't limited.
func TestLaneConcurrencyHoldsAcrossWorkers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	var mu sync.Mutex
	running, most := map[string]int{}, map[string]int{}
	count := newTally()
	handler := func(ctx context.Context, job *rebase.Job) error {
		mu.Lock()
		running[job.Lane]++
		most[job.Lane] = max(most[job.Lane], running[job.Lane])
		mu.Unlock()
		_, err := pool.Exec(ctx, "select pg_sleep(0.01)")
		mu.Lock()
		running[job.Lane]--
		mu.Unlock()
		return errorOr(err, count.handle(ctx, job))
	}
	var ids []int64
	for _, lane := range []string{"", "a", "b", "c"} {
		ids = append(ids, enqueueMany(t, pool, "laned", 40, &rebase.EnqueueOptions{Lane: lane})...)
	}
	opts := &rebase.TaskOptions{LaneConcurrency: 2}
	drain(t, pool, newWorker(t, pool, 10, "laned", handler, opts), newWorker(t, pool, 10, "laned", handler, opts))
	count.once(t, ids)
	for _, lane := range []string{"a", "b", "c"} {
		require.Equal(t, 2, most[lane], "jobs of lane %s at once", lane)
	}
	require.Greater(t, most[""], 2)
}

func errorOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// J26: two claimers that ask at the same moment, over and over, don't exceed the limit
// together: whoever counts a task's lanes does it alone.
func TestConcurrentClaimersDoNotExceedALaneLimitTogether(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	enqueueMany(t, pool, "laned", 50, &rebase.EnqueueOptions{Lane: "x"})
	enqueueMany(t, pool, "laned", 50, &rebase.EnqueueOptions{Lane: "y"})
	var all sync.WaitGroup
	for range 4 {
		s := newStepper(t, pool, &rebase.TaskOptions{LaneConcurrency: 3}, "laned")
		all.Go(func() {
			for range 10 {
				if _, err := s.Claim("laned", 5, false, false); err != nil {
					t.Errorf("claim: %v", err)
				}
			}
		})
	}
	all.Wait()
	last := newStepper(t, pool, &rebase.TaskOptions{LaneConcurrency: 3}, "laned")
	for range 10 { // those before may not all have had the lock
		_, err := last.Claim("laned", 5, false, false)
		require.NoError(t, err)
	}
	require.Equal(t, map[string]int{"x": 3, "y": 3}, runningLanes(t, pool))
}

func runningLanes(t *testing.T, pool *pgxpool.Pool) map[string]int {
	lanes := map[string]int{}
	rows, err := pool.Query(t.Context(), "select lane, count(*) from rebase.jobs where status = 'running' group by lane")
	require.NoError(t, err)
	for rows.Next() {
		var lane string
		var n int
		require.NoError(t, rows.Scan(&lane, &n))
		lanes[lane] = n
	}
	require.NoError(t, rows.Err())
	return lanes
}

// J26: a process that is frozen while it counts a task's lanes stops no claims: those of the
// task's limited lanes wait, jobs without a lane and other tasks don't.
func TestAFrozenClaimerOfLimitedLanesStopsNobodyElse(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, &rebase.TaskOptions{LaneConcurrency: 3}, "laned")
	enqueueMany(t, pool, "laned", 4, &rebase.EnqueueOptions{Lane: "x"})
	_, err := s.Claim("laned", 1, false, false) // learns that there are lanes
	require.NoError(t, err)
	frozen, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = frozen.Exec(t.Context(), "select pg_advisory_xact_lock(7237, hashtext('laned'))")
	require.NoError(t, err)
	enqueueMany(t, pool, "laned", 2, nil)
	holds, err := s.Claim("laned", 10, false, true)
	require.NoError(t, err)
	require.Len(t, holds, 2, "the jobs without a lane")
	require.NoError(t, frozen.Rollback(t.Context()))
	_, err = s.Claim("laned", 10, false, false)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"": 2, "x": 3}, runningLanes(t, pool))
}

// J26, J8: a job that was reaped is under its lane's limit too.
func TestAReapedJobWaitsForItsLane(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, &rebase.TaskOptions{LaneConcurrency: 2}, "laned")
	enqueueMany(t, pool, "laned", 2, &rebase.EnqueueOptions{Lane: "x"})
	_, err := s.Claim("laned", 1, false, false) // learns that there are lanes
	require.NoError(t, err)
	holds, err := s.Claim("laned", 5, false, false)
	require.NoError(t, err)
	require.Len(t, holds, 2)
	crashed := enqueueMany(t, pool, "laned", 1, &rebase.EnqueueOptions{Lane: "x"})
	_, err = pool.Exec(t.Context(), "update rebase.jobs set crashes = 1 where id = $1", crashed[0])
	require.NoError(t, err)

	again, err := s.Claim("laned", 1, false, true)
	require.NoError(t, err)
	require.Empty(t, again, "the lane is full")
	s.Begin(holds[0])
	s.Finish(holds[0], nil)
	require.NoError(t, s.Record())
	again, err = s.Claim("laned", 1, false, true)
	require.NoError(t, err)
	require.Len(t, again, 1)
	require.Equal(t, crashed[0], again[0].Job().ID)
}

// J26: a limited lane with a floor doesn't claim what a head look finds by its id, which would
// not count the lane: it starts from its head again.
func TestAStragglerOfALimitedLaneIsClaimedUnderTheLimit(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, &rebase.TaskOptions{LaneConcurrency: 2}, "laned")
	enqueueMany(t, pool, "laned", 5, &rebase.EnqueueOptions{Lane: "x"})
	_, err := s.Claim("laned", 1, false, false)
	require.NoError(t, err)
	holds, err := s.Claim("laned", 5, false, false)
	require.NoError(t, err)
	require.Len(t, holds, 2)
	floor := s.Floor("laned", "x")
	floor.Use()
	enqueueMany(t, pool, "laned", 1, &rebase.EnqueueOptions{Lane: "x", RunAt: time.Now().Add(-24 * time.Hour)})
	found, err := s.LookAtHead(floor)
	require.NoError(t, err)
	require.Empty(t, found, "to be claimed by id")
	at, _ := floor.Start()
	require.Zero(t, at)
	require.Equal(t, map[string]int{"x": 2}, runningLanes(t, pool))
}
