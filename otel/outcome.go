// What an attempt's end means, by the rules of the worker: putting a job off or cancelling it is
// no error, and an attempt that has timed out has failed whatever its handler still returns. One
// thing can't be seen from here: that CompleteTx has ended the job before its handler failed.

package rebaseotel

import (
	"context"
	"errors"
	"reflect"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/rebasejobs/rebase"
)

// An outcome is how an attempt ended. errorType is "" if that is no error.
type outcome struct {
	name      string
	err       error
	errorType string
}

var errGoexit = errors.New("handler called runtime.Goexit")

// judge looks at an attempt that has ended: why its context did, if it did; what it returned, if
// it did; otherwise the value it panicked with, nil for runtime.Goexit.
func judge(cause, err error, returned bool, panicked any) outcome {
	switch {
	case cause == rebase.ErrTimeout:
		return outcome{"failed", rebase.ErrTimeout, "timeout"}
	case cause == rebase.ErrCancelled:
		return outcome{name: "cancelled"}
	case panicked != nil:
		return outcome{"panicked", &panicError{panicked}, "panic"}
	case !returned:
		return outcome{"panicked", errGoexit, "goexit"}
	case err == nil:
		return outcome{name: "succeeded"}
	case is(err, permanent):
		return outcome{"failed", err, errorType(err)}
	case is(err, snooze):
		return outcome{name: "snoozed"}
	case errors.Is(err, rebase.ErrCancelled):
		return outcome{name: "cancelled"}
	case cause == rebase.ErrShutdown:
		return outcome{"released", err, "shutdown"}
	case cause == rebase.ErrLeaseLost:
		return outcome{"released", err, "lease_lost"}
	}
	return outcome{"failed", err, errorType(err)}
}

// The types that rebase.Snooze and rebase.Permanent return are not exported.
var (
	snooze    = reflect.TypeOf(rebase.Snooze(0))
	permanent = reflect.TypeOf(rebase.Permanent(nil))
)

// is tells whether an error of the type is in the tree of err.
func is(err error, t reflect.Type) bool { return errors.As(err, reflect.New(t).Interface()) }

// errorType names the kind of an error in few words: a SQLSTATE, what the error says of itself
// by a method ErrorType, or the type of the innermost one, since those around it tell where it
// happened and not what.
func errorType(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	if _, ok := errors.AsType[interface {
		error
		ErrorType() string
	}](err); !ok {
		for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
			err = inner
		}
	}
	return semconv.ErrorType(err).Value.AsString()
}

// sendErrorType names the kind of an enqueue's error.
func sendErrorType(err error) attribute.KeyValue {
	switch {
	case errors.Is(err, context.Canceled):
		return semconv.ErrorTypeKey.String("canceled")
	case errors.Is(err, context.DeadlineExceeded):
		return semconv.ErrorTypeKey.String("timeout")
	}
	return semconv.ErrorTypeKey.String(errorType(err))
}

// wasSent tells whether an enqueue got as far as the database: what can't be stored is refused
// before.
func wasSent(err error) bool {
	_, refused := errors.AsType[*rebase.PayloadError](err)
	return !refused
}
