// Metrics: counters over events and histograms over handlers. It exists before the queue does,
// because rebase.New wants OnEvent; so it knows no queue, and several may share it.
//
// All counters of a task begin together, at 0, when the task is first seen: a counter that
// appeared with its first failure would hide that failure from rate and increase.

package prom

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebasejobs/rebase"
)

// Options configure Metrics. Nil, and every zero field, is the default.
type Options struct {
	// Buckets are the upper bounds of both histograms, in seconds, in increasing order. If
	// nil, 1 ms to 1 h in 15 steps.
	Buckets []float64
}

// defaultBuckets reach from a handler that does nothing to the default timeout of an attempt,
// 900 s, and over it, for those without one.
var defaultBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 900, 3600}

// Metrics counts events and times handlers. It is a prometheus.Collector; register it. It is
// safe for concurrent use.
type Metrics struct {
	counters map[rebase.EventKind]*prometheus.CounterVec
	duration *prometheus.HistogramVec
	wait     *prometheus.HistogramVec
	seen     sync.Map // names of tasks whose counters have begun
}

// counted are the kinds of events, and the counter of each.
var counted = []struct {
	kind rebase.EventKind
	name string
	help string
}{
	{rebase.EventEnqueued, "rebase_jobs_enqueued_total", "Jobs enqueued, those in transactions that may have rolled back included. Duplicates are not counted."},
	{rebase.EventClaimed, "rebase_jobs_claimed_total", "Jobs claimed by the workers of this process."},
	{rebase.EventSucceeded, "rebase_jobs_succeeded_total", "Jobs that ended well."},
	{rebase.EventFailed, "rebase_jobs_failed_total", "Attempts that failed and will be followed by another."},
	{rebase.EventDead, "rebase_jobs_dead_total", "Jobs that failed for good and are dead letters."},
	{rebase.EventSnoozed, "rebase_jobs_snoozed_total", "Attempts whose handler put its job off; no attempt was used."},
	{rebase.EventCancelled, "rebase_jobs_cancelled_total", "Claimed jobs that ended as cancelled."},
	{rebase.EventSetback, "rebase_jobs_setback_total", "Attempts that ended by trouble with the database's connection; no attempt was used."},
	{rebase.EventLeaseLost, "rebase_jobs_lease_lost_total", "Attempts whose lease was lost; their results were dropped."},
	{rebase.EventAbandoned, "rebase_jobs_abandoned_total", "Attempts that timed out, whose handlers may still run."},
}

// New makes Metrics. It panics on buckets that are no histogram's.
func New(opts *Options) *Metrics {
	if opts == nil {
		opts = new(Options)
	}
	buckets := opts.Buckets
	if buckets == nil {
		buckets = defaultBuckets
	}
	checkBuckets(buckets)
	m := &Metrics{counters: map[rebase.EventKind]*prometheus.CounterVec{}}
	for _, c := range counted {
		m.counters[c.kind] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: c.name, Help: c.help}, taskLabel)
	}
	m.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rebase_handler_duration_seconds", Help: "Time that handlers took, whatever came of it.", Buckets: buckets,
	}, taskLabel)
	m.wait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rebase_jobs_wait_seconds", Help: "Time from when jobs were due until a worker claimed them, by the database's clock.", Buckets: buckets,
	}, taskLabel)
	return m
}

var taskLabel = []string{"task"}

// checkBuckets finds here what would otherwise be a panic in the first handler.
func checkBuckets(buckets []float64) {
	for i, b := range buckets {
		if math.IsNaN(b) || i > 0 && b <= buckets[i-1] {
			panic(fmt.Sprintf("prom: New: Buckets[%d] = %v does not follow upon the one before it: %v", i, b, buckets))
		}
	}
}

// OnEvent counts an event. Give it to the queue as rebase.Options.OnEvent, or call it from the
// function there.
func (m *Metrics) OnEvent(ev rebase.Event) {
	m.begin(ev.Task)
	if c := m.counters[ev.Kind]; c != nil {
		c.WithLabelValues(ev.Task).Inc()
	}
}

// begin makes a task's counters.
func (m *Metrics) begin(task string) {
	if _, known := m.seen.Load(task); known {
		return
	}
	for _, c := range m.counters {
		c.WithLabelValues(task)
	}
	m.seen.Store(task, nil)
}

// Middleware times handlers. Give it to the worker in rebase.WorkerOptions.Middleware, as the
// first, to time the others too.
//
// How long a job waited is known to the moment of its claim; one that was claimed ahead may wait
// up to a second more in the worker.
func (m *Metrics) Middleware(next rebase.Handler) rebase.Handler {
	return func(ctx context.Context, job *rebase.Job) error {
		m.begin(job.Task)
		// A claimed job's UpdatedAt is the time of the claim. Both times are the database's:
		// this host's clock may be anywhere.
		m.wait.WithLabelValues(job.Task).Observe(max(job.UpdatedAt.Sub(job.RunAt), 0).Seconds())
		began := time.Now()
		// Deferred, so that a handler that panics is timed as well.
		defer func() { m.duration.WithLabelValues(job.Task).Observe(time.Since(began).Seconds()) }()
		return next(ctx, job)
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.each(func(c prometheus.Collector) { c.Describe(ch) })
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.each(func(c prometheus.Collector) { c.Collect(ch) })
}

func (m *Metrics) each(f func(prometheus.Collector)) {
	for _, c := range m.counters {
		f(c)
	}
	f(m.duration)
	f(m.wait)
}
