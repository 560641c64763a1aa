// Package rebaseotel gives OpenTelemetry the traces and metrics of a rebase queue, named by its
// conventions for messaging: a task is a destination, a job a message.
//
// Enqueueing makes a span of kind producer, each attempt one of kind consumer. The two belong
// together by the W3C trace context that travels in the job's Meta, so this holds over processes
// and days, and over all attempts of a job.
//
// By default an attempt's span is the root of a trace of its own and has a link to the span that
// enqueued the job, as the conventions have it: a job may run long after the request has ended,
// and more than once. With [Options].Parent it is a child of it instead, so that request,
// enqueue and processing are one tree.
//
// The error.type of a failed attempt is "panic", "goexit", "timeout", "shutdown", "lease_lost",
// a SQLSTATE, or the Go type of the innermost error. That of a failed enqueue is "canceled",
// "timeout", a SQLSTATE or a Go type.
package rebaseotel
