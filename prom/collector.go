// Collector: Queue.Stats as metrics. A scrape never fails and never waits for longer than its
// timeout: if the queue can't be asked, rebase_up is 0 and the figures are absent, so that
// nobody takes old ones for new. One Stats serves all scrapes of a few seconds, failed or not,
// so that a database in trouble isn't asked the more for it.

package prom

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebasejobs/rebase"
)

// A Source is what a Collector asks: *rebase.Queue has it.
type Source interface {
	Stats(ctx context.Context) (*rebase.Stats, error)
}

// CollectorOptions configure a Collector. Nil, and every zero field, is the default.
type CollectorOptions struct {
	// Timeout is how long one Stats may take; less than Prometheus's scrape_timeout. If zero,
	// 5 s.
	Timeout time.Duration
	// MaxAge is how long a Stats serves further scrapes. If zero, 5 s; if negative, every
	// scrape asks.
	MaxAge time.Duration
	// Logger is told when Stats begins to fail and when it works again. If nil,
	// slog.Default().
	Logger *slog.Logger
}

// A Collector reports Queue.Stats. It is a prometheus.Collector; register it. It is safe for
// concurrent use.
type Collector struct {
	source          Source
	timeout, maxAge time.Duration
	log             *slog.Logger

	mu    sync.Mutex // held while Stats runs: concurrent scrapes wait for the one answer
	last  answer
	fails float64
	// known are the tasks that ever had jobs or workers. They stay, at zero, when they have no
	// jobs: a series that comes and goes can't be compared with its own past.
	known map[string]bool
}

// An answer is what the last Stats said.
type answer struct {
	at    time.Time // when it came; zero before the first
	took  time.Duration
	stats *rebase.Stats // nil if it failed
	tasks []taskState
}

// A taskState is what is known of a task.
type taskState struct {
	rebase.TaskStats
	idle bool // it has no jobs: Slots and Paused aren't known
}

// NewCollector makes a Collector for the queue. It does no I/O. It panics on a nil source and a
// negative timeout.
func NewCollector(source Source, opts *CollectorOptions) *Collector {
	if opts == nil {
		opts = new(CollectorOptions)
	}
	if source == nil {
		panic("prom: NewCollector: nil source")
	}
	if opts.Timeout < 0 {
		panic(fmt.Sprintf("prom: NewCollector: Timeout %v is negative", opts.Timeout))
	}
	return &Collector{
		source:  source,
		timeout: cmp.Or(opts.Timeout, 5*time.Second), maxAge: cmp.Or(opts.MaxAge, 5*time.Second),
		log:   cmp.Or(opts.Logger, slog.Default()),
		known: map[string]bool{},
	}
}

// A figure is a metric that is computed from S.
type figure[S any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(S) (v float64, known bool)
}

func gauge[S any](name, help string, value func(S) float64, labels ...string) figure[S] {
	return figure[S]{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue, func(s S) (float64, bool) { return value(s), true }}
}

func taskGauge(name, help string, value func(*taskState) float64) figure[*taskState] {
	return gauge(name, help, value, taskLabel...)
}

// busyGauge is a taskGauge of what isn't known of a task without jobs.
func busyGauge(name, help string, value func(*taskState) float64) figure[*taskState] {
	f := taskGauge(name, help, value)
	f.value = func(t *taskState) (float64, bool) { return value(t), !t.idle }
	return f
}

// taskFigures are reported for each task. No name is that of a counter of Metrics without its
// _total: OpenMetrics would take the two for one.
var taskFigures = []figure[*taskState]{
	taskGauge("rebase_jobs_ready", "Jobs that are due and wait for a slot.", func(t *taskState) float64 { return float64(t.Ready) }),
	taskGauge("rebase_jobs_scheduled", "Jobs that are due later.", func(t *taskState) float64 { return float64(t.Scheduled) }),
	taskGauge("rebase_jobs_running", "Jobs whose handlers run.", func(t *taskState) float64 { return float64(t.Running) }),
	taskGauge("rebase_jobs_claimed_ahead", "Jobs that a worker has claimed ahead and has not begun, or began less than 30 s ago.", func(t *taskState) float64 { return float64(t.ClaimedAhead) }),
	taskGauge("rebase_jobs_retrying", "Jobs, ready or scheduled, that have used an attempt.", func(t *taskState) float64 { return float64(t.Retrying) }),
	taskGauge("rebase_jobs_capped", "1 if there are more unfinished jobs than were counted, so that the counts mean: at least.", func(t *taskState) float64 { return number(t.Capped) }),
	taskGauge("rebase_jobs_oldest_ready_age_seconds", "How long the oldest ready job has been due.", func(t *taskState) float64 { return t.OldestReady.Seconds() }),
	taskGauge("rebase_dead_letters", "Failed jobs that are kept, of the latest 5,000 of all tasks.", func(t *taskState) float64 { return float64(t.DeadLetters) }),
	taskGauge("rebase_task_workers", "Live workers that serve the task.", func(t *taskState) float64 { return float64(t.Workers) }),
	busyGauge("rebase_task_slots", "How many jobs of the task can run at once, over all live workers. Absent while it has no jobs.", func(t *taskState) float64 { return float64(t.Slots) }),
	busyGauge("rebase_task_paused", "1 if the task is paused. Absent while it has no jobs.", func(t *taskState) float64 { return number(t.Paused) }),
	taskGauge("rebase_task_unserved", "1 if the task has due jobs and no live worker.", func(t *taskState) float64 { return number(t.unserved()) }),
}

// queueFigures are reported once.
var queueFigures = []figure[*rebase.Stats]{
	gauge("rebase_workers", "Live workers.", func(s *rebase.Stats) float64 { return float64(len(s.Workers)) }),
	gauge("rebase_abandoned_handlers", "Handlers that run on although their attempts have timed out or lost their leases, over all live workers.", func(s *rebase.Stats) float64 { return float64(s.AbandonedHandlers) }),
	{prometheus.NewDesc("rebase_lease_expirations_total", "Jobs taken back from workers that stopped renewing, ever.", nil, nil), prometheus.CounterValue,
		func(s *rebase.Stats) (float64, bool) { return float64(s.Totals["lease_expired"]), true }},
	// No counter: it falls when a schedule is deleted.
	gauge("rebase_schedule_missed_slots", "Slots of the present schedules that did not fire.", func(s *rebase.Stats) float64 { return float64(s.MissedSlots) }),
	gauge("rebase_lock_waits", "Sessions that wait for a lock while they use the queue's tables.", func(s *rebase.Stats) float64 { return float64(s.LockWaits) }),
	gauge("rebase_notification_queue_usage_ratio", "How full PostgreSQL's notification queue is, from 0 to 1.", func(s *rebase.Stats) float64 { return s.NotificationQueue }),
	{prometheus.NewDesc("rebase_horizon_age_seconds", "How long the oldest snapshot has been held: what ended since can't be vacuumed. Absent if its beginning is unknown.", nil, nil), prometheus.GaugeValue, horizonAge},
	gauge("rebase_horizon_transactions", "Transactions begun since the oldest snapshot that is held.", func(s *rebase.Stats) float64 {
		if s.Horizon == nil {
			return 0
		}
		return float64(s.Horizon.XIDs)
	}),
}

var (
	upDesc   = prometheus.NewDesc("rebase_up", "1 if the queue could be asked how it is doing, 0 if not; then what it would have said is absent.", nil, nil)
	failDesc = prometheus.NewDesc("rebase_stats_errors_total", "How often this process could not ask the queue.", nil, nil)
	tookDesc = prometheus.NewDesc("rebase_stats_duration_seconds", "How long the latest question to the queue took.", nil, nil)
)

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (t *taskState) unserved() bool {
	return len((&rebase.Stats{Tasks: []rebase.TaskStats{t.TaskStats}}).Unserved()) > 0
}

// horizonAge is by the database's clock, like all that is measured there.
func horizonAge(s *rebase.Stats) (age float64, known bool) {
	switch {
	case s.Horizon == nil:
		return 0, true
	case s.Horizon.Since.IsZero(): // a replication slot doesn't tell
		return 0, false
	}
	return max(s.At.Sub(s.Horizon.Since), 0).Seconds(), true
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range taskFigures {
		ch <- f.desc
	}
	for _, f := range queueFigures {
		ch <- f.desc
	}
	ch <- upDesc
	ch <- failDesc
	ch <- tookDesc
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	a, fails := c.ask()
	ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, number(a.stats != nil))
	ch <- prometheus.MustNewConstMetric(failDesc, prometheus.CounterValue, fails)
	ch <- prometheus.MustNewConstMetric(tookDesc, prometheus.GaugeValue, a.took.Seconds())
	if a.stats == nil {
		return
	}
	for _, f := range queueFigures {
		send(ch, f, a.stats)
	}
	for i := range a.tasks {
		for _, f := range taskFigures {
			send(ch, f, &a.tasks[i], a.tasks[i].Task)
		}
	}
}

func send[S any](ch chan<- prometheus.Metric, f figure[S], s S, labels ...string) {
	if v, known := f.value(s); known {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
	}
}

// ask returns the last answer if it is young enough, else a new one.
func (c *Collector) ask() (a answer, fails float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.at.IsZero() || time.Since(c.last.at) >= c.maxAge {
		c.askLocked()
	}
	return c.last, c.fails
}

func (c *Collector) askLocked() {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	began := time.Now()
	stats, err := c.source.Stats(ctx)
	failed := !c.last.at.IsZero() && c.last.stats == nil
	c.last = answer{at: time.Now(), took: time.Since(began)}
	if err != nil {
		c.fails++
		if !failed {
			c.log.Warn("rebase: the queue can't be asked for its metrics", "error", err)
		}
		return
	}
	if failed {
		c.log.Info("rebase: the queue can be asked for its metrics again")
	}
	c.last.stats, c.last.tasks = stats, c.completeLocked(stats)
}

// completeLocked adds the tasks without jobs: those that live workers serve, and those that
// were reported before.
func (c *Collector) completeLocked(s *rebase.Stats) []taskState {
	workers := map[string]int{}
	for _, w := range s.Workers {
		for _, task := range w.Tasks {
			workers[task]++
			c.known[task] = true
		}
	}
	all := make([]taskState, 0, len(c.known))
	busy := map[string]bool{}
	for _, t := range s.Tasks {
		all = append(all, taskState{TaskStats: t})
		busy[t.Task], c.known[t.Task] = true, true
	}
	for task := range c.known {
		if !busy[task] {
			all = append(all, taskState{rebase.TaskStats{Task: task, Workers: workers[task]}, true})
		}
	}
	return all
}
