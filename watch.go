package rebase

import "time"

// The watch ends attempts whose time is up: by their timeout, or because the lease
// that they run under may have ended while the database could not be reached. It is
// one goroutine with one timer for all of them; a job costs it a comparison.

// arm makes the watch wake up at t at the latest. The engine's lock is held.
func (e *engine) arm(t time.Time) {
	if !t.IsZero() && (e.earliest.IsZero() || t.Before(e.earliest)) {
		e.earliest = t
		e.watchSignal.set()
	}
}

// watchLoop runs until the engine ends.
func (e *engine) watchLoop() {
	for !e.quitting() {
		late, next := e.expire(time.Now())
		for _, a := range late {
			e.timedOut(a)
		}
		e.watchSignal.wait(next, e.quit)
	}
}

// expire ends what has run out. It returns the attempts that have timed out, whose
// failure is still to be saved, and the time until something else runs out.
func (e *engine) expire(now time.Time) (late []*attempt, next time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.earliest = time.Time{}
	for _, c := range e.held {
		for i := range c.attempts {
			a := &c.attempts[i]
			if a.state == stateRunning && !a.abandoned && !a.deadline.IsZero() && !now.Before(a.deadline) {
				e.abandon(a, ErrTimeout)
				e.late++
				e.events.add(e.event(EventAbandoned, a, ErrTimeout))
				late = append(late, a)
				continue
			}
			e.earliest = earlier(e.earliest, e.expireOne(a, now))
		}
	}
	e.startSlots(now)
	if e.earliest.IsZero() {
		return late, -1
	}
	return late, max(e.earliest.Sub(now), 0)
}

// expireOne looks at an attempt that has not timed out and returns when to look at
// it again.
func (e *engine) expireOne(a *attempt, now time.Time) (again time.Time) {
	leaseOver := !now.Before(a.claim.deadline)
	switch {
	case a.state == stateBuffered && (leaseOver || now.Sub(a.arrived) >= maxWait):
		a.lane.task.mean = 0 // its guess was wrong: nothing ahead until it is known again
		e.unbuffer(a)
		e.save(a, outcome{kind: kindReleased})
	case a.state == stateBuffered:
		return earlier(a.claim.deadline, a.arrived.Add(maxWait))
	case a.state != stateRunning || a.abandoned:
	case !leaseOver:
		return earlier(e.proveLater(a, now), earlier(a.deadline, a.claim.deadline))
	case a.completing:
		// CompleteTx holds the row's lock: nobody can take the job.
		return a.deadline
	default:
		// The handler must stop. Its claim may still stand, though: if it returns an
		// error and the fence agrees, the attempt is given back. So it keeps its slot.
		if a.cancel != nil {
			a.cancel(ErrLeaseLost)
		}
		return a.deadline
	}
	return time.Time{}
}

// proveLater ends a running job's probation, or says when to.
func (e *engine) proveLater(a *attempt, now time.Time) time.Time {
	if a.job.crashes == 0 || a.proved {
		return time.Time{}
	}
	if until := a.began.Add(e.probation()); now.Before(until) {
		return until
	}
	e.prove(a)
	return time.Time{}
}

// prove ends the probation of a job that was once reaped: the next of them may begin, and jobs
// may be claimed ahead again. A job that kills its process does so soon, mostly; one that
// has run for a while, or has ended, must not hold up the others.
func (e *engine) prove(a *attempt) {
	if a.job.crashes == 0 || a.proved {
		return
	}
	a.proved = true
	e.reaped--
	e.look.blockedWait, e.look.woken = 0, true
	e.claimSignal.set()
}

// probation is how long a job that was once reaped runs before it counts as proved.
func (e *engine) probation() time.Duration { return min(e.w.opts.VisibilityTimeout/4, 10*time.Second) }

// earlier returns the earlier time; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// timedOut saves the failure of an attempt that was abandoned at its deadline. It
// runs the user's code, so the engine's lock is not held.
func (e *engine) timedOut(a *attempt) {
	e.log.Warn("rebase: attempt timed out; its slot is free, and what its handler still returns is dropped",
		"job_id", a.job.ID, "task", a.job.Task, "attempt", a.job.Attempts, "worker", e.id, "timeout", a.timeout)
	o := e.timeoutOutcome(a)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.late--
	if a.state == stateRunning {
		e.save(a, o)
	}
	e.changed.set()
}

// timeoutOutcome is a failure, unless the database was out of reach meanwhile: the handler may have
// waited for it.
func (e *engine) timeoutOutcome(a *attempt) outcome {
	o := outcome{kind: kindFailed, cause: ErrTimeout, err: "attempt timed out after " + a.timeout.String()}
	if !isolated(func() {
		o.delay = e.delay(a, a.job.Attempts, ErrTimeout)
		e.suspect(a, &o, ErrTimeout)
	}) {
		e.log.Error("rebase: Backoff called runtime.Goexit; the default is used", "worker", e.id)
		o.delay = defaultBackoff.delay(a.job.Attempts)
	}
	return o
}

func (e *engine) event(kind EventKind, a *attempt, err error) Event {
	return Event{Kind: kind, ID: a.job.ID, Task: a.job.Task, Lane: a.job.Lane, Worker: e.id, Attempt: a.job.Attempts, Err: err}
}
