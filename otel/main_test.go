// What the tests share: a rig is a queue on a database of its own, with providers that keep
// spans and metrics in memory.

package rebaseotel_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	rebaseotel "github.com/rebasejobs/rebase/otel"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// soonEnough bounds every wait for something that must happen; the machine may be slow.
const soonEnough = 30 * time.Second

var errBoom = errors.New("boom")

type rig struct {
	t      *testing.T
	pool   *pgxpool.Pool
	q      *rebase.Queue
	tel    *rebaseotel.Telemetry
	tracer trace.Tracer
	spans  *tracetest.InMemoryExporter
	meters *metric.ManualReader
}

func newRig(t *testing.T, opts rebaseotel.Options) *rig {
	r := &rig{t: t, pool: pgtest.New(t)}
	r.q = rebase.New(r.pool, &rebase.Options{Logger: pgtest.Logger(t)})
	r.observe(opts)
	return r
}

// observe gives the rig Telemetry and what it writes to.
func (r *rig) observe(opts rebaseotel.Options) {
	r.spans, r.meters = tracetest.NewInMemoryExporter(), metric.NewManualReader()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	r.tracer = tracers.Tracer("test")
	opts.TracerProvider = tracers
	opts.MeterProvider = metric.NewMeterProvider(metric.WithReader(r.meters))
	r.tel = rebaseotel.New(&opts)
}

func (r *rig) enqueue(item rebase.Item) rebase.Enqueued {
	r.t.Helper()
	done, err := r.tel.Enqueue(r.t.Context(), r.q, item)
	require.NoError(r.t, err)
	return done
}

func (r *rig) job(id int64) *rebase.Job {
	r.t.Helper()
	job, err := r.q.Job(r.t.Context(), id)
	require.NoError(r.t, err)
	return job
}

// once runs what is due, in the context of the test; failed jobs come again at once.
func (r *rig) once(task string, opts rebase.WorkerOptions, h rebase.Handler) {
	r.t.Helper()
	opts.Middleware = append(opts.Middleware, r.tel.Middleware)
	opts.Backoff = func(int) time.Duration { return 0 }
	w := rebase.NewWorker(r.q, &opts)
	w.Register(task, h, nil)
	_, err := w.RunOnce(r.t.Context())
	require.NoError(r.t, err)
}

// named are the ended spans of the name, in the order of their ends.
func (r *rig) named(name string) tracetest.SpanStubs {
	return slices.DeleteFunc(r.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
}

func (r *rig) only(name string) tracetest.SpanStub {
	r.t.Helper()
	spans := r.named(name)
	require.Len(r.t, spans, 1, name)
	return spans[0]
}

// attrs are the attributes as a map.
func attrs(all []attribute.KeyValue) map[string]any {
	m := map[string]any{}
	for _, kv := range all {
		m[string(kv.Key)] = kv.Value.AsInterface()
	}
	return m
}

// links are the ids of the spans that a span is linked to.
func links(s tracetest.SpanStub) (ids []trace.SpanID) {
	for _, l := range s.Links {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

// metrics are what has been measured, by name.
func (r *rig) metrics() map[string]metricdata.Metrics {
	r.t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(r.t, r.meters.Collect(context.Background(), &data))
	all := map[string]metricdata.Metrics{}
	for _, s := range data.ScopeMetrics {
		require.Equal(r.t, "github.com/rebasejobs/rebase/otel", s.Scope.Name)
		for _, m := range s.Metrics {
			all[m.Name] = m
		}
	}
	return all
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

// until waits for what ends by itself, such as the span of an abandoned handler.
func until(t testing.TB, ok func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(soonEnough); !ok(); {
		require.True(t, time.Now().Before(deadline), "waited in vain until "+what)
		<-time.After(5 * time.Millisecond)
	}
}

func returns(err error) rebase.Handler {
	return func(context.Context, *rebase.Job) error { return err }
}
