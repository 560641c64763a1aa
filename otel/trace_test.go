// How spans belong together (SPEC M2): over the database, from the request to the handler, by a
// link or as one tree.

package rebaseotel_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	rebaseotel "github.com/rebasejobs/rebase/otel"
)

// request answers one HTTP request whose handler, in a span, enqueues a job.
func (r *rig) request() {
	r.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, span := r.tracer.Start(req.Context(), "POST /signup", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		_, err := r.tel.Enqueue(ctx, r.q, SendWelcome.Item(Welcome{"ada@example.org"}, nil))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, server.URL, nil)
	require.NoError(r.t, err)
	res, err := server.Client().Do(req)
	require.NoError(r.t, err)
	require.NoError(r.t, res.Body.Close())
	require.Equal(r.t, http.StatusOK, res.StatusCode)
}

// work runs the job, whose handler makes a span, too.
func (r *rig) work(opts rebase.WorkerOptions) {
	r.t.Helper()
	r.once(string(SendWelcome), opts, func(ctx context.Context, _ *rebase.Job) error {
		_, span := r.tracer.Start(ctx, "smtp")
		span.End()
		return nil
	})
}

// M2: request, enqueue, processing and what the handler does, as one tree, through the row.
func TestARequestItsJobAndTheHandlerAreOneTreeWithParent(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{Parent: true})
	r.request()
	r.work(rebase.WorkerOptions{})
	request, enqueue, process, inner := r.only("POST /signup"), r.only("enqueue send-welcome"), r.only("process send-welcome"), r.only("smtp")
	require.False(t, request.Parent.IsValid())
	for _, edge := range []struct{ child, parent tracetest.SpanStub }{{enqueue, request}, {process, enqueue}, {inner, process}} {
		require.Equal(t, edge.parent.SpanContext.SpanID(), edge.child.Parent.SpanID(), edge.child.Name)
		require.Equal(t, request.SpanContext.TraceID(), edge.child.SpanContext.TraceID(), edge.child.Name)
	}
	require.True(t, process.Parent.IsRemote())
	require.Equal(t, trace.SpanKindProducer, enqueue.SpanKind)
	require.Equal(t, trace.SpanKindConsumer, process.SpanKind)
	require.Equal(t, []trace.SpanID{enqueue.SpanContext.SpanID()}, links(process), "the conventions want the link as well")
	require.Len(t, r.spans.GetSpans(), 4)
}

// M2: by default an attempt is a trace of its own that is linked to the enqueue.
func TestAnAttemptIsATraceOfItsOwnWithALinkByDefault(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	r.request()
	r.work(rebase.WorkerOptions{})
	enqueue, process, inner := r.only("enqueue send-welcome"), r.only("process send-welcome"), r.only("smtp")
	require.False(t, process.Parent.IsValid())
	require.NotEqual(t, enqueue.SpanContext.TraceID(), process.SpanContext.TraceID())
	require.Equal(t, []trace.SpanID{enqueue.SpanContext.SpanID()}, links(process))
	require.Equal(t, enqueue.SpanContext.TraceID(), process.Links[0].SpanContext.TraceID())
	require.Equal(t, process.SpanContext.SpanID(), inner.Parent.SpanID())
}

// M2: every attempt of a job refers to the one enqueue, and says which it is.
func TestEveryAttemptIsASpanThatRefersToTheEnqueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	r.enqueue(rebase.Item{Task: "x"})
	r.once("x", rebase.WorkerOptions{}, returns(errBoom))
	spans := r.named("process x")
	require.Len(t, spans, 3)
	for i, s := range spans {
		require.Equal(t, []trace.SpanID{r.only("enqueue x").SpanContext.SpanID()}, links(s))
		require.EqualValues(t, i+1, attrs(s.Attributes)["messaging.rebase.attempt"])
	}
}

// M2: a span round the handler that is not the job's: the parent by default, else a link.
func TestASpanRoundTheHandlerIsNotLost(t *testing.T) {
	t.Parallel()
	for name, parent := range map[string]bool{"as the parent": false, "as a link": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rebaseotel.Options{Parent: parent})
			r.enqueue(SendWelcome.Item(Welcome{}, nil))
			r.work(rebase.WorkerOptions{Middleware: []rebase.Middleware{func(next rebase.Handler) rebase.Handler {
				return func(ctx context.Context, job *rebase.Job) error {
					ctx, span := r.tracer.Start(ctx, "outer")
					defer span.End()
					return next(ctx, job)
				}
			}}})
			enqueue, outer, process := r.only("enqueue send-welcome").SpanContext.SpanID(), r.only("outer").SpanContext.SpanID(), r.only("process send-welcome")
			if parent {
				require.Equal(t, enqueue, process.Parent.SpanID())
				require.Equal(t, []trace.SpanID{enqueue, outer}, links(process))
			} else {
				require.Equal(t, outer, process.Parent.SpanID())
				require.Equal(t, []trace.SpanID{enqueue}, links(process))
			}
		})
	}
}

// M2: jobs that nobody traced, such as those of schedules and of SQL.
func TestAJobWithoutAContextIsATraceOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*rebase.EnqueueOptions{
		"no meta":   nil,
		"no trace":  {Meta: map[string]string{"tenant": "7"}},
		"no sense":  {Meta: map[string]string{"traceparent": "00-xyz"}},
		"all zeros": {Meta: map[string]string{"traceparent": "00-00000000000000000000000000000000-0000000000000000-01"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rebaseotel.Options{Parent: true})
			_, err := r.q.Enqueue(t.Context(), string(SendWelcome), Welcome{}, opts)
			require.NoError(t, err)
			r.work(rebase.WorkerOptions{})
			process := r.only("process send-welcome")
			require.False(t, process.Parent.IsValid())
			require.Empty(t, process.Links)
			require.True(t, process.SpanContext.IsValid())
		})
	}
}

// M2: nor is the span round the handler taken for the one that enqueued the job.
func TestAJobWithoutAContextIsAChildOfTheSpanRoundItAndLinkedToNothing(t *testing.T) {
	t.Parallel()
	for name, parent := range map[string]bool{"by default": false, "with Parent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{t: t}
			r.observe(rebaseotel.Options{Parent: parent})
			ctx, outer := r.tracer.Start(t.Context(), "outer")
			require.NoError(t, r.tel.Middleware(returns(nil))(ctx, &rebase.Job{Task: "x"}))
			outer.End()
			process := r.only("process x")
			require.Equal(t, outer.SpanContext().SpanID(), process.Parent.SpanID())
			require.Empty(t, process.Links)
		})
	}
}

// M2: in a batch every job refers to the one span, whatever the way it was enqueued.
func TestTheJobsOfABatchReferToItsSpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	done, err := r.tel.EnqueueMany(t.Context(), r.q, []rebase.Item{{Task: "x"}, {Task: "x"}, {Task: "y"}})
	require.NoError(t, err)
	require.Len(t, done, 3)
	batch := r.only("enqueue")
	require.EqualValues(t, 3, attrs(batch.Attributes)["messaging.batch.message_count"])
	require.NotContains(t, attrs(batch.Attributes), "messaging.destination.name", "there are two")
	r.once("x", rebase.WorkerOptions{}, returns(nil))
	r.once("y", rebase.WorkerOptions{}, returns(nil))
	spans := slices.Concat(r.named("process x"), r.named("process y"))
	require.Len(t, spans, 3)
	for _, s := range spans {
		require.Equal(t, []trace.SpanID{batch.SpanContext.SpanID()}, links(s))
	}
	none, err := r.tel.EnqueueMany(t.Context(), r.q, nil)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Len(t, r.named("enqueue"), 1, "no jobs, no span")
}

// M2: without options the global providers are used, also when they are set later.
func TestTheGlobalProvidersAreTheDefault(t *testing.T) { // not parallel: it sets them
	spans := tracetest.NewInMemoryExporter()
	tel := rebaseotel.New(nil)
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	q := rebase.New(pgtest.New(t), &rebase.Options{Logger: pgtest.Logger(t)})
	done, err := tel.Enqueue(t.Context(), q, rebase.Item{Task: "x"})
	require.NoError(t, err)
	require.Len(t, spans.GetSpans(), 1)
	job, err := q.Job(t.Context(), done.ID)
	require.NoError(t, err)
	require.Contains(t, job.Meta["traceparent"], spans.GetSpans()[0].SpanContext.SpanID().String())
}
