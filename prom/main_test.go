// What the tests share: a rig is a queue on a database of its own whose metrics stand in a
// pedantic registry, which refuses what doesn't keep to its description.

package prom_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/prom"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// soonEnough bounds every wait for something that must happen; the machine may be slow.
const soonEnough = 30 * time.Second

var errBoom = errors.New("boom")

type rig struct {
	t    *testing.T
	pool *pgxpool.Pool
	q    *rebase.Queue
	m    *prom.Metrics
	reg  *prometheus.Registry
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, pool: pgtest.New(t), m: prom.New(nil), reg: prometheus.NewPedanticRegistry()}
	r.q = rebase.New(r.pool, &rebase.Options{Logger: pgtest.Logger(t), OnEvent: r.m.OnEvent})
	r.reg.MustRegister(r.m, prom.NewCollector(r.q, &prom.CollectorOptions{MaxAge: -1, Logger: pgtest.Logger(t)}))
	return r
}

func (r *rig) enqueue(task string, opts *rebase.EnqueueOptions) int64 {
	r.t.Helper()
	done, err := r.q.Enqueue(r.t.Context(), task, nil, opts)
	require.NoError(r.t, err)
	return done.ID
}

// worker makes one whose failed jobs wait for an hour.
func (r *rig) worker(opts rebase.WorkerOptions) *rebase.Worker {
	opts.Middleware = []rebase.Middleware{r.m.Middleware}
	opts.Backoff = func(int) time.Duration { return time.Hour }
	return rebase.NewWorker(r.q, &opts)
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(context.WithoutCancel(r.t.Context()), sql, args...)
	require.NoError(r.t, err)
}

// once runs what is due of a task.
func (r *rig) once(task string, opts rebase.WorkerOptions, h rebase.Handler) {
	r.t.Helper()
	w := r.worker(opts)
	w.Register(task, h, nil)
	_, err := w.RunOnce(r.t.Context())
	require.NoError(r.t, err)
}

// value returns a metric's value or, of a histogram, its number of observations.
func (r *rig) value(name, task string) float64 {
	r.t.Helper()
	v, ok := find(r.t, r.reg, name, task)
	require.True(r.t, ok, "%s{task=%q} is absent", name, task)
	return v
}

func find(t testing.TB, g prometheus.Gatherer, name, task string) (float64, bool) {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || task != "" && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() != task) {
				continue
			}
			if h := m.GetHistogram(); h != nil {
				return float64(h.GetSampleCount()), true
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue(), true
		}
	}
	return 0, false
}

// until waits for what only a scrape can tell: events come a moment after what they tell of.
func until(t testing.TB, ok func() bool, format string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(soonEnough); !ok(); {
		require.Truef(t, time.Now().Before(deadline), "waited in vain until "+format, args...)
		<-time.After(5 * time.Millisecond)
	}
}

// becomes waits until a metric has the value.
func (r *rig) becomes(name, task string, want float64) {
	r.t.Helper()
	until(r.t, func() bool { v, ok := find(r.t, r.reg, name, task); return ok && v == want }, "%s{task=%q} is %v", name, task, want)
}

func await[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(soonEnough):
		require.FailNow(t, "waited in vain")
		panic("unreachable")
	}
}

func returns(err error) rebase.Handler {
	return func(context.Context, *rebase.Job) error { return err }
}

// compare checks the named metrics against the text format.
func (r *rig) compare(want string, names ...string) {
	r.t.Helper()
	require.NoError(r.t, testutil.GatherAndCompare(r.reg, strings.NewReader(want), names...))
}
