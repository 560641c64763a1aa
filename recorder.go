package rebase

import (
	"context"
	"errors"
	"time"
)

// The recorder does everything over the second connection: it writes results, renews
// leases, reaps, looks at the heads of lanes and deletes what is old, one after the
// other. What is due by the clock goes before results, so that a flood of results never
// keeps a lease from being renewed; but results have a turn after each duty, and the duties
// take turns, so that one that is slow, or due again at once, keeps nothing else waiting.
//
// After a lost connection the order is: renew, then results, then the rest. Nothing
// that a handler has returned is ever forgotten; the fence decides what it is worth.

// duties are the times at which the recorder's duties are due; zero is now.
type duties struct {
	renew    time.Time
	parts    time.Time // of a renewal that was refused
	heads    time.Time
	reap     time.Time
	owed     time.Time // reap what RunOnce found
	reapedAt time.Time // look for reaped jobs that are due
	purge    time.Time
	unserved time.Time
	tokens   time.Time
	fire     time.Time
	orphans  time.Time

	// The recorder's own.
	last  *time.Time // the duty of the last turn; nil: it was the results'
	first int        // the duty that is looked at first
	// singly: schedules are fired one by one, for the database refuses one of them.
	singly     bool
	undeclared []string  // schedules of the code that could not be written
	declareAt  time.Time // not before
}

func (e *engine) recordLoop() {
	var again redial
	for !e.quitting() {
		began := time.Now()
		did, wait, err := e.recordNext()
		switch {
		case err != nil && isLost(err):
			e.reachable(&e.resultsAway, began, err)
			e.untrusted()
			e.onceFailed(err)
			e.takeTurn(&again, e.quit)
		case err != nil:
			e.log.Error("rebase: a statement of the worker failed", "error", err, "worker", e.id)
			sleep(again.next(), e.quit)
		case did:
			again.reset()
			e.reachable(&e.resultsAway, began, nil)
		default:
			e.recordSignal.wait(wait, e.quit)
		}
	}
}

// quitting says whether the loops are to end.
func (e *engine) quitting() bool {
	select {
	case <-e.quit:
		return true
	default:
		return e.base.Err() != nil
	}
}

// untrusted begins anew what needs an unbroken time of reachability, and makes the
// renewal the first thing after it.
func (e *engine) untrusted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.duties.renew, e.duties.last = time.Time{}, nil
	e.trusted = time.Time{}
	e.rejoin()
}

// recordNext does one thing, or says how long there is nothing to do.
func (e *engine) recordNext() (did bool, wait time.Duration, err error) {
	ctx, now := e.base, time.Now()
	e.set(&e.beat, now)
	e.noticeSuspend(now)
	d := &e.duties
	renew := e.due(&d.renew, now)
	if d.last != nil && (!renew || d.last == &d.renew) {
		d.last = nil
		if did, err := e.recordResults(ctx, now); did || err != nil {
			return did, 0, err
		}
	}
	if renew {
		d.last = &d.renew
		return true, 0, e.renewDuty(ctx, now)
	}
	list := []struct {
		at *time.Time
		do func(context.Context, time.Time) error
	}{
		{&d.parts, e.partDuty},
		{&d.tokens, e.tokenDuty},
		{&d.fire, e.fireDuty},
		{&d.heads, e.headDuty},
		{&d.reap, e.reapDuty},
		{&d.owed, e.owedDuty},
		{&d.reapedAt, e.reapedDuty},
		{&d.unserved, e.unservedDuty},
		{&d.purge, e.purgeDuty},
		{&d.orphans, e.orphanDuty},
	}
	for i := range list {
		i = (d.first + i) % len(list)
		if duty := list[i]; e.due(duty.at, now) {
			d.last, d.first = duty.at, i+1
			return true, 0, duty.do(ctx, now)
		}
	}
	if did, err := e.recordResults(ctx, now); did || err != nil {
		return did, 0, err
	}
	return false, e.untilDuty(now), nil
}

func (e *engine) due(at *time.Time, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !at.After(now)
}

// set plans a duty.
func (e *engine) set(at *time.Time, t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*at = t
}

// never is a time that doesn't come.
var never = highest

func (e *engine) untilDuty(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := &e.duties
	next := never
	for _, t := range []time.Time{d.renew, d.parts, d.heads, d.reap, d.owed, d.reapedAt, d.purge, d.unserved, d.tokens, d.fire, d.orphans} {
		next = earlier(next, t)
	}
	for _, l := range e.later {
		next = earlier(next, l.at)
	}
	if len(e.over) > 0 {
		next = earlier(next, e.ledger.at)
	}
	return max(next.Sub(now), 0)
}

// recordResults writes one round of what handlers have returned.
func (e *engine) recordResults(ctx context.Context, now time.Time) (did bool, err error) {
	e.mu.Lock()
	doubtful := e.doubtful
	e.doubtful = nil
	later := e.later[:0]
	for _, d := range e.later {
		if d.at.After(now) { // also at a shutdown: a row that refuses must not be asked without a pause
			later = append(later, d)
		} else {
			e.reconsider(d.attempt)
			e.outbox = append(e.outbox, d.attempt)
		}
	}
	e.later = later
	var r *record
	var over []*claim
	if len(doubtful) == 0 {
		r = e.takeRecord()
		if !now.Before(e.ledger.at) {
			over, e.over = e.over, nil
		}
	}
	e.mu.Unlock()
	switch {
	case len(doubtful) > 0:
		err = e.ask(ctx, doubtful)
	case len(r.quick)+len(r.others)+len(over) == 0:
		return false, nil
	default:
		err = e.record(ctx, r, over)
		if isRefused(err) {
			err = nil // unrecorded has seen to it
		}
	}
	e.logDead()
	return true, err
}

// noticeSuspend compares the two clocks. While a machine is suspended the monotonic one stands
// still, so the local deadlines of leases know nothing of that time: they are brought forward by
// it, and the renewal comes before anything else. (A paused virtual machine can't know; there
// the fence alone decides.)
func (e *engine) noticeSuspend(now time.Time) {
	e.mu.Lock()
	gap := now.Round(0).Sub(e.turnWall) - now.Sub(e.turn)
	first := e.turn.IsZero()
	e.turn, e.turnWall = now, now.Round(0)
	if first || gap <= suspendGap {
		e.mu.Unlock()
		return
	}
	for _, c := range e.held {
		c.deadline = c.deadline.Add(-gap)
		e.arm(c.deadline)
	}
	e.mu.Unlock()
	e.log.Warn("rebase: the machine was suspended, or its clock was set forward; renewing leases", "gap", gap, "worker", e.id)
	e.untrusted()
}

// suspendGap is a difference of the clocks that no correction of the time makes in one turn.
const suspendGap = 2 * time.Second

// renewPeriod is the time between two renewals, with their heartbeat and ping.
func (e *engine) renewPeriod() time.Duration { return min(e.w.opts.VisibilityTimeout/3, pingPeriod) }

func (e *engine) renewDuty(ctx context.Context, now time.Time) error {
	e.set(&e.duties.renew, now.Add(e.renewPeriod()))
	err := e.renew(ctx)
	if err != nil {
		e.set(&e.duties.renew, now.Add(min(e.w.opts.VisibilityTimeout/15, time.Second)))
		e.set(&e.trusted, time.Time{})
	}
	return err
}

// trust keeps count of how long the database has been reachable, after a renewal that began
// then and has gone through. While it waited, others may have waited as well.
func (e *engine) trust(began time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// A process that was stopped for a while is no judge of others either: they may have
	// been stopped with it, and wake up a moment later.
	stopped := began.Sub(e.renewedAt) > e.renewPeriod()+time.Second
	if now := time.Now(); e.trusted.IsZero() || stopped || now.Sub(began) > time.Second {
		e.trusted = now
	}
	e.renewedAt, e.split.trusted = began, time.Time{}
}

func (e *engine) headDuty(ctx context.Context, now time.Time) error {
	e.mu.Lock()
	looks, next := e.headLooksDue(now)
	e.duties.heads = earlier(now.Add(floorProbe), next)
	if next.IsZero() {
		e.duties.heads = now.Add(floorProbe)
	}
	if e.look.at.After(now.Add(floorProbe)) && len(looks) == 0 && next.IsZero() {
		e.duties.heads = now.Add(time.Second) // asleep
	}
	e.mu.Unlock()
	if len(looks) == 0 {
		return nil
	}
	return e.lookAtHeads(ctx, looks)
}

// An outage is what is known of one connection, so that each change is logged once.
type outage struct {
	away   bool
	failed bool // the last round did
	stale  bool // it did not count
}

// reachable notes whether a connection works, and says so when that changes. A connection
// that broke says nothing about now, for it may have been idle since: the database is
// away if it can't be had again. Nor does a round that began before the other connection's
// last success: it may have been waiting in the outage that is over. One such is forgiven.
func (e *engine) reachable(o *outage, began time.Time, err error) {
	_, refused := errors.AsType[*connectError](err)
	e.mu.Lock()
	away := err != nil && (o.failed || refused || !isLost(err))
	if o.stale = isLost(err) && !o.stale && began.Before(e.reached); o.stale {
		away = o.away
	}
	if err == nil {
		e.reached = time.Now()
	}
	if _, archive := errors.AsType[*archiveError](err); isLost(err) && !archive { // that took too long, not the database
		e.cutAt = time.Now()
	}
	changed := o.away != away
	if err == nil && o.failed {
		close(e.returned)
		e.returned, e.nextTry = make(chan struct{}), time.Time{}
	}
	o.away, o.failed = away, err != nil
	both := e.claimsAway.away && e.resultsAway.away
	first := changed && (o.away && !both || !o.away && !(e.claimsAway.away || e.resultsAway.away))
	if changed && err == nil {
		e.look.woken = true // the claimer's connection may be dead too, and it asleep on it
		e.claimSignal.set()
	}
	e.mu.Unlock()
	switch {
	case !first:
	case away && isLost(err):
		e.log.Warn("rebase: the database can't be reached; trying again", "error", err, "worker", e.id)
	case away:
		e.log.Error("rebase: the database refuses the worker's statements; trying again", "error", err, "worker", e.id)
	default:
		e.log.Info("rebase: the database is back", "worker", e.id)
	}
}

// takeTurn waits before a loop tries the database again. A connection that broke is made
// anew at once; when that fails too the loops take turns, a second apart, so that a
// process makes one try a second while the database is away. When one of them has got
// through, the others follow at once.
func (e *engine) takeTurn(again *redial, done <-chan struct{}) {
	e.mu.Lock()
	returned, wait := e.returned, again.next()
	if again.failures > 1 {
		now := time.Now()
		wait = max(wait, e.nextTry.Sub(now))
		e.nextTry = now.Add(wait + time.Second)
	}
	e.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-returned:
	case <-done:
	}
}
