// The consumer's side: a span round each attempt. It sees what the handler returns before the
// worker does, and passes all of it on as it came: errors, panics and runtime.Goexit.

package rebaseotel

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rebasejobs/rebase"
)

// Middleware makes a span for every attempt, in whose context the handler runs. Give it to the
// worker in rebase.WorkerOptions.Middleware, as the first.
//
// A context of Run's that has a span makes that the parent of every attempt, or, with
// Options.Parent, adds a link to it: give Run one without.
func (t *Telemetry) Middleware(next rebase.Handler) rebase.Handler {
	return func(ctx context.Context, job *rebase.Job) (err error) {
		began := time.Now()
		ctx, span := t.startProcess(ctx, job)
		returned := false
		defer func() {
			// The panic goes on below with the stack it came with, for the worker to see.
			v := recover()
			t.endProcess(ctx, span, job, began, judge(context.Cause(ctx), err, returned, v))
			if v != nil {
				panic(v)
			}
		}()
		err = next(ctx, job)
		returned = true
		return err
	}
}

func (t *Telemetry) startProcess(ctx context.Context, job *rebase.Job) (context.Context, trace.Span) {
	ambient := trace.SpanFromContext(ctx)
	// Without the ambient span, which a propagator that finds nothing would leave in place.
	ctx = t.propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), propagation.MapCarrier(job.Meta))
	creation := trace.SpanContextFromContext(ctx)
	var links []trace.Link
	if creation.IsValid() {
		links = append(links, trace.Link{SpanContext: creation})
	}
	switch {
	case !t.parent || !creation.IsValid():
		ctx = trace.ContextWithSpan(ctx, ambient)
	case ambient.SpanContext().IsValid():
		links = append(links, trace.Link{SpanContext: ambient.SpanContext()})
	}
	attrs := append(operation("process", semconv.MessagingOperationTypeProcess),
		semconv.MessagingDestinationName(job.Task),
		semconv.MessagingMessageID(strconv.FormatInt(job.ID, 10)),
		attemptKey.Int(job.Attempts), maxAttemptsKey.Int(job.MaxAttempts), runKey.Int(job.Runs),
	)
	if job.LockedBy != "" {
		attrs = append(attrs, semconv.MessagingClientID(job.LockedBy))
	}
	if job.Lane != "" {
		attrs = append(attrs, laneKey.String(job.Lane))
	}
	return t.tracer.Start(ctx, "process "+job.Task, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...), trace.WithLinks(links...))
}

func (t *Telemetry) endProcess(ctx context.Context, span trace.Span, job *rebase.Job, began time.Time, o outcome) {
	// Here, where a panic of the handler's has been recovered: an End that is deferred in the
	// Middleware would meet it and record it once more.
	defer span.End()
	attrs := append(operation("process", semconv.MessagingOperationTypeProcess), semconv.MessagingDestinationName(job.Task))
	span.SetAttributes(outcomeKey.String(o.name))
	if o.errorType != "" {
		failure := semconv.ErrorTypeKey.String(o.errorType)
		attrs = append(attrs, failure)
		span.SetAttributes(failure)
		span.RecordError(o.err, trace.WithStackTrace(o.name == "panicked"))
		span.SetStatus(codes.Error, o.err.Error())
	}
	of := metric.WithAttributes(attrs...)
	t.processing.Record(ctx, seconds(began), of)
	t.consumed.Add(ctx, 1, of)
}

// panicError is a panic as an error, for the span alone.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }
