package rebase

import (
	"context"
	"errors"
	"runtime/debug"
	"time"
)

// One run of one handler: its context, what its panic means, and how what it
// returned is judged. A handler runs on a goroutine that takes the next job itself
// when it is done, so a job costs no hop between goroutines. No transaction is open
// and no lock is held while it runs.

type attemptState uint8

const (
	stateBuffered attemptState = iota // claimed ahead, not begun
	stateRunning                      // its handler runs and holds a slot
	stateFinished                     // its outcome waits to be recorded
	stateSettled                      // recorded, given back or lost
)

// An attempt is a claimed job. The engine's lock guards it, except for what only
// the goroutine of its handler uses.
type attempt struct {
	job      Job
	engine   *engine
	claim    *claim
	lane     *lane
	state    attemptState
	ahead    bool // claimed ahead: started_at is null in the row
	arrived  time.Time
	began    time.Time
	deadline time.Time // of this attempt; zero: none
	timeout  time.Duration
	cancel   context.CancelCauseFunc // set while the handler runs
	// abandoned: the outcome was decided without the handler, which still runs.
	abandoned bool
	refused   int  // how often the table has refused its result
	sending   bool // its result is on the wire
	proved    bool // once reaped, and no longer on probation
	lost      bool // abandoned because the claim was
	overtakes bool // claimed before the reply to the result of the job's last run
	outcome   outcome
	// completing: CompleteTx has run; whether it was committed only the row knows.
	completing bool
}

// jobContext is a handler's context: cancelled with a cause, and with the
// attempt's deadline for those who ask.
type jobContext struct {
	context.Context
	deadline time.Time
}

func (c *jobContext) Deadline() (time.Time, bool) {
	return c.deadline, !c.deadline.IsZero()
}

// slot runs a, then whatever is next, until nothing is.
func (e *engine) slot(a *attempt) {
	for a != nil {
		a = e.run(a)
	}
}

// run runs one handler and returns the next job of this slot, if there is one.
func (e *engine) run(a *attempt) (next *attempt) {
	ctx, cancel := context.WithCancelCause(e.handlers)
	defer cancel(nil)
	if !e.attach(a, cancel) {
		return nil
	}
	returned := false
	defer func() {
		if !returned { // runtime.Goexit: this goroutine ends, the slot goes on
			err := &PanicError{Stack: string(debug.Stack())}
			if next := e.finish(ctx, a, err); next != nil {
				go e.slot(next)
			}
		}
	}()
	err := call(&jobContext{ctx, a.deadline}, a.lane.task.handler, &a.job)
	returned = true
	return e.finish(ctx, a, err)
}

// attach gives the attempt its cancel function. It reports false if the attempt was
// ended between taking the slot and here; its slot is free then.
func (e *engine) attach(a *attempt, cancel context.CancelCauseFunc) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a.abandoned {
		e.abandoned--
		return false
	}
	a.cancel = cancel
	if e.cause != nil {
		cancel(e.cause)
	}
	return true
}

// call turns a panic into an error.
func call(ctx context.Context, h Handler, job *Job) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: string(debug.Stack())}
		}
	}()
	return h(ctx, job)
}

// finish hands the outcome to the recorder, frees the slot and takes the next job
// for it.
func (e *engine) finish(ctx context.Context, a *attempt, err error) *attempt {
	e.mu.Lock()
	completing := a.completing
	e.mu.Unlock()
	o := e.judge(context.Cause(ctx), a, completing, err)
	next, dropped := e.finishLocked(a, o, time.Now())
	if dropped {
		e.log.Warn("rebase: a handler has returned that no longer held its job; its result was dropped",
			"job_id", a.job.ID, "task", a.job.Task, "attempt", a.job.Attempts, "worker", e.id)
	}
	return next
}

func (e *engine) finishLocked(a *attempt, o outcome, now time.Time) (next *attempt, dropped bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.cancel = nil
	if a.abandoned {
		e.abandoned--
		return nil, a.lost
	}
	a.lane.task.learn(now.Sub(a.began))
	e.end(a)
	e.save(a, o)
	next = e.pick(now)
	if next == nil || e.buffered <= e.look.low {
		e.claimSignal.set()
	}
	return next, false
}

// The kinds of outcome are the words of the history.
const (
	kindSucceeded = "succeeded"
	kindFailed    = "failed"   // a dead letter if no attempt is left
	kindDead      = "dead"     // a dead letter at once
	kindSnoozed   = "snoozed"  // again later, attempt given back
	kindSetback   = "setback"  // infrastructure: again later, attempt given back
	kindReleased  = "released" // never begun, or interrupted: attempt given back
	kindCancelled = "cancelled"
	kindBroken    = "broken" // the row can't be read: put aside as a setback
)

// maxSetbacks is how often in a row infrastructure trouble costs no attempt.
const maxSetbacks = 25

// An outcome is what is to be written into the row.
type outcome struct {
	kind  string
	delay time.Duration
	err   string // as stored: last_error
	cause error  // as returned: for events
	// cut: the error may be that of a broken connection to the database; if it was, a
	// setback with cutDelay. See reconsider.
	cut      bool
	cutDelay time.Duration
}

// errNotCommitted is the failure of a handler that used CompleteTx and forgot to
// commit, or whose commit failed unnoticed.
var errNotCommitted = errors.New("the transaction of CompleteTx was not committed")

// judge turns what a handler returned into an outcome. cause says why the context
// ended, if it did. It calls the error's methods and other code of the user's, which may
// panic or call runtime.Goexit; that is a failure.
func (e *engine) judge(cause error, a *attempt, completing bool, err error) (o outcome) {
	if err == nil && !completing {
		return outcome{kind: kindSucceeded}
	}
	if err == nil {
		err = errNotCommitted // counts only if the row doesn't say otherwise
	}
	text := "(its text could not be read)"
	if !isolated(func() { text = errorText(err); o = e.judgeError(cause, a, err, text) }) {
		e.log.Error("rebase: what judges a handler's error called runtime.Goexit; the default is used", "worker", e.id)
		o = outcome{kind: kindFailed, delay: defaultBackoff.delay(a.job.Attempts), err: text, cause: err}
	}
	return o
}

// isolated runs the user's code in a goroutine of its own, which it may end, and says whether it
// returned.
func isolated(f func()) (returned bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
		returned = true
	}()
	<-done
	return returned
}

func (e *engine) judgeError(cause error, a *attempt, err error, text string) (o outcome) {
	defer e.guard("a handler's error", func() {
		o = outcome{kind: kindFailed, delay: defaultBackoff.delay(a.job.Attempts), err: text, cause: err}
	})
	o = outcome{err: text, cause: err}
	snooze, isSnooze := errors.AsType[*snoozeError](err)
	_, isPermanent := errors.AsType[*permanentError](err)
	switch {
	case isPermanent:
		o.kind = kindDead
	case isSnooze:
		o.kind, o.err, o.delay = kindSnoozed, "", min(max(snooze.d, minRetry), maxDelay)
	case errors.Is(err, ErrCancelled):
		o.kind = kindCancelled
	case cause == ErrShutdown || cause == ErrLeaseLost:
		o.kind = kindReleased
	case a.job.setbacks < maxSetbacks && e.infrastructure(err):
		o.kind, o.delay = kindSetback, e.delay(a, a.job.setbacks+1, err)
	default:
		o.kind, o.delay = kindFailed, e.delay(a, a.job.Attempts, err)
		if isCut(err) {
			e.suspect(a, &o, err)
		}
	}
	return o
}

// infrastructure and delay run code of the user's, which may panic; then the
// defaults hold.
func (e *engine) infrastructure(err error) (is bool) {
	defer e.guard("IsInfrastructure", func() { is = isInfrastructure(err) })
	return e.w.opts.IsInfrastructure(err)
}

func (e *engine) delay(a *attempt, n int, err error) (d time.Duration) {
	defer func() {
		eachError(err, func(err error) {
			if after, ok := err.(*retryAfterError); ok {
				d = min(max(d, after.d), maxDelay)
			}
		})
	}()
	defer e.guard("Backoff", func() { d = defaultBackoff.delay(n) })
	return a.lane.task.backoff.delay(n)
}

func (e *engine) guard(name string, instead func()) {
	if v := recover(); v != nil {
		e.log.Error("rebase: "+name+" panicked; the default is used", "panic", panicText(v), "worker", e.id)
		instead()
	}
}

// abandon decides the outcome of a running attempt without its handler: the slot is
// free at once, the handler's context ends with the cause, and whatever it returns
// is dropped. The engine's lock is held.
func (e *engine) abandon(a *attempt, cause error) {
	a.abandoned = true
	e.abandoned++
	if a.cancel != nil {
		a.cancel(cause)
	}
	e.end(a)
}
