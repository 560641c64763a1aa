// The producer's side (SPEC M2, J2, J4): spans and Meta of every way to enqueue.

package rebaseotel_test

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rebasejobs/rebase"
	rebaseotel "github.com/rebasejobs/rebase/otel"
)

// M2: the attributes that the conventions ask for, and no others.
func TestTheSpanOfAnEnqueueHasTheAttributesOfTheConventions(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	item := rebase.Item{Task: "x", Options: &rebase.EnqueueOptions{Lane: "l", IdempotencyKey: "k"}}
	first := r.enqueue(item)
	again := r.enqueue(item)
	require.Equal(t, rebase.Enqueued{ID: first.ID, Duplicate: true}, again)
	want := map[string]any{
		"messaging.system": "rebase", "messaging.operation.name": "enqueue", "messaging.operation.type": "send",
		"messaging.destination.name": "x", "messaging.message.id": strconv.FormatInt(first.ID, 10), "messaging.rebase.lane": "l",
	}
	spans := r.named("enqueue x")
	require.Equal(t, want, attrs(spans[0].Attributes))
	require.Equal(t, codes.Unset, spans[0].Status.Code)
	want["messaging.rebase.duplicate"] = true
	require.Equal(t, want, attrs(spans[1].Attributes))
	require.Equal(t, "github.com/rebasejobs/rebase/otel", spans[0].InstrumentationScope.Name)
}

// M2, J4: a duplicate sends no message, alone or in a batch.
func TestDuplicatesAreNotCountedAsSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	keyed := rebase.Item{Task: "a", Options: &rebase.EnqueueOptions{IdempotencyKey: "k"}}
	r.enqueue(keyed)
	r.enqueue(keyed)
	_, err := r.tel.EnqueueMany(t.Context(), r.q, []rebase.Item{{Task: "b"}, keyed, {Task: "a"}})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"a": 2, "b": 1}, r.counts("messaging.client.sent.messages"))
}

// M2: what the caller put into Meta stays, and his maps and options are not written to.
func TestTheContextIsAddedToACopyOfMeta(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	opts := &rebase.EnqueueOptions{MaxAttempts: 7, Lane: "l", Meta: map[string]string{"tenant": "7"}}
	done := r.enqueue(rebase.Item{Task: "x", Payload: 1, Options: opts})
	require.Equal(t, &rebase.EnqueueOptions{MaxAttempts: 7, Lane: "l", Meta: map[string]string{"tenant": "7"}}, opts)
	job := r.job(done.ID)
	require.Equal(t, 7, job.MaxAttempts)
	require.Equal(t, "l", job.Lane)
	require.Equal(t, "1", string(job.Payload))
	sc := r.only("enqueue x").SpanContext
	require.Equal(t, map[string]string{"tenant": "7", "traceparent": "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"}, job.Meta)
}

// M2: a context that the caller chose is the job's, and the span is linked to it.
func TestAContextOfTheCallersStays(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	ctx, mine := r.tracer.Start(t.Context(), "mine")
	opts := r.tel.Inject(ctx, nil)
	mine.End()
	kept := maps.Clone(opts.Meta)
	state, err := trace.ParseTraceState("vendor=other")
	require.NoError(t, err)
	other := trace.ContextWithSpanContext(t.Context(), mine.SpanContext().WithSpanID(trace.SpanID{1}).WithTraceState(state))
	require.Same(t, opts, r.tel.Inject(other, opts), "not even the tracestate of another context is added")
	done := r.enqueue(rebase.Item{Task: "x", Options: opts})
	require.Equal(t, kept, r.job(done.ID).Meta)
	span := r.only("enqueue x")
	require.Equal(t, []trace.SpanID{mine.SpanContext().SpanID()}, links(span))
	require.Equal(t, trace.SpanKindClient, span.SpanKind, "its context is no job's")
}

// M2: Inject without anything to inject, and with options that are shared.
func TestInjectReturnsWhatItWasGivenWithoutASpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	require.Nil(t, r.tel.Inject(t.Context(), nil))
	opts := &rebase.EnqueueOptions{Lane: "l"}
	require.Same(t, opts, r.tel.Inject(t.Context(), opts))
	ctx, span := r.tracer.Start(t.Context(), "mine")
	defer span.End()
	with := r.tel.Inject(ctx, opts)
	require.Nil(t, opts.Meta)
	require.Equal(t, "l", with.Lane)
	require.Contains(t, with.Meta["traceparent"], span.SpanContext().TraceID().String())
}

// M2: Meta is bounded by 16 KiB; tracing is no reason for an enqueue to fail.
func TestAContextThatMetaHasNoRoomForIsLeftOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	const header = len("traceparent") + 55
	for free, traced := range map[int]bool{0: false, header - 1: false, header: true} {
		meta := map[string]string{"k": strings.Repeat("v", 16<<10-1-free)}
		done := r.enqueue(rebase.Item{Task: "x", Options: &rebase.EnqueueOptions{Meta: meta}})
		_, ok := r.job(done.ID).Meta["traceparent"]
		require.Equal(t, traced, ok, "%d bytes free", free)
	}
}

// M2: baggage stands in the database only if the options say so, and then reaches the handler.
func TestBaggageTravelsOnlyWithAPropagatorForIt(t *testing.T) {
	t.Parallel()
	both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	for name, c := range map[string]struct {
		propagator propagation.TextMapPropagator
		want       string
	}{"by default": {nil, ""}, "with both": {both, "7"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rebaseotel.Options{Propagator: c.propagator})
			tenant, err := baggage.NewMember("tenant", "7")
			require.NoError(t, err)
			bag, err := baggage.New(tenant)
			require.NoError(t, err)
			_, err = r.tel.Enqueue(baggage.ContextWithBaggage(t.Context(), bag), r.q, rebase.Item{Task: "x"})
			require.NoError(t, err)
			got := make(chan string, 1)
			r.once("x", rebase.WorkerOptions{}, func(ctx context.Context, _ *rebase.Job) error {
				got <- baggage.FromContext(ctx).Member("tenant").Value()
				return nil
			})
			require.Equal(t, c.want, await(t, got))
			require.Len(t, r.only("process x").Links, 1)
		})
	}
}

// J2, J23: the functions for transactions are those of the queue: they roll back and commit
// with the caller's, and their jobs have the span's context.
func TestTheWaysToEnqueueInATransactionAreTheQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	db := stdlib.OpenDBFromPool(r.pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	item := rebase.Item{Task: "x"}
	within := func(tx pgx.Tx) (id int64) {
		done, err := r.tel.EnqueueTx(t.Context(), r.q, tx, item)
		require.NoError(t, err)
		_, err = r.tel.EnqueueManyTx(t.Context(), r.q, tx, []rebase.Item{item, item})
		require.NoError(t, err)
		return done.ID
	}
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	gone := within(tx)
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = r.q.Job(t.Context(), gone)
	require.ErrorIs(t, err, rebase.ErrNotFound)

	tx, err = r.pool.Begin(t.Context())
	require.NoError(t, err)
	within(tx)
	require.NoError(t, tx.Commit(t.Context()))
	std, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = r.tel.EnqueueSQL(t.Context(), r.q, std, item)
	require.NoError(t, err)
	require.NoError(t, std.Commit())
	r.once("x", rebase.WorkerOptions{}, returns(nil))
	spans := r.named("process x")
	require.Len(t, spans, 4)
	enqueues := map[trace.SpanID]int{}
	for _, s := range spans {
		require.Len(t, s.Links, 1)
		enqueues[links(s)[0]]++
	}
	require.Len(t, enqueues, 3, "one job, two jobs and one job")
	require.Len(t, r.named("enqueue x"), 5)
}

// M2: an enqueue that fails returns the queue's error and says so in its span.
func TestAnEnqueueThatFailsIsAnErrorOfItsSpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.tel.Enqueue(t.Context(), r.q, rebase.Item{Task: "refused", Payload: "\x00"})
	var refused *rebase.PayloadError
	require.ErrorAs(t, err, &refused)
	_, err = r.tel.Enqueue(ended, r.q, rebase.Item{Task: "late"})
	require.ErrorIs(t, err, context.Canceled)
	_, err = r.pool.Exec(t.Context(), `alter table rebase.jobs add constraint no check (task <> 'checked')`)
	require.NoError(t, err)
	_, err = r.tel.EnqueueMany(t.Context(), r.q, []rebase.Item{{Task: "checked"}})
	require.Error(t, err)
	for task, want := range map[string]string{"refused": "*rebase.PayloadError", "late": "canceled", "checked": "23514"} {
		span := r.only("enqueue " + task)
		require.Equal(t, codes.Error, span.Status.Code)
		require.NotEmpty(t, span.Status.Description)
		require.Equal(t, want, attrs(span.Attributes)["error.type"])
		require.Len(t, span.Events, 1)
		require.Equal(t, "exception", span.Events[0].Name)
	}
	require.Equal(t, map[string]int64{"late canceled": 1, "checked 23514": 1}, r.counts("messaging.client.sent.messages"),
		"what was refused was not sent")
}
