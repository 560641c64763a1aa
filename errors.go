package rebase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Every error that the package hands out by name. Sentinels are matched with
// errors.Is, types with errors.AsType. The first group is also the vocabulary
// of context.Cause in a handler: it says why the job's context ended.

var (
	// ErrNotFound says that no job (or schedule) has the given id.
	ErrNotFound = errors.New("rebase: not found")

	// ErrLeaseLost says that the attempt no longer holds its job: the lease ended
	// and somebody else took it, or an operator changed it. It is the cause of the
	// handler's context, and the error of CompleteTx.
	ErrLeaseLost = errors.New("rebase: lease lost")

	// ErrShutdown is the cause of the handler's context when the worker shuts down
	// and the handler has not returned within two thirds of the shutdown timeout.
	ErrShutdown = errors.New("rebase: worker is shutting down")

	// ErrTimeout is the cause of the handler's context when the attempt has taken
	// longer than its timeout. It matches context.DeadlineExceeded too.
	ErrTimeout error = timeoutError{}

	// ErrCancelled is the cause of the handler's context when the job was
	// cancelled. A handler that returns it ends its job as cancelled.
	ErrCancelled = errors.New("rebase: job cancelled")

	// errWorkerRunning is returned by a second Run or RunOnce at the same time.
	errWorkerRunning = errors.New("rebase: worker is already running")
)

type timeoutError struct{}

func (timeoutError) Error() string        { return "rebase: attempt timed out" }
func (timeoutError) Timeout() bool        { return true }
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// PayloadError says that a job can't be enqueued as it was given, or that the task given to
// PauseTask or ResumeTask can't be one. It is returned before any SQL is sent, so the
// caller's transaction is untouched.
type PayloadError struct {
	Index  int    // position in the batch; 0 for a single job
	Task   string // as given, shortened
	Field  string // "payload", "task", "lane", "idempotency_key", "meta", "delay", "run_at" or "max_attempts"; of a webhook also "endpoint" or "content_type"
	Reason string // what is wrong, with the value where it is short

	call string // what was refused, where that is no item of a batch
}

func (e *PayloadError) Error() string {
	call := cmp.Or(e.call, fmt.Sprintf("enqueue: item %d", e.Index))
	return fmt.Sprintf("rebase: %s: task %q: %s: %s", call, e.Task, e.Field, e.Reason)
}

// PanicError is the error of an attempt whose handler panicked or called
// runtime.Goexit.
type PanicError struct {
	Value any    // what was passed to panic; nil after runtime.Goexit
	Stack string // of the goroutine, at the panic
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "handler called runtime.Goexit\n" + e.Stack
	}
	return "panic: " + panicText(e.Value) + "\n" + e.Stack
}

// panicText formats a panic's value; formatting runs the user's code, which may
// panic itself.
func panicText(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a value of type %T that can't be formatted", v)
		}
	}()
	if err, ok := v.(error); ok {
		return err.Error()
	}
	return fmt.Sprint(v)
}

// ShutdownError is returned by Worker.Run when jobs were left behind. None is
// lost: each comes back when its lease ends.
type ShutdownError struct {
	Running    []int64 // handlers that did not return in time; they keep their claims
	Unrecorded []int64 // handlers that returned, but whose result could not be written
}

func (e *ShutdownError) Error() string {
	var parts []string
	if len(e.Running) > 0 {
		parts = append(parts, "still running: jobs "+idList(e.Running))
	}
	if len(e.Unrecorded) > 0 {
		parts = append(parts, "finished, but not recorded: jobs "+idList(e.Unrecorded))
	}
	return "rebase: shutdown: " + strings.Join(parts, "; ")
}

// idList writes at most ten ids and says how many more there are.
func idList(ids []int64) string {
	var b strings.Builder
	for i, id := range ids {
		if i == 10 {
			fmt.Fprintf(&b, " and %d more", len(ids)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatInt(id, 10))
	}
	return b.String()
}

// SchemaError is returned by Queue.Check and Worker.Run: the database can be
// reached, but the queue can't work on it as it is.
type SchemaError struct {
	Version  int    // of the schema found; 0 if there is none
	Supports int    // the newest schema version that this binary knows
	Reason   string // what is wrong and what to do
}

func (e *SchemaError) Error() string { return "rebase: schema: " + e.Reason }

// StateError is returned by an operation that the job's state doesn't allow.
type StateError struct {
	ID        int64
	Status    Status
	Operation string // "cancel", "retry" or "delete"
}

func (e *StateError) Error() string {
	return fmt.Sprintf("rebase: %s: job %d is %s", e.Operation, e.ID, e.Status)
}

// KeyTakenError is returned by Queue.Retry when a newer, unfinished job has taken
// the job's idempotency key.
type KeyTakenError struct {
	ID int64 // of the job that has the key now; 0 if it can't be seen
}

func (e *KeyTakenError) Error() string {
	return fmt.Sprintf("rebase: retry: the idempotency key is taken by job %d", e.ID)
}

// Permanent wraps a handler's error to say that trying again is useless: the job
// goes to the dead letters at once, whatever attempts it has left. A nil err is a
// failure, too: use it only where there is an error.
func Permanent(err error) error {
	return &permanentError{cmpError(err, "permanent failure")}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Snooze, returned by a handler, runs the job again after d without using an
// attempt: after 10 ms at least, and ten years at most.
func Snooze(d time.Duration) error { return &snoozeError{max(d, 0)} }

type snoozeError struct{ d time.Duration }

func (e *snoozeError) Error() string { return "rebase: snoozed for " + e.d.String() }

// RetryAfter wraps a handler's error to say that the next attempt must not start
// before d has passed: the delay is the longer of d and the backoff. The attempt
// counts. A nil err is a failure, too: use it only where there is an error.
func RetryAfter(d time.Duration, err error) error {
	return &retryAfterError{d, cmpError(err, "retry later")}
}

type retryAfterError struct {
	d   time.Duration
	err error
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// cmpError replaces a nil error, so that Permanent(nil) is still a failure.
func cmpError(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}
