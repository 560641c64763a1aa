// Collector (SPEC M1): what Stats says stands in a scrape, and a queue that can't be asked is a
// figure, too: no scrape fails, hangs or shows what is no longer true.

package prom_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/faultnet"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/prom"
)

// run starts a worker that ends with the test.
func (r *rig) run(w *rebase.Worker) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	r.t.Cleanup(func() { cancel(); require.NoError(r.t, await(r.t, done)) })
}

// busyQueue is the scrape of the queue in the test below.
const busyQueue = `
# HELP rebase_abandoned_handlers Handlers that run on although their attempts have timed out or lost their leases, over all live workers.
# TYPE rebase_abandoned_handlers gauge
rebase_abandoned_handlers 0
# HELP rebase_dead_letters Failed jobs that are kept, of the latest 5,000 of all tasks.
# TYPE rebase_dead_letters gauge
rebase_dead_letters{task="idle"} 0
rebase_dead_letters{task="lost"} 0
rebase_dead_letters{task="mine"} 1
rebase_dead_letters{task="paused"} 0
# HELP rebase_jobs_capped 1 if there are more unfinished jobs than were counted, so that the counts mean: at least.
# TYPE rebase_jobs_capped gauge
rebase_jobs_capped{task="idle"} 0
rebase_jobs_capped{task="lost"} 0
rebase_jobs_capped{task="mine"} 0
rebase_jobs_capped{task="paused"} 0
# HELP rebase_jobs_retrying Jobs, ready or scheduled, that have used an attempt.
# TYPE rebase_jobs_retrying gauge
rebase_jobs_retrying{task="idle"} 0
rebase_jobs_retrying{task="lost"} 0
rebase_jobs_retrying{task="mine"} 1
rebase_jobs_retrying{task="paused"} 0
# HELP rebase_jobs_running Jobs whose handlers run.
# TYPE rebase_jobs_running gauge
rebase_jobs_running{task="idle"} 0
rebase_jobs_running{task="lost"} 0
rebase_jobs_running{task="mine"} 2
rebase_jobs_running{task="paused"} 0
# HELP rebase_jobs_scheduled Jobs that are due later.
# TYPE rebase_jobs_scheduled gauge
rebase_jobs_scheduled{task="idle"} 0
rebase_jobs_scheduled{task="lost"} 0
rebase_jobs_scheduled{task="mine"} 2
rebase_jobs_scheduled{task="paused"} 0
# HELP rebase_lease_expirations_total Jobs taken back from workers that stopped renewing, ever.
# TYPE rebase_lease_expirations_total counter
rebase_lease_expirations_total 0
# HELP rebase_task_paused 1 if the task is paused. Absent while it has no jobs.
# TYPE rebase_task_paused gauge
rebase_task_paused{task="lost"} 0
rebase_task_paused{task="mine"} 0
rebase_task_paused{task="paused"} 1
# HELP rebase_task_slots How many jobs of the task can run at once, over all live workers. Absent while it has no jobs.
# TYPE rebase_task_slots gauge
rebase_task_slots{task="lost"} 0
rebase_task_slots{task="mine"} 2
rebase_task_slots{task="paused"} 2
# HELP rebase_task_unserved 1 if the task has due jobs and no live worker.
# TYPE rebase_task_unserved gauge
rebase_task_unserved{task="idle"} 0
rebase_task_unserved{task="lost"} 1
rebase_task_unserved{task="mine"} 0
rebase_task_unserved{task="paused"} 0
# HELP rebase_task_workers Live workers that serve the task.
# TYPE rebase_task_workers gauge
rebase_task_workers{task="idle"} 1
rebase_task_workers{task="lost"} 0
rebase_task_workers{task="mine"} 1
rebase_task_workers{task="paused"} 1
# HELP rebase_up 1 if the queue could be asked how it is doing, 0 if not; then what it would have said is absent.
# TYPE rebase_up gauge
rebase_up 1
# HELP rebase_workers Live workers.
# TYPE rebase_workers gauge
rebase_workers 1
`

// M1: one scrape tells of a queue with everything in it.
func TestTheFiguresOfAScrapeAreThoseOfTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("mine", &rebase.EnqueueOptions{MaxAttempts: 1})
	r.once("mine", rebase.WorkerOptions{}, returns(errBoom)) // a dead letter
	r.enqueue("mine", nil)
	r.once("mine", rebase.WorkerOptions{}, returns(errBoom)) // waits for its second attempt
	began, release := make(chan struct{}, 10), make(chan struct{})
	w := r.worker(rebase.WorkerOptions{Concurrency: 2})
	w.Register("mine", func(context.Context, *rebase.Job) error { began <- struct{}{}; <-release; return nil }, nil)
	w.Register("idle", returns(nil), nil)
	w.Register("paused", returns(nil), nil)
	require.NoError(t, r.q.PauseTask(t.Context(), "paused"))
	r.run(w)
	t.Cleanup(func() { close(release) }) // before the worker stops
	for range 2 {
		r.enqueue("mine", nil)
	}
	await(t, began)
	await(t, began)
	r.enqueue("mine", nil)
	r.enqueue("mine", nil)
	r.enqueue("mine", nil)
	r.enqueue("mine", &rebase.EnqueueOptions{Delay: time.Hour})
	r.enqueue("lost", &rebase.EnqueueOptions{RunAt: time.Now().Add(-1000 * time.Second)})
	r.enqueue("paused", nil)
	r.compare(busyQueue, "rebase_abandoned_handlers", "rebase_dead_letters", "rebase_jobs_capped", "rebase_jobs_retrying", "rebase_jobs_running",
		"rebase_jobs_scheduled", "rebase_lease_expirations_total", "rebase_task_paused", "rebase_task_slots", "rebase_task_unserved",
		"rebase_task_workers", "rebase_up", "rebase_workers")
	ready := func() float64 {
		return r.value("rebase_jobs_ready", "mine") + r.value("rebase_jobs_claimed_ahead", "mine")
	}
	require.EqualValues(t, 3, ready(), "some may be held by the worker already")
	require.EqualValues(t, 1, r.value("rebase_jobs_ready", "lost"))
	require.InDelta(t, 1000, r.value("rebase_jobs_oldest_ready_age_seconds", "lost"), 30)
}

// M1: a snapshot that somebody holds, and a lease that has run out.
func TestWhatMakesAQueueSickFromOutsideStandsInAScrape(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into rebase.counters (hour, name, value) values (now() - interval '9 hours', 'lease_expired', 3)`)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // a closed connection is released too
	_, err = tx.Exec(t.Context(), `select pg_current_xact_id()`)
	require.NoError(t, err)
	r.exec(`select pg_current_xact_id()`)
	until(t, func() bool { return r.value("rebase_horizon_age_seconds", "") > 0 }, "the horizon is old")
	require.GreaterOrEqual(t, r.value("rebase_horizon_transactions", ""), 1.0)
	require.EqualValues(t, 3, r.value("rebase_lease_expirations_total", ""))
	require.InDelta(t, 0, r.value("rebase_notification_queue_usage_ratio", ""), 0.1)
}

// M1: the conventions of Prometheus, and of OpenMetrics, where a counter's name without _total
// must not be another metric's. The task is the only label.
func TestNamesAndLabelsKeepToTheConventions(t *testing.T) {
	t.Parallel()
	reg := full(t)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
	families, err := reg.Gather()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
		require.True(t, strings.HasPrefix(f.GetName(), "rebase_"), f.GetName())
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				require.Equal(t, "task", l.GetName(), f.GetName())
			}
		}
	}
	for name := range names {
		require.False(t, names[name+"_total"], "%s and %s_total are one to OpenMetrics", name, name)
	}
}

// full is a registry in which every metric of the package has a value.
func full(t *testing.T) *prometheus.Registry {
	t.Helper()
	m := prom.New(nil)
	require.NoError(t, m.Middleware(returns(nil))(t.Context(), &rebase.Job{Task: "x"}))
	s := source(func(context.Context) (*rebase.Stats, error) {
		return &rebase.Stats{At: time.Now(), Horizon: &rebase.Horizon{Since: time.Now()}, Tasks: []rebase.TaskStats{{Task: "x"}}}, nil
	})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m, prom.NewCollector(s, nil))
	return reg
}

// A source is a Stats without a database.
type source func(context.Context) (*rebase.Stats, error)

func (s source) Stats(ctx context.Context) (*rebase.Stats, error) { return s(ctx) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func registered(c prometheus.Collector) *prometheus.Registry {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	return reg
}

// M1: a replication slot holds the horizon for a time that nobody knows, which is not 0.
func TestAHorizonOfUnknownAgeIsAbsent(t *testing.T) {
	t.Parallel()
	h := &rebase.Horizon{XIDs: 7}
	reg := registered(prom.NewCollector(source(func(context.Context) (*rebase.Stats, error) { return &rebase.Stats{Horizon: h}, nil }), nil))
	_, ok := find(t, reg, "rebase_horizon_age_seconds", "")
	require.False(t, ok)
	n, _ := find(t, reg, "rebase_horizon_transactions", "")
	require.EqualValues(t, 7, n)
}

// M1: what failed is a figure, and so is that it works again; the log has a line for each.
func TestAQueueThatCannotBeAskedIsDownAndItsFiguresAreAbsent(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	var log strings.Builder
	s := source(func(context.Context) (*rebase.Stats, error) {
		if fail.Load() {
			return nil, errors.New("no such host")
		}
		return &rebase.Stats{Tasks: []rebase.TaskStats{{Task: "x", Ready: 1}}}, nil
	})
	reg := registered(prom.NewCollector(s, &prom.CollectorOptions{MaxAge: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	figures := func() (names []string, up float64) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			names = append(names, f.GetName())
		}
		up, _ = find(t, reg, "rebase_up", "")
		return names, up
	}
	all, up := figures()
	require.EqualValues(t, 1, up)
	require.Contains(t, all, "rebase_jobs_ready")
	fail.Store(true)
	few, up := figures()
	require.EqualValues(t, 0, up)
	require.Equal(t, []string{"rebase_stats_duration_seconds", "rebase_stats_errors_total", "rebase_up"}, few)
	n, _ := find(t, reg, "rebase_stats_errors_total", "")
	require.EqualValues(t, 3, n)
	fail.Store(false)
	again, up := figures()
	require.EqualValues(t, 1, up)
	require.Equal(t, all, again)
	require.Equal(t, 1, strings.Count(log.String(), "can't be asked"), log.String())
	require.Contains(t, log.String(), "no such host")
	require.Equal(t, 1, strings.Count(log.String(), "again"), log.String())
}

// M1: a database that takes connections and never answers costs a scrape its timeout, no more.
func TestAScrapeOfADatabaseThatHangsEndsInTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	cc := pool.Config().ConnConfig
	target := fmt.Sprintf("%s:%d", cc.Host, cc.Port)
	if strings.HasPrefix(cc.Host, "/") {
		target = fmt.Sprintf("%s/.s.PGSQL.%d", cc.Host, cc.Port)
	}
	proxy, err := faultnet.Listen(target)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	behind, err := pgxpool.New(t.Context(), proxy.URL(pool.Config().ConnString()))
	require.NoError(t, err)
	t.Cleanup(behind.Close)
	reg := registered(prom.NewCollector(rebase.New(behind, nil), &prom.CollectorOptions{Timeout: 200 * time.Millisecond, MaxAge: -1, Logger: quiet()}))
	up := func() float64 { v, _ := find(t, reg, "rebase_up", ""); return v }
	until(t, func() bool { return up() == 1 }, "the queue can be asked")
	proxy.Stall(true)
	began := time.Now()
	require.Zero(t, up())
	require.Less(t, time.Since(began), 5*time.Second)
	proxy.Stall(false)
	until(t, func() bool { return up() == 1 }, "it can be asked again")
}

// M1: a pool without a free connection is no reason to hang, nor is one that is closed.
func TestAScrapeOfAPoolThatHasNothingToGiveEndsInTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	reg := registered(prom.NewCollector(rebase.New(pool, nil), &prom.CollectorOptions{Timeout: 200 * time.Millisecond, MaxAge: -1, Logger: quiet()}))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	up, _ := find(t, reg, "rebase_up", "")
	require.Zero(t, up)
	conn.Release()
	pool.Close()
	up, ok := find(t, reg, "rebase_up", "")
	require.True(t, ok)
	require.Zero(t, up)
}

// M1, cheap: scrapes that come together share one Stats.
func TestScrapesAtTheSameTimeShareOneStats(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	began, release := make(chan struct{}, 10), make(chan struct{})
	reg := registered(prom.NewCollector(source(func(context.Context) (*rebase.Stats, error) {
		asked.Add(1)
		began <- struct{}{}
		<-release
		return &rebase.Stats{}, nil
	}), &prom.CollectorOptions{MaxAge: time.Hour}))
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { _, _ = reg.Gather() })
	}
	await(t, began)
	close(release)
	wg.Wait()
	require.EqualValues(t, 1, asked.Load())
}

// M1, cheap: a Stats serves the scrapes of the next 5 s, also when it has failed.
func TestAStatsServesTheScrapesOfAFewSeconds(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"that worked": nil, "that failed": errBoom} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				reg := registered(prom.NewCollector(source(func(context.Context) (*rebase.Stats, error) {
					asked++
					return &rebase.Stats{}, err
				}), &prom.CollectorOptions{Logger: quiet()}))
				for _, step := range []struct {
					after time.Duration
					asked int
				}{{0, 1}, {4900 * time.Millisecond, 1}, {100 * time.Millisecond, 2}, {time.Second, 2}} {
					<-time.After(step.after) // by the bubble's clock
					find(t, reg, "rebase_up", "")
					require.Equal(t, step.asked, asked)
				}
			})
		})
	}
}

// M1: a series that ends when a task has no jobs could not be compared with its past.
func TestATaskOnceSeenStaysAtZero(t *testing.T) {
	t.Parallel()
	stats := &rebase.Stats{Tasks: []rebase.TaskStats{{Task: "x", Ready: 5, Slots: 2, Workers: 1}}}
	reg := registered(prom.NewCollector(source(func(context.Context) (*rebase.Stats, error) { return stats, nil }), &prom.CollectorOptions{MaxAge: -1}))
	n, _ := find(t, reg, "rebase_jobs_ready", "x")
	require.EqualValues(t, 5, n)
	stats = &rebase.Stats{Workers: []rebase.WorkerStats{{Tasks: []string{"x"}}, {Tasks: []string{"x", "y"}}}}
	got := map[string]float64{}
	for _, name := range []string{"rebase_jobs_ready", "rebase_task_workers", "rebase_task_slots", "rebase_dead_letters"} {
		for _, task := range []string{"x", "y"} {
			if v, ok := find(t, reg, name, task); ok {
				got[name+" "+task] = v
			}
		}
	}
	require.Equal(t, map[string]float64{"rebase_jobs_ready x": 0, "rebase_jobs_ready y": 0, "rebase_task_workers x": 2, "rebase_task_workers y": 1,
		"rebase_dead_letters x": 0, "rebase_dead_letters y": 0}, got, slices.Sorted(maps.Keys(got)))
}

func TestACollectorThatCannotWorkPanicsAtTheStart(t *testing.T) {
	t.Parallel()
	require.PanicsWithValue(t, "prom: NewCollector: nil source", func() { prom.NewCollector(nil, nil) })
	require.PanicsWithValue(t, "prom: NewCollector: Timeout -1s is negative",
		func() { prom.NewCollector(source(nil), &prom.CollectorOptions{Timeout: -time.Second}) })
}
