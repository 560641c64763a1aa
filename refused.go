package rebase

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Rounds of results that failed: what becomes of the results, and when they are sent again.

// unrecorded puts a round's jobs back. After anything but a lost connection one of
// them may be to blame: from then on each goes alone, until all have gone through. It
// returns what the error was.
func (e *engine) unrecorded(r *record, over []*claim, err error) error {
	err = asRefused(err)
	a, ledger := e.putBack(r, over, err)
	if ledger {
		e.log.Warn("rebase: rows of rebase.claims can't be deleted; it is tried again", "error", err, "worker", e.id)
	}
	if a != nil {
		e.log.Error("rebase: a result can't be recorded; it is tried again", "job_id", a.job.ID, "task", a.job.Task, "error", err, "worker", e.id)
	}
	return err
}

// A postponed piece of work was refused.
type postponed struct {
	at      time.Time
	refused int // times in a row
}

// refuse plans the next try: after 1 s, doubling to 1 min.
func (p *postponed) refuse() {
	p.at = time.Now().Add(refusal(p.refused))
	p.refused++
}

// putBack returns the one that is to blame, where that is known, and whether the rows of the
// ledger may be, for the first time in a row.
func (e *engine) putBack(r *record, over []*claim, err error) (refused *attempt, ledger bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = append(e.over, over...)
	e.overtaken()
	all := e.unsent(append(r.quick, r.others...))
	if e.suspects(all, err) {
		e.outbox = append(all, e.outbox...)
		return nil, false
	}
	if !isLost(err) && len(over) > 0 { // results are not to wait for whoever stands in the ledger's way
		for _, c := range over {
			c.attempts = nil // these may have to wait for long
		}
		e.ledger.refuse()
		e.outbox = append(all, e.outbox...)
		e.changed.set()
		return nil, e.ledger.refused == 1
	}
	if !isLost(err) {
		if len(all) == 1 {
			e.later = append(e.later, deferred{all[0], time.Now().Add(refusal(all[0].refused))})
			all[0].refused++
			if e.once {
				e.onceErr = cmp.Or(e.onceErr, fmt.Errorf("job %d: its result can't be recorded: %w", all[0].job.ID, err))
				e.changed.set()
			}
			return all[0], false
		}
		e.alone = len(all)
	} else {
		e.cutAt = time.Now()
		for _, a := range all {
			e.reconsider(a)
		}
	}
	e.outbox = append(all, e.outbox...)
	return nil, false
}

// suspects says whether such a round is to be sent once more as it was, over a new connection, which
// cures a plan that no longer fits and a statement that is gone. What is answered so twice in a row,
// or was refused before, is refused; but first leases are renewed, for if that fails too, it is an
// outage, which puts off no result. The engine's lock is held.
func (e *engine) suspects(all []*attempt, err error) bool {
	before := e.suspected
	if _, e.suspected = errors.AsType[*refusedError](err); !e.suspected || before {
		return false
	}
	e.duties.renew, e.duties.last = time.Time{}, nil
	return !slices.ContainsFunc(all, func(a *attempt) bool { return a.refused > 0 })
}

// refusedError marks the refusal of a row by a SQLSTATE that is else an outage's.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// asRefused marks an error that is a refusal as isRefusal says; others it returns as they are.
func asRefused(err error) error {
	if lost, ok := errors.AsType[*lostError](err); ok && lost.answered {
		return &refusedError{lost.err}
	}
	return err
}

// isRefusal is isRefused, or that a server which let the round write refused one of its statements by
// the SQLSTATE of an outage.
func isRefusal(err error) bool { return isRefused(asRefused(err)) }

// isAnswer recognises the error of a statement, which doesn't end the session.
func isAnswer(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && cmp.Or(pgErr.SeverityUnlocalized, pgErr.Severity) == "ERROR"
}

// refusal is the time until what was refused so often before is sent again: 1 s, doubling to 1
// min.
func refusal(before int) time.Duration { return min(time.Second<<min(before, 10), time.Minute) }

// A deferred job's result is sent again at a later time.
type deferred struct {
	attempt *attempt
	at      time.Time
}

// isRefused tells a statement that the table refused from a connection that broke.
func isRefused(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !isLost(err)
}
