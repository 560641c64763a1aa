package rebase

import (
	"cmp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// The idle look: what a claimer that found nothing asks the tables, and how long it sleeps then.

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
			k.sooner(us)
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

func (k *idleLook) lanesStatement(task string) statement {
	return statement{idleLanesSQL, []any{task}, func(rows pgx.Rows) error {
		var us *int64
		var due bool
		_, err := pgx.ForEachRow(rows, []any{&us, &due}, func() error {
			k.blocked = k.blocked || due
			k.sooner(us)
			return nil
		})
		return err
	}}
}

func (k *idleLook) sooner(us *int64) {
	if us == nil {
		return
	}
	if d := max(time.Duration(*us), 0) * time.Microsecond; k.next < 0 || d < k.next {
		k.next = d
	}
}
