// The producer's side: a span round each enqueue, and its context in the Meta of the jobs. The
// caller's options and maps are never written to; a context that the caller has put into Meta
// stays, and the span is linked to it.

package rebaseotel

import (
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rebasejobs/rebase"
)

// Enqueue is rebase.Queue.Enqueue with a span. A Task makes the item:
//
//	tel.Enqueue(ctx, queue, SendWelcome.Item(Welcome{Email: "ada@example.org"}, nil))
func (t *Telemetry) Enqueue(ctx context.Context, q *rebase.Queue, item rebase.Item) (rebase.Enqueued, error) {
	return t.one(ctx, item, func(ctx context.Context, i rebase.Item) (rebase.Enqueued, error) {
		return q.Enqueue(ctx, i.Task, i.Payload, i.Options)
	})
}

// EnqueueTx is rebase.Queue.EnqueueTx with a span. The span tells of the statement: whether the
// transaction commits is not known when it ends.
func (t *Telemetry) EnqueueTx(ctx context.Context, q *rebase.Queue, tx pgx.Tx, item rebase.Item) (rebase.Enqueued, error) {
	return t.one(ctx, item, func(ctx context.Context, i rebase.Item) (rebase.Enqueued, error) {
		return q.EnqueueTx(ctx, tx, i.Task, i.Payload, i.Options)
	})
}

// EnqueueSQL is rebase.Queue.EnqueueSQL with a span.
func (t *Telemetry) EnqueueSQL(ctx context.Context, q *rebase.Queue, tx rebase.SQLTx, item rebase.Item) (rebase.Enqueued, error) {
	return t.one(ctx, item, func(ctx context.Context, i rebase.Item) (rebase.Enqueued, error) {
		return q.EnqueueSQL(ctx, tx, i.Task, i.Payload, i.Options)
	})
}

// EnqueueMany is rebase.Queue.EnqueueMany with one span, which all the jobs refer to.
func (t *Telemetry) EnqueueMany(ctx context.Context, q *rebase.Queue, items []rebase.Item) ([]rebase.Enqueued, error) {
	return t.send(ctx, items, true, q.EnqueueMany)
}

// EnqueueManyTx is rebase.Queue.EnqueueManyTx with one span, which all the jobs refer to.
func (t *Telemetry) EnqueueManyTx(ctx context.Context, q *rebase.Queue, tx pgx.Tx, items []rebase.Item) ([]rebase.Enqueued, error) {
	return t.send(ctx, items, true, func(ctx context.Context, items []rebase.Item) ([]rebase.Enqueued, error) {
		return q.EnqueueManyTx(ctx, tx, items)
	})
}

// Inject returns options with the context's span in their Meta, for enqueues that get no span
// of their own. opts may be nil and is not changed. Keys that are in Meta already stay as they
// are. If Meta has a trace context, or there is no span or no room for it, it returns opts.
func (t *Telemetry) Inject(ctx context.Context, opts *rebase.EnqueueOptions) *rebase.EnqueueOptions {
	if opts != nil && t.creation(opts).IsValid() {
		return opts
	}
	meta := propagation.MapCarrier{}
	t.propagator.Inject(ctx, meta)
	if len(meta) == 0 {
		return opts
	}
	if opts == nil {
		opts = new(rebase.EnqueueOptions)
	}
	maps.Copy(meta, opts.Meta)
	size := 0
	for key, value := range meta {
		size += len(key) + len(value)
	}
	if size > maxMeta {
		return opts
	}
	with := *opts
	with.Meta = meta
	return &with
}

// maxMeta is what the queue takes in a job's Meta.
const maxMeta = 16 << 10

// creation is the context that the caller has put into Meta, if there is one.
func (t *Telemetry) creation(opts *rebase.EnqueueOptions) trace.SpanContext {
	if opts == nil {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(opts.Meta)))
}

func (t *Telemetry) one(ctx context.Context, item rebase.Item, enqueue func(context.Context, rebase.Item) (rebase.Enqueued, error)) (rebase.Enqueued, error) {
	done, err := t.send(ctx, []rebase.Item{item}, false, func(ctx context.Context, items []rebase.Item) ([]rebase.Enqueued, error) {
		done, err := enqueue(ctx, items[0])
		return []rebase.Enqueued{done}, err
	})
	return done[0], err
}

// send wraps an enqueue. The conventions tell a batch from a single message by the function
// that was called, not by the number.
func (t *Telemetry) send(ctx context.Context, items []rebase.Item, batch bool, enqueue func(context.Context, []rebase.Item) ([]rebase.Enqueued, error)) ([]rebase.Enqueued, error) {
	if len(items) == 0 {
		return enqueue(ctx, items)
	}
	tasks := map[string]int{}
	for _, item := range items {
		tasks[item.Task]++
	}
	attrs, name := operation("enqueue", semconv.MessagingOperationTypeSend), "enqueue"
	if len(tasks) == 1 {
		attrs, name = append(attrs, semconv.MessagingDestinationName(items[0].Task)), name+" "+items[0].Task
	}
	began := time.Now()
	ctx, span := t.startSend(ctx, name, attrs, items, batch)
	defer span.End()
	with := make([]rebase.Item, len(items))
	for i, item := range items {
		with[i] = rebase.Item{Task: item.Task, Payload: item.Payload, Options: t.Inject(ctx, item.Options)}
	}
	done, err := enqueue(ctx, with)
	failure := describe(span, done, err, batch)
	t.sending.Record(ctx, seconds(began), metric.WithAttributes(append(attrs, failure...)...))
	if wasSent(err) {
		for i, e := range done {
			if e.Duplicate { // that message was sent before
				tasks[items[i].Task]--
			}
		}
		for task, n := range tasks {
			of := append(operation("enqueue", semconv.MessagingOperationTypeSend), semconv.MessagingDestinationName(task))
			t.sent.Add(ctx, int64(n), metric.WithAttributes(append(of, failure...)...))
		}
	}
	return done, err
}

// startSend begins the span. Its kind is producer if its context goes into a job; if all the
// jobs have one of the caller's, it is only the call of the database, linked to those.
func (t *Telemetry) startSend(ctx context.Context, name string, attrs []attribute.KeyValue, items []rebase.Item, batch bool) (context.Context, trace.Span) {
	opts := []trace.SpanStartOption{trace.WithAttributes(attrs...)}
	kind := trace.SpanKindClient
	for _, item := range items {
		if custom := t.creation(item.Options); custom.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: custom}))
		} else {
			kind = trace.SpanKindProducer
		}
	}
	if batch {
		opts = append(opts, trace.WithAttributes(semconv.MessagingBatchMessageCount(len(items))))
	} else if o := items[0].Options; o != nil && o.Lane != "" {
		opts = append(opts, trace.WithAttributes(laneKey.String(o.Lane)))
	}
	return t.tracer.Start(ctx, name, append(opts, trace.WithSpanKind(kind))...)
}

// describe writes into the span what came of it, and returns the error's type, if any.
func describe(span trace.Span, done []rebase.Enqueued, err error, batch bool) []attribute.KeyValue {
	if err != nil {
		failure := sendErrorType(err)
		span.SetAttributes(failure)
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
		return []attribute.KeyValue{failure}
	}
	if !batch {
		if done[0].ID != 0 {
			span.SetAttributes(semconv.MessagingMessageID(strconv.FormatInt(done[0].ID, 10)))
		}
		if done[0].Duplicate {
			span.SetAttributes(duplicateKey.Bool(true))
		}
	}
	return nil
}
