package rebase

import (
	"slices"
	"time"
)

// What becomes of schedules that are due: a function of the row and the database's clock. After
// a long absence that is more than fits a round, so a statement fires only so many slots, and
// moves a schedule on only as far; the next look, which comes at once, goes on from there. What
// is missed for good is counted by the first of these.

const (
	fireSlots = 500
	fireBytes = 4 << 20
)

// slots decides what becomes of a due schedule: which slots fire, how many count as
// missed, and which is next. moved says that next_run_at was moved by hand, perhaps to an
// instant that is no slot: then the latest slot fires. Of more than most slots that are to fire the
// earliest do, and next is the first of the others.
func (p *plannedSchedule) slots(from, now time.Time, moved bool, most int) (fire []time.Time, missed int, next time.Time) {
	until := now.Add(-p.offset)
	n, last := p.expr.Count(from.Add(-time.Nanosecond), until, p.loc, 1_000_000)
	keep := p.CatchUp.column()
	switch {
	case n == 0 && !moved:
		next, _ = p.next(until)
		return nil, 0, next
	case n == 0:
		n, keep, last = 1, 1, p.expr.Prev(until, p.loc)
	case n == 1 && now.Sub(last.Add(p.offset)) <= fireGrace:
		keep = 1 // on time
	case p.NoOverlap:
		keep = min(keep, 1)
	}
	keep = min(keep, n)
	for slot := last; len(fire) < keep && !slot.IsZero(); slot = p.expr.Prev(slot.Add(-time.Nanosecond), p.loc) {
		fire = append(fire, slot)
	}
	missed = n - len(fire)
	if len(fire) > most {
		fire = fire[len(fire)-most:]
		last = fire[0]
	}
	next, _ = p.next(last)
	return fire, missed, next
}

// firing is the arguments of fireSQL.
type firing struct {
	ids, slotIDs     []string
	versions, missed []int64
	seen, slots      []time.Time
	nexts, lasts     []*time.Time

	room, bytes int  // of slots and payloads, for more than one slot of a schedule
	more        bool // there was no room for some
}

func (f *firing) add(s *scheduleRow, p *plannedSchedule, now time.Time) {
	size := len(p.row.payload) + 1
	most := max(min(f.room, f.bytes/size), 1)
	fire, missed, next := p.slots(s.NextRunAt.Add(-s.offset), now, s.moved(), most)
	fire = slices.DeleteFunc(fire, s.LastSlot.Equal) // it has fired, and the row remembers that for longer than schedule_slots
	f.room, f.bytes = f.room-len(fire), f.bytes-len(fire)*size
	f.more = f.more || !next.IsZero() && !next.Add(s.offset).After(now)
	var last time.Time
	for _, slot := range fire {
		f.slotIDs, f.slots = append(f.slotIDs, s.ID), append(f.slots, slot)
		last = fire[0]
	}
	f.ids, f.versions, f.missed, f.seen = append(f.ids, s.ID), append(f.versions, s.version), append(f.missed, int64(missed)), append(f.seen, s.NextRunAt)
	f.nexts, f.lasts = append(f.nexts, timeOrNil(next)), append(f.lasts, timeOrNil(last))
}
