package rebase

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// The idle look: what a claimer that found nothing asks the tables, and how long it sleeps then.

// A series is the idle looks that follow each other until all tasks were looked at: with room for
// fewer than all of them, or with more lanes than one statement is to visit, one is not enough.
type series struct {
	idleLook      // what they have told together; the oldest open transaction is that of the first
	looks    int  // so far; 0: none is under way
	head     bool // they look from the heads of the lanes
	saw      int  // plan.saw of the first
	took     time.Duration
	at       time.Time // the earliest time that somebody has brought the next look forward to
}

// newSeries begins anew. The engine's lock is held.
func (e *engine) newSeries() {
	e.look.series = series{}
	for _, t := range e.tasks {
		t.looked, t.whole = false, false // a scan goes on, or frequent wakes would hide the last lanes
	}
}

// seriesDone takes in an idle look that found nothing, and reports whether it was the last.
func (e *engine) seriesDone(p *plan, batches []*batch, look *idleLook, took time.Duration) bool {
	s := &e.look.series
	s.took += took
	if s.looks++; s.looks == 1 {
		s.idleLook, s.saw = *look, p.saw
	} else {
		s.blocked = s.blocked || look.blocked
		s.sooner(look.next)
	}
	for _, b := range batches {
		for _, l := range b.lanes {
			l.task.looked = true // those with lanes: see scanned
		}
	}
	if slices.ContainsFunc(p.tasks, func(t *taskState) bool { return !t.looked }) {
		return false
	}
	s.looks = 0
	return true
}

// foundNothing decides how long to sleep.
func (e *engine) foundNothing(look *idleLook) {
	k := &e.look
	k.idle++
	e.changed.set()
	k.idleDue = look.next
	k.more = false
	now := time.Now()
	e.nextLook(look, now)
	if look.next >= 0 {
		k.by(now.Add(look.next + time.Millisecond/2))
	}
	if look.blocked {
		k.blockedWait = min(max(2*k.blockedWait, 50*time.Millisecond), time.Second)
		k.by(now.Add(k.blockedWait))
	} else {
		k.blockedWait = 0
	}
}

// nextLook plans the look after one that found nothing; somebody may have brought it forward
// already.
func (e *engine) nextLook(look *idleLook, now time.Time) {
	k := &e.look
	switch {
	case k.locked && !k.proven && look.xmin > k.x:
		k.proven = true
		k.by(now.Add(listenPoll))
	case k.locked && !k.proven:
		// By the time that has passed, not by the number of looks: wakes bring looks too.
		k.by(now.Add(min(now.Sub(k.slept)+rampFirst, listenPoll)))
	case k.locked:
		k.by(now.Add(listenPoll))
	case e.listening && k.fast && now.Sub(k.found) < awakeFor:
		k.by(now.Add(breath))
	default:
		k.wantLock = e.listening
		k.by(now.Add(cmp.Or(k.wait, e.w.opts.PollInterval)))
		k.wait = min(2*cmp.Or(k.wait, e.w.opts.PollInterval), listenPoll)
	}
}

// An idleLook is what the tables tell a claimer that found nothing.
type idleLook struct {
	laned   []*taskState  // tasks that have jobs in lanes
	blocked bool          // something is due, but locked by somebody, or its lane is at its limit
	next    time.Duration // until the next job is due; negative: none
	xmin    uint64        // the oldest open transaction, before the claim
}

func (k *idleLook) xminStatement() statement {
	return statement{xminSQL, nil, func(rows pgx.Rows) error {
		var text string
		_, err := pgx.ForEachRow(rows, []any{&text}, func() (err error) {
			k.xmin, err = strconv.ParseUint(text, 10, 64)
			return err
		})
		return err
	}}
}

func (k *idleLook) statement(tasks []*taskState) statement {
	return statement{idleSQL, []any{taskNames(tasks)}, func(rows pgx.Rows) error {
		var ord int
		var laned, due bool
		var us *int64
		_, err := pgx.ForEachRow(rows, []any{&ord, &laned, &due, &us}, func() error {
			if laned {
				k.laned = append(k.laned, tasks[ord-1])
			}
			k.blocked = k.blocked || due
			k.sooner(microseconds(us))
			us = nil
			return nil
		})
		return err
	}}
}

// lanedStatement only asks which tasks have jobs in lanes.
func (k *idleLook) lanedStatement(tasks []*taskState) statement {
	return statement{lanedSQL, []any{taskNames(tasks)}, func(rows pgx.Rows) error {
		var ord int
		_, err := pgx.ForEachRow(rows, []any{&ord}, func() error {
			k.laned = append(k.laned, tasks[ord-1])
			return nil
		})
		return err
	}}
}

func taskNames(tasks []*taskState) []string {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.name
	}
	return names
}

// lanesStatement asks about the lanes that the batch's claim visits.
func (k *idleLook) lanesStatement(b *batch) statement {
	from := cmp.Or(b.from, "\x01") // "" is the queue of jobs without a lane
	return statement{idleLanesSQL, []any{b.laned.name, from, b.asked}, func(rows pgx.Rows) error {
		var us *int64
		var due bool
		_, err := pgx.ForEachRow(rows, []any{&us, &due}, func() error {
			k.blocked = k.blocked || due
			k.sooner(microseconds(us))
			return nil
		})
		return err
	}}
}

// sooner notes that a job will be due in d; negative: none will.
func (k *idleLook) sooner(d time.Duration) {
	if d >= 0 && (k.next < 0 || d < k.next) {
		k.next = d
	}
}

// microseconds is the time until something is due; negative for null. Jobs may be due in
// thousands of years, which a Duration doesn't hold.
func microseconds(us *int64) time.Duration {
	if us == nil {
		return -1
	}
	return time.Duration(min(max(*us, 0), int64(maxDelay/time.Microsecond))) * time.Microsecond
}
