// Metrics (SPEC M2): each event of a real queue is counted under its task, and each handler is
// timed, whatever it does.

package prom_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/prom"
)

// M2
func TestEveryOutcomeIsCountedUnderItsTask(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h       rebase.Handler
		opts    rebase.WorkerOptions
		max     int
		counted []string
	}{
		"succeeded":    {h: returns(nil), counted: []string{"succeeded"}},
		"failed":       {h: returns(errBoom), counted: []string{"failed"}},
		"dead":         {h: returns(errBoom), max: 1, counted: []string{"dead"}},
		"permanent":    {h: returns(rebase.Permanent(errBoom)), counted: []string{"dead"}},
		"snoozed":      {h: returns(rebase.Snooze(time.Hour)), counted: []string{"snoozed"}},
		"cancelled":    {h: returns(rebase.ErrCancelled), counted: []string{"cancelled"}},
		"a setback":    {h: returns(&pgconn.ConnectError{}), counted: []string{"setback"}},
		"a panic":      {h: func(context.Context, *rebase.Job) error { panic("boom") }, counted: []string{"failed"}},
		"a Goexit":     {h: func(context.Context, *rebase.Job) error { runtime.Goexit(); return nil }, counted: []string{"failed"}},
		"a timeout":    {h: untilDone, opts: rebase.WorkerOptions{Timeout: 20 * time.Millisecond}, counted: []string{"abandoned", "failed"}},
		"a lost lease": {counted: []string{"lease_lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if name == "a lost lease" { // somebody takes the job away
				c.h = func(_ context.Context, job *rebase.Job) error {
					r.exec(`update rebase.jobs set status = 'pending', fence = 0, locked_until = null, run_at = now() + interval '1 hour' where id = $1`, job.ID)
					return nil
				}
			}
			for range 2 {
				r.enqueue("mine", &rebase.EnqueueOptions{MaxAttempts: c.max})
			}
			r.enqueue("other", nil)
			r.once("mine", c.opts, c.h)
			want := map[string]float64{"enqueued": 2, "claimed": 2}
			for _, kind := range c.counted {
				want[kind] = 2
				r.becomes("rebase_jobs_"+kind+"_total", "mine", 2)
			}
			r.becomes("rebase_handler_duration_seconds", "mine", 2)
			r.becomes("rebase_jobs_wait_seconds", "mine", 2)
			for _, kind := range kinds(t) {
				require.Equal(t, want[kind], r.value("rebase_jobs_"+kind+"_total", "mine"), kind)
				other := 0.0
				if kind == "enqueued" {
					other = 1
				}
				require.Equal(t, other, r.value("rebase_jobs_"+kind+"_total", "other"), kind)
			}
		})
	}
}

func untilDone(ctx context.Context, _ *rebase.Job) error { <-ctx.Done(); return nil }

// kinds are the events that the core can send, read from its source: a new one without a
// counter fails the tests.
func kinds(t *testing.T) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../event.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, "Event") {
			kind, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all = append(all, kind)
		}
		return true
	})
	require.Contains(t, all, "abandoned")
	return all
}

// M2: a first failure must be an increase, so all counters of a task begin with its first event.
func TestAllCountersOfATaskBeginAtZeroTogether(t *testing.T) {
	t.Parallel()
	m := prom.New(nil)
	m.OnEvent(rebase.Event{Kind: rebase.EventEnqueued, Task: "x"})
	require.Equal(t, len(kinds(t)), testutil.CollectAndCount(m), "counters, and no histogram in a process that runs nothing")
}

// M2: Metrics may be asked before anything has happened, and by many at once.
func TestMetricsAreEmptyBeforeTheFirstEventAndSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	m := prom.New(nil)
	require.Zero(t, testutil.CollectAndCount(m))
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 500 {
				m.OnEvent(rebase.Event{Kind: rebase.EventSucceeded, Task: "x"})
				testutil.CollectAndCount(m, "rebase_jobs_succeeded_total")
			}
		}()
	}
	for range 4 {
		await(t, done)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	n, _ := find(t, reg, "rebase_jobs_succeeded_total", "x")
	require.EqualValues(t, 2000, n)
}

// M2, J22: the wait is from when the job was due, by the database's clock.
func TestTheWaitIsMeasuredFromWhenTheJobWasDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("x", &rebase.EnqueueOptions{RunAt: time.Now().Add(-100 * time.Second)})
	r.once("x", rebase.WorkerOptions{}, returns(nil))
	families, err := r.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "rebase_jobs_wait_seconds" {
			require.InDelta(t, 100, f.GetMetric()[0].GetHistogram().GetSampleSum(), 30)
			return
		}
	}
	require.FailNow(t, "no wait was measured")
}

// M2: the time is the handler's own, also of one that panics.
func TestAHandlerIsTimedFromItsBeginningToItsEndOrPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := prom.New(nil)
		h := m.Middleware(func(_ context.Context, job *rebase.Job) error {
			<-time.After(2 * time.Second) // by the bubble's clock
			if job.ID == 2 {
				panic("boom")
			}
			return errBoom
		})
		require.Equal(t, errBoom, h(t.Context(), &rebase.Job{ID: 1, Task: "x"}))
		require.PanicsWithValue(t, "boom", func() { _ = h(t.Context(), &rebase.Job{ID: 2, Task: "x"}) })
		families, err := registered(m).Gather()
		require.NoError(t, err)
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "rebase_handler_duration_seconds" })
		require.Equal(t, 4.0, families[i].GetMetric()[0].GetHistogram().GetSampleSum())
	})
}

func TestBucketsAreTheCallersAndBadOnesPanicAtTheStart(t *testing.T) {
	t.Parallel()
	m := prom.New(&prom.Options{Buckets: []float64{1, 2}})
	require.NoError(t, m.Middleware(returns(nil))(t.Context(), &rebase.Job{Task: "x"}))
	require.NoError(t, testutil.CollectAndCompare(m, strings.NewReader(`
# HELP rebase_jobs_wait_seconds Time from when jobs were due until a worker claimed them, by the database's clock.
# TYPE rebase_jobs_wait_seconds histogram
rebase_jobs_wait_seconds_bucket{task="x",le="1"} 1
rebase_jobs_wait_seconds_bucket{task="x",le="2"} 1
rebase_jobs_wait_seconds_bucket{task="x",le="+Inf"} 1
rebase_jobs_wait_seconds_sum{task="x"} 0
rebase_jobs_wait_seconds_count{task="x"} 1
`), "rebase_jobs_wait_seconds"))
	require.PanicsWithValue(t, "prom: New: Buckets[1] = 1 does not follow upon the one before it: [1 1]",
		func() { prom.New(&prom.Options{Buckets: []float64{1, 1}}) })
}
