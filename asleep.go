package rebase

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// The sleep locks: how a claimer that has nothing to do has them taken on the LISTEN
// connection, and given up. What they are for, and why no wake-up is lost, stands in notify.go.

// An order asks for the locks to be taken (reply gets the transaction id x, 0 for a
// failure) or given up (reply is nil).
type order struct {
	lock  bool
	reply chan uint64
}

// lock asks for the locks and returns x, or 0 if they were not to be had.
func (l *listener) lock(done <-chan struct{}) uint64 {
	o := &order{lock: true, reply: make(chan uint64, 1)}
	l.mu.Lock()
	l.order = o
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	for waiting := true; waiting; {
		select {
		case x := <-o.reply:
			return x
		case <-l.e.claimSignal:
			waiting = !l.e.isWoken() // the connection may hang for long
		case <-t.C:
			waiting = false
		case <-done:
			waiting = false
		}
	}
	if l.answer(o, 0) { // withdrawn: locks that come later are given up
		return 0
	}
	return <-o.reply
}

// isWoken says whether the claimer is to look at once.
func (e *engine) isWoken() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.look.woken
}

// unlock asks for the locks to be given up. The engine's lock is held.
func (l *listener) unlock() {
	if l == nil || !l.e.look.locked {
		return
	}
	l.e.look.locked, l.e.look.proven = false, false
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.order != nil && l.order.reply != nil {
		l.order.reply <- 0
	}
	l.order = &order{}
	if l.cancel != nil {
		l.cancel()
	}
}

// answer replies to the order if it is still the one that is wanted, and reports whether
// it was. A nil order stands for any.
func (l *listener) answer(o *order, x uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.order == nil || o != nil && l.order != o {
		return false
	}
	if l.order.reply != nil {
		l.order.reply <- x
	}
	l.order = nil
	return true
}

const (
	sleepLockSQL = `
select pg_advisory_lock_shared(7236, b.bucket)
from (select distinct hashtext(t.task) & 15 as bucket from unnest($1::text[]) t (task) order by 1) b`

	// sleepIDSQL is a transaction of its own, after the locks.
	sleepIDSQL = `select pg_current_xact_id()::text`
)

// obey carries out what the claimer wants.
func (l *listener) obey() error {
	l.mu.Lock()
	o := l.order
	l.mu.Unlock()
	if o == nil {
		return nil
	}
	if !o.lock {
		l.answer(o, 0)
		return l.exec(unlockSQL)
	}
	x, err := l.takeLocks()
	if err == nil && l.answer(o, x) {
		return nil
	}
	// Not to be had, or no longer wanted. The first is no reason to reconnect.
	unlockErr := l.exec(unlockSQL)
	l.answer(o, 0)
	if isLost(err) {
		return err
	}
	return unlockErr
}

const unlockSQL = "select pg_advisory_unlock_all()"

func (l *listener) takeLocks() (x uint64, err error) {
	ctx, cancel := context.WithTimeout(l.e.base, max(l.e.roundLimit(), 2*time.Second))
	defer cancel()
	l.alive = time.Now()
	rows, err := l.conn.Query(ctx, sleepLockSQL, pgx.QueryExecModeExec, l.e.names)
	if err != nil {
		return 0, err
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return 0, err
	}
	var text string
	if err := l.conn.QueryRow(ctx, sleepIDSQL, pgx.QueryExecModeExec).Scan(&text); err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

// xminSQL comes before the claim in a look: what had ended at its snapshot is visible to
// the claim's.
const xminSQL = `select pg_snapshot_xmin(pg_current_snapshot())::text`

// fallAsleep takes the locks after an idle look that found nothing. The next look then
// follows at once.
func (e *engine) fallAsleep() {
	e.mu.Lock()
	want, hearing := e.look.wantLock && e.listening && !e.stopping, e.hearings
	e.look.wantLock = false
	e.mu.Unlock()
	if !want {
		return
	}
	x := e.listener.lock(e.stop)
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.look
	if x == 0 || !e.listening || e.hearings != hearing {
		return // the next look is by the poll interval; the locks went with their connection
	}
	k.locked, k.proven, k.fast, k.x, k.slept = true, false, false, x, time.Now()
	k.at = time.Time{}
}
