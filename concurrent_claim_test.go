package rebase_test

// Many claim at once, on servers and roles that are set up against them, and each job goes
// to exactly one. Nobody gets more than was asked for.

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// hostileSettings are settings of a role or pool that a worker must not depend on.
var hostileSettings = map[string]map[string]string{
	"repeatable read": {"default_transaction_isolation": "repeatable read"},
	"serializable":    {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
	"no index scans":  {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off", "enable_tidscan": "off"},
	"no joins":        {"enable_nestloop": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"},
	"nested loops":    {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_material": "off", "enable_memoize": "off"},
	"hash joins":      {"enable_nestloop": "off", "enable_indexscan": "off"},
	"jit":             {"jit": "on", "jit_above_cost": "1", "jit_inline_above_cost": "1", "jit_optimize_above_cost": "1"},
	"parallel":        {"max_parallel_workers_per_gather": "4", "parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0"},
	"custom plans":    {"plan_cache_mode": "force_custom_plan", "random_page_cost": "1000", "cpu_index_tuple_cost": "1000"},
	"read only":       {"default_transaction_read_only": "on"},
}

// withSettings makes a second pool on the same database.
func withSettings(t *testing.T, pool *pgxpool.Pool, settings map[string]string) *pgxpool.Pool {
	config := pool.Config()
	maps.Copy(config.ConnConfig.RuntimeParams, settings)
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	return other
}

// enqueueMany makes n jobs of the task, with payloads of an ordinary size.
func enqueueMany(t testing.TB, pool *pgxpool.Pool, task string, n int, opts *rebase.EnqueueOptions) []int64 {
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	items := make([]rebase.Item, n)
	for i := range items {
		items[i] = rebase.Item{Task: task, Payload: strings.Repeat("x", 300), Options: opts}
	}
	done, err := q.EnqueueMany(t.Context(), items)
	require.NoError(t, err)
	ids := make([]int64, n)
	for i, d := range done {
		ids[i] = d.ID
	}
	return ids
}

// A tally counts deliveries.
type tally struct {
	mu    sync.Mutex
	runs  map[int64]int
	total atomic.Int64
}

func newTally() *tally { return &tally{runs: map[int64]int{}} }

func (c *tally) handle(_ context.Context, job *rebase.Job) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[job.ID]++
	c.total.Add(1)
	return nil
}

// once says that each of the jobs was delivered exactly once, and nothing else.
func (c *tally) once(t *testing.T, ids []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		require.Equal(t, 1, c.runs[id], "deliveries of job %d", id)
	}
	require.Len(t, c.runs, len(ids))
}

// drain runs the workers until all jobs have ended, then stops them.
func drain(t *testing.T, pool *pgxpool.Pool, workers ...*rebase.Worker) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	defer all.Wait()
	defer stop()
	require.Eventually(t, func() bool { return unfinished(t, pool) == 0 }, time.Minute, 10*time.Millisecond)
}

func unfinished(t testing.TB, pool *pgxpool.Pool) (n int) {
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from rebase.jobs where finished_at is null").Scan(&n))
	return n
}

// J5, Q58: four workers under hostileSettings settings deliver each job once, and each row says so.
func TestEachJobIsDeliveredOnceWhateverTheSettingsOfTheRole(t *testing.T) {
	t.Parallel()
	for name, settings := range hostileSettings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			_, err := pool.Exec(t.Context(), "alter table rebase.jobs set (autovacuum_enabled = off)")
			require.NoError(t, err)
			_, err = pool.Exec(t.Context(), "analyze rebase.jobs, rebase.claims") // of empty tables
			require.NoError(t, err)
			ids := enqueueMany(t, pool, "count", 1500, nil)
			count := newTally()
			var workers []*rebase.Worker
			for range 4 {
				q := rebase.New(withSettings(t, pool, settings), &rebase.Options{Logger: quiet()})
				w := rebase.NewWorker(q, &rebase.WorkerOptions{Concurrency: 10})
				w.Register("count", count.handle, nil)
				workers = append(workers, w)
			}
			drain(t, pool, workers...)
			count.once(t, ids)
			var odd int
			require.NoError(t, pool.QueryRow(t.Context(),
				"select count(*) from rebase.jobs where status <> 'succeeded' or attempts <> 1 or runs <> 1 or history is not null").Scan(&odd))
			require.Zero(t, odd)
		})
	}
}

// Q16: claimers that ask at the same moment, over and over, never get more than they asked
// for, and no job twice, whatever plans the role's settings suggest.
func TestConcurrentClaimsNeverGetMoreThanAskedAndNoJobTwice(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nested loops", "hash joins", "repeatable read", "no index scans"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			ids := enqueueMany(t, pool, "count", 1000, nil)
			const claimers = 6
			got := make(chan int64, 2*len(ids))
			var all sync.WaitGroup
			for i := range claimers {
				s := newStepper(t, withSettings(t, pool, hostileSettings[name]), nil, "count")
				all.Go(func() {
					if err := claimAll(s, 3+i, got); err != nil {
						t.Errorf("claimer %d: %v", i, err)
					}
				})
			}
			all.Wait()
			close(got)
			seen := map[int64]bool{}
			for id := range got {
				require.False(t, seen[id], "job %d was claimed twice", id)
				seen[id] = true
			}
			require.Len(t, seen, len(ids))
		})
	}
}

// newStepper is an engine without loops for the tasks.
func newStepper(t testing.TB, pool *pgxpool.Pool, opts *rebase.TaskOptions, tasks ...string) *rebase.Stepper {
	w := rebase.NewWorker(rebase.New(pool, &rebase.Options{Logger: quiet()}), nil)
	for _, task := range tasks {
		w.Register(task, nothing, opts)
	}
	s := rebase.NewStepper(t.Context(), w)
	t.Cleanup(s.Close)
	return s
}

// claimAll claims n at a time until nothing is left.
func claimAll(s *rebase.Stepper, n int, got chan<- int64) error {
	for {
		holds, err := s.Claim("count", n, true, false)
		switch {
		case err != nil:
			return err
		case len(holds) > n:
			return fmt.Errorf("asked for %d, got %d", n, len(holds))
		case len(holds) == 0:
			return nil
		}
		for _, h := range holds {
			got <- h.Job().ID
		}
	}
}

// Q6: a worker whose lease ran out unnoticed claims the same job again: its first attempt has
// ended with that, and isn't kept alive by the second one's renewals.
func TestAWorkerThatClaimsItsOwnLostJobEndsTheFirstAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, nil, "count")
	enqueueMany(t, pool, "count", 1, nil)
	first, err := s.Claim("count", 1, true, false)
	require.NoError(t, err)
	require.Len(t, first, 1)
	s.Begin(first[0])
	for _, table := range []string{"jobs", "claims"} {
		_, err = pool.Exec(t.Context(), "update rebase."+table+" set locked_until = now() - interval '1 s'")
		require.NoError(t, err)
	}
	require.NoError(t, s.Reap())
	second, err := s.Claim("count", 1, false, true)
	require.NoError(t, err)
	require.Len(t, second, 1)
	require.Equal(t, first[0].Job().ID, second[0].Job().ID)
	require.True(t, first[0].Settled())
	require.False(t, second[0].Settled())
	require.EqualValues(t, 1, s.Lost())
}

// J12: a job that is due again at once may be claimed again before the reply to its result is
// there. The attempt has not lost its lease; what the reply says holds.
func TestAResultStandsWhenItsJobIsClaimedAgainBeforeTheReply(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, nil, "count")
	enqueueMany(t, pool, "count", 1, nil)
	first, err := s.Claim("count", 1, true, false)
	require.NoError(t, err)
	s.Begin(first[0])
	s.Finish(first[0], rebase.Snooze(0))
	var second []rebase.Hold
	require.NoError(t, s.RecordLate(func() {
		second = claimNow(t, pool, s)
		require.False(t, first[0].Settled(), "the reply will tell")
	}, false))
	require.True(t, first[0].Settled())
	require.False(t, second[0].Settled())
	require.Zero(t, s.Lost())
	s.Begin(second[0])
	s.Finish(second[0], nil)
	require.NoError(t, s.Record())
	require.Zero(t, s.Lost())
}

// J24: the same, and that reply never comes: the row is asked, and the second attempt goes on.
func TestALostReplyOfAJobThatIsClaimedAgainLeavesTheSecondAttemptAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	s := newStepper(t, pool, nil, "count")
	enqueueMany(t, pool, "count", 1, nil)
	first, err := s.Claim("count", 1, true, false)
	require.NoError(t, err)
	s.Begin(first[0])
	s.Finish(first[0], rebase.Snooze(0))
	var second []rebase.Hold
	require.NoError(t, s.RecordLate(func() {
		second = claimNow(t, pool, s)
		s.Begin(second[0])
		s.Finish(second[0], errBoom)
	}, true))
	require.NoError(t, s.Record())
	require.True(t, first[0].Settled())
	require.True(t, second[0].Settled())
	require.EqualValues(t, 1, s.Lost(), "of the first nobody can say more than that")
	job, err := rebase.New(pool, nil).Job(t.Context(), second[0].Job().ID)
	require.NoError(t, err)
	require.Equal(t, "boom", job.LastError)
	require.Equal(t, 1, job.Attempts)
	require.Equal(t, 2, job.Runs)
}

// claimNow claims the one job, which is due a moment later.
func claimNow(t *testing.T, pool *pgxpool.Pool, s *rebase.Stepper) []rebase.Hold {
	_, err := pool.Exec(t.Context(), "update rebase.jobs set run_at = now()")
	require.NoError(t, err)
	holds, err := s.Claim("count", 1, true, false)
	require.NoError(t, err)
	require.Len(t, holds, 1)
	return holds
}
