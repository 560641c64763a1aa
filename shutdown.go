package rebase

import (
	"context"
	"sync"
	"time"
)

// Shutdown, in this order: claim nothing more; give back what was not begun; wait for
// handlers; end their contexts; write the results; say goodbye. Each step leaves the
// table in a state from which others can go on, so it may be cut off anywhere.

// shutDown ends the claimer and waits for what is under way. When it returns nothing is
// left to be recorded, or the time is up.
func (e *engine) shutDown(claimer *sync.WaitGroup, hard time.Time) error {
	soft := hard.Add(-e.w.opts.ShutdownTimeout / 3)
	e.mu.Lock()
	e.stopping = true
	close(e.stop)
	e.release(func(*attempt) bool { return true })
	e.mu.Unlock()
	e.claimSignal.set()
	claimed := make(chan struct{})
	go func() {
		claimer.Wait() // bounded by the time limit of a round
		close(claimed)
	}()
	e.waitUntil(soft, func() bool { return !e.busy() })
	e.endHandlers()
	e.waitUntil(hard, func() bool { return !e.busy() })
	select {
	case <-claimed:
	case <-time.After(time.Until(hard)):
	}
	// What a late claim brought was released when it came in, or is if its reply was lost.
	e.waitUntil(hard, func() bool { return !e.busy() && (len(e.over) == 0 || e.ledger.refused > 0) && !e.missing() })
	running, unrecorded := e.heldIDs(stateRunning), e.heldIDs(stateFinished)
	if len(running) == 0 && len(unrecorded) == 0 {
		return nil
	}
	return &ShutdownError{Running: running, Unrecorded: unrecorded}
}

// busy says whether a job has begun of which something is still to be recorded, though not
// whether something waits in the buffer.
func (e *engine) busy() bool { return e.running > 0 || e.late > 0 || e.unsaved > 0 }

// waitUntil waits for a condition over the engine's state.
func (e *engine) waitUntil(deadline time.Time, done func() bool) {
	for {
		e.mu.Lock()
		ok := done()
		e.mu.Unlock()
		left := time.Until(deadline)
		if ok || left <= 0 {
			return
		}
		e.changed.wait(left, nil)
	}
}

// endHandlers cancels the contexts of all running handlers, and of those that were just
// about to begin.
func (e *engine) endHandlers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cause = ErrShutdown
	for _, c := range e.held {
		for i := range c.attempts {
			if a := &c.attempts[i]; a.state == stateRunning && a.cancel != nil {
				a.cancel(ErrShutdown)
			}
		}
	}
}

// goodbyeSQL folds the last counters, which are newer than those in the row.
const goodbyeSQL = `
with gone as (
  delete from rebase.workers w
  where w.id = $1
  returning $2::jsonb as counters
)` + foldSQL

// goodbye removes the worker's row and closes the connections. Abandoned handlers may return
// meanwhile.
func (e *engine) goodbye(ctx context.Context) {
	ctx, cancel := bookkeeping(ctx, time.Second)
	defer cancel()
	e.mu.Lock()
	counters := e.countersJSON()
	e.mu.Unlock()
	if e.results.conn != nil {
		err := e.results.round(ctx, time.Second, statement{sql: goodbyeSQL, args: []any{e.id, counters}})
		if err != nil {
			e.log.Info("rebase: the worker's row could not be removed; it will be seen as dead", "worker", e.id, "error", err)
		}
	}
	e.results.drop()
	e.claims.drop()
	e.log.Info("rebase: worker stopped", "worker", e.id)
}

// bookkeeping returns a context for the end of a run: Run's own has ended.
func bookkeeping(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}
