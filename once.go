package rebase

import (
	"cmp"
	"context"
	"time"
)

// RunOnce is the same engine, which ends when nothing is due. Nobody may reap who has not been able
// to renew for as long as the holders of leases need to be back after an outage, and a RunOnce has
// only just begun. So it looks for what has expired at its start. Only if there is something does
// it stay for that long, working meanwhile, and then take back what has still not been renewed.

// An owing is what RunOnce found expired and has still to take back.
type owing struct {
	tokens []int64
	wait   time.Duration // for how long renewals must have gone through
	end    time.Time     // then it is left to others
	// idle is the count of idle looks at which one has ended that began after the reaping: one may
	// have been under way, so it is the second.
	idle int64
}

// firstLook finds, for RunOnce, what has expired, and fires what is due.
func (e *engine) firstLook() error {
	expired, _, lease, err := e.expiredClaims(e.base, 365*24*time.Hour)
	if err != nil {
		return err
	}
	if len(expired) > 0 {
		now, wait := time.Now(), backWithin(lease)
		e.mu.Lock()
		e.owed = owing{tokens: expired, wait: wait, end: now.Add(3 * wait)}
		e.duties.owed = now.Add(wait)
		e.mu.Unlock()
		e.log.Info("rebase: RunOnce found leases that have expired; it gives their workers time to renew them, and takes back the rest",
			"count", len(expired), "wait", wait, "worker", e.id)
	}
	return e.fireOnce(e.base)
}

// backWithin is how long after an outage the holder of such a lease renews it at the latest: a
// renewal period, and before it a try to connect that hangs and the pause until the next.
func backWithin(lease time.Duration) time.Duration {
	return min(lease/3, pingPeriod) + min(lease/3, 10*time.Second) + maxRedial
}

// owedDuty takes back what RunOnce found expired, when it may. The leases are checked again
// under the rows' locks.
func (e *engine) owedDuty(ctx context.Context, now time.Time) error {
	e.mu.Lock()
	o, ready, next := e.owed, e.trusted.Add(e.owed.wait), never
	early := e.trusted.IsZero() || now.Before(ready)
	if early && now.Before(o.end) {
		if next = ready; e.trusted.IsZero() {
			next = now.Add(time.Second)
		}
	}
	e.duties.owed = next
	e.mu.Unlock()
	if next != never {
		return nil
	}
	if early {
		e.log.Warn("rebase: RunOnce leaves leases that have expired to others: it could not renew for long enough without a break",
			"count", len(o.tokens), "worker", e.id)
	} else if rest, err := e.reapClaims(ctx, o.tokens, false, now); err != nil {
		e.onceFailed(err)
		return err
	} else if len(rest) > 0 {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.owed.tokens, e.duties.owed = rest, time.Now().Add(reapPause)
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.owed = owing{idle: e.look.idle + 2}
	e.changed.set()
	return nil
}

// drained says whether RunOnce is done: nothing is owed, and an idle look that began when
// nothing was running or unrecorded found nothing that is due. After an error it waits for
// the handlers, but not for results that can't be written: shutDown does, for a time.
func (e *engine) drained() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.look
	switch {
	case e.running > 0 || e.late > 0 || e.buffered > 0:
		return false
	case e.onceErr != nil:
		return true
	case len(e.owed.tokens) > 0:
		return false
	case len(e.tasks) == 0:
		return true
	case e.unsaved > 0 || len(e.over) > 0 && e.ledger.refused == 0 || k.more || k.woken:
		return false
	}
	if k.idle == 0 || k.idle < e.owed.idle || k.idleSaw != e.attempts {
		k.woken = true
		e.claimSignal.set()
		return false
	}
	return k.idleDue < 0 || k.idleDue > 2*minRetry
}

// onceFailed ends RunOnce at the first error of a claim, or when results can't be
// written.
func (e *engine) onceFailed(err error) bool {
	if !e.once {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onceErr = cmp.Or(e.onceErr, err)
	e.changed.set()
	return true
}
