// Telemetry: what enqueueing and processing share. Tracing must never be why a job isn't
// enqueued or fails: an instrument that can't be made does nothing, and a trace context that
// there is no room for is left out.

package rebaseotel

import (
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"
)

// Options configure Telemetry. Nil, and every zero field, is the default.
type Options struct {
	// TracerProvider makes the spans. If nil, the global one.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the metrics. If nil, the global one.
	MeterProvider metric.MeterProvider
	// Propagator writes the context into Meta and reads it from there. If nil,
	// propagation.TraceContext, and not the global one: that may carry baggage, which would
	// then stand in the database for as long as the job does.
	Propagator propagation.TextMapPropagator
	// Parent makes the span of an attempt a child of the one that enqueued the job. By default
	// it is only linked to it. It is linked in either case.
	Parent bool
}

// Telemetry makes spans and metrics. It is safe for concurrent use.
type Telemetry struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	parent     bool

	sent       metric.Int64Counter
	consumed   metric.Int64Counter
	sending    metric.Float64Histogram
	processing metric.Float64Histogram
}

const (
	scope  = "github.com/rebasejobs/rebase/otel"
	system = "rebase"

	// What the conventions have no name for stands below that of the system.
	attemptKey     = attribute.Key("messaging.rebase.attempt")
	maxAttemptsKey = attribute.Key("messaging.rebase.max_attempts")
	runKey         = attribute.Key("messaging.rebase.run")
	laneKey        = attribute.Key("messaging.rebase.lane")
	outcomeKey     = attribute.Key("messaging.rebase.outcome")
	duplicateKey   = attribute.Key("messaging.rebase.duplicate")
)

// bounds are the buckets that the conventions want, in seconds.
var bounds = metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10)

// New makes Telemetry.
func New(opts *Options) *Telemetry {
	if opts == nil {
		opts = new(Options)
	}
	tracers, meters := opts.TracerProvider, opts.MeterProvider
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	t := &Telemetry{
		tracer:     tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		propagator: opts.Propagator, parent: opts.Parent,
	}
	if t.propagator == nil {
		t.propagator = propagation.TraceContext{}
	}
	meter := meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	// After an error these do nothing, and the error goes where OpenTelemetry's own go.
	sent, err := messagingconv.NewClientSentMessages(meter)
	handle(err)
	consumed, err := messagingconv.NewClientConsumedMessages(meter)
	handle(err)
	sending, err := messagingconv.NewClientOperationDuration(meter, bounds)
	handle(err)
	processing, err := messagingconv.NewProcessDuration(meter, bounds)
	handle(err)
	t.sent, t.consumed, t.sending, t.processing = sent.Inst(), consumed.Inst(), sending.Inst(), processing.Inst()
	return t
}

func handle(err error) {
	if err != nil {
		otel.Handle(err)
	}
}

// operation are the attributes that every span and metric has.
func operation(name string, kind attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(name), kind}
}

// seconds since began.
func seconds(began time.Time) float64 { return time.Since(began).Seconds() }
