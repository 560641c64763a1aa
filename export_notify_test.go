package rebase

import (
	"context"
	"runtime"
	"time"
)

// What the tests of waking up need from inside: whether a worker sleeps, what it has
// planned, and the planning itself without a database. An engine that is made and not
// started does no I/O, so a test can ask it what it would do next.

// peek calls f with the worker's engine, under its lock; it reports whether there is one.
func (w *Worker) peek(f func(*engine)) bool {
	w.mu.Lock()
	e := w.engine
	w.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e)
	return true
}

// Asleep says whether the worker holds its locks, knows that nobody who asked before them
// is still open, and has nothing to do.
func (w *Worker) Asleep() (yes bool) {
	w.peek(func(e *engine) {
		k := &e.look
		yes = k.locked && k.proven && !k.more && !k.woken && !k.blocked && e.running == 0 && k.at != never && time.Until(k.at) > 0
	})
	return yes
}

// Resting is Asleep, but for what other transactions of the server may still have to say.
func (w *Worker) Resting() (yes bool) {
	w.peek(func(e *engine) {
		k := &e.look
		yes = k.locked && k.series.looks == 0 && !k.more && !k.woken && !k.blocked && e.running == 0 && k.at != never && time.Until(k.at) > 0
	})
	return yes
}

// Listening says whether notifications arrive.
func (w *Worker) Listening() (yes bool) {
	w.peek(func(e *engine) { yes = e.listening })
	return yes
}

// PingOpen says whether the worker still waits for its last ping.
func (w *Worker) PingOpen() (open bool) {
	w.peek(func(e *engine) { open = !e.ping.sent.IsZero() && e.ping.seen != e.ping.nonce })
	return open
}

// Trusted is since when renewals have gone through without a break; zero: they have not.
func (w *Worker) Trusted() (since time.Time) {
	w.peek(func(e *engine) { since = e.trusted })
	return since
}

// Locked says whether the worker believes that it holds its sleep locks.
func (w *Worker) Locked() (yes bool) {
	w.peek(func(e *engine) { yes = e.look.locked })
	return yes
}

// UntilLook is how long the worker will wait before it looks, if nothing wakes it; 0 while
// it is looking.
func (w *Worker) UntilLook() (d time.Duration) {
	w.peek(func(e *engine) {
		if e.look.at != never && !e.look.more && !e.look.woken {
			d = time.Until(e.look.at)
		}
	})
	return d
}

// RenewNow makes the worker's next renewal, and with it a ping, due.
func (w *Worker) RenewNow() {
	w.peek(func(e *engine) {
		e.duties.renew = time.Time{}
		e.recordSignal.set()
	})
}

// ReapNow lets the worker reap as if it had been able to renew for a long time.
func (w *Worker) ReapNow() {
	w.trust(func(e *engine) {
		e.duties.reap = time.Time{}
		e.recordSignal.set()
	})
}

// Trust lets the worker judge others, without making it look at them now.
func (w *Worker) Trust() {
	w.trust(func(e *engine) { e.duties.reap = time.Now().Add(time.Hour) })
}

// trust waits for the first renewal, which begins the count of the reachable time anew.
func (w *Worker) trust(then func(*engine)) {
	for trusted := false; !trusted; <-time.After(time.Millisecond) {
		w.peek(func(e *engine) {
			if trusted = !e.renewedAt.IsZero(); trusted {
				e.trusted = time.Now().Add(-24 * time.Hour)
				then(e)
			}
		})
	}
}

// A Planner is an engine that isn't started, with a clock of the test's.
type Planner struct {
	e    *engine
	Now  time.Time
	plan *plan
}

// NewPlanner prepares the worker's engine.
func NewPlanner(w *Worker) *Planner {
	return &Planner{e: newEngine(context.Background(), w, false), Now: time.Now()}
}

// Look plans an idle look and reports whether it is due now.
func (p *Planner) Look() bool {
	p.plan, _, _ = p.e.plan(p.Now)
	return p.plan != nil && p.plan.idle
}

// Found ends the look: it has found nothing, and the oldest open transaction is xmin.
func (p *Planner) Found(xmin uint64) {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.e.look.more = false
	p.e.nextLook(&idleLook{next: -1, xmin: xmin}, p.Now)
}

// FoundNothing ends the look by the real clock, as the claimer does.
func (p *Planner) FoundNothing() { p.e.claimed(p.plan, nil, &idleLook{next: -1}, time.Millisecond) }

// Sleep makes the engine as it is when it has taken its locks and drawn x.
func (p *Planner) Sleep(x uint64) {
	k := &p.e.look
	p.e.listening = true
	k.locked, k.proven, k.x, k.slept, k.at = true, false, x, p.Now, time.Time{}
}

// Expect is what an EnqueueTx of this process does, By a retry or one of many workers.
func (p *Planner) Expect(task string) { p.e.expect(task) }
func (p *Planner) By(d time.Duration) {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.e.look.by(p.Now.Add(d))
}

// Reconnect lets the engine fall asleep on a connection that ends, and is followed by
// another, just after it has got the locks. It reports whether the engine believes that
// it has them.
func (p *Planner) Reconnect() bool {
	e := p.e
	e.listening, e.look.wantLock = true, true
	asleep := make(chan struct{})
	go func() {
		defer close(asleep)
		e.fallAsleep()
	}()
	for o := (*order)(nil); o == nil; runtime.Gosched() {
		e.listener.mu.Lock()
		o = e.listener.order
		e.listener.mu.Unlock()
	}
	e.deaf(errSilent)
	e.hears()
	e.listener.answer(nil, 10)
	<-asleep
	return e.look.locked
}

// Interrupt wakes an engine that waits for locks on a connection that hangs. It returns
// how long the engine went on waiting, and whether it still wants the locks.
func (p *Planner) Interrupt(task string) (waited time.Duration, wants bool) {
	e := p.e
	e.listening, e.look.wantLock = true, true
	asleep := make(chan struct{})
	go func() {
		defer close(asleep)
		e.fallAsleep()
	}()
	for o := (*order)(nil); o == nil; runtime.Gosched() {
		e.listener.mu.Lock()
		o = e.listener.order
		e.listener.mu.Unlock()
	}
	since := time.Now()
	e.wake(task)
	<-asleep
	return time.Since(since), e.listener.order != nil
}

// Order leaves an order with the listener that no connection has carried out.
func (w *Worker) Order() {
	w.peek(func(e *engine) {
		e.listener.mu.Lock()
		defer e.listener.mu.Unlock()
		e.listener.order = &order{}
	})
}

// Wait is the time until the next look.
func (p *Planner) Wait() time.Duration { return p.e.look.at.Sub(p.Now) }

// RoundTrips is how many round trips the worker has planned for each duty that has some,
// within d from now, and the look.
func (w *Worker) RoundTrips(d time.Duration) map[string]int {
	all := map[string]int{}
	w.peek(func(e *engine) {
		end := time.Now().Add(d)
		count := func(name string, next time.Time, period time.Duration) {
			for ; next.Before(end); next = next.Add(period) {
				all[name]++
			}
		}
		count("look", e.look.at, listenPoll)
		count("renew", e.duties.renew, min(w.opts.VisibilityTimeout/3, pingPeriod))
		count("reap", e.duties.reap, e.reapPeriod())
		count("fire", e.duties.fire, fireAsleep)
		count("tokens", e.duties.tokens, time.Second)
		count("purge", e.duties.purge, purgePeriod)
		count("orphans", e.duties.orphans, purgePeriod)
		count("unserved", e.duties.unserved, unservedPeriod)
		count("alive", time.Now().Add(alivePeriod-time.Second), alivePeriod)
	})
	return all
}

// Woken plays a series of two idle looks that find nothing. While the first, which had room for the
// first task only, was under way, or else right after it, a notification for that task set the time
// of the next look. It returns in how long the look after the second is.
func (p *Planner) Woken(after bool) time.Duration {
	e, now := p.e, time.Now()
	e.listening, e.look.locked, e.look.proven, e.look.at = true, true, true, time.Time{}
	first, _, _ := e.plan(now)
	e.tasks[0].looked = true
	if !after {
		e.look.by(now.Add(300 * time.Microsecond))
	}
	e.claimed(first, nil, &idleLook{next: -1}, time.Millisecond)
	if after {
		_, _, _ = e.plan(now.Add(time.Millisecond)) // it is too early for the second
		e.look.by(now.Add(1300 * time.Microsecond))
	}
	second, _, _ := e.plan(now.Add(3 * time.Millisecond))
	e.tasks[1].looked = true
	e.claimed(second, nil, &idleLook{next: -1}, time.Millisecond)
	return e.look.at.Sub(now)
}
