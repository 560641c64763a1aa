// Package cron parses five-field cron expressions and computes their slots.
//
// A slot is an instant: a whole minute of UTC at which a schedule is due in its
// time zone. The rules are those of Debian's cron, also round a clock change:
//
//   - An expression whose minute or hour begins with * follows the real clock:
//     every minute whose wall clock matches is a slot, twice in a repeated hour.
//   - Any other names fixed times of day: each fires once. In a repeated hour it
//     fires in the first pass only; one that the clock jumps over fires at the
//     first minute after the jump, several of them together, unless the jump was
//     longer than three hours.
//   - If day of month or day of week begins with *, both must match; else either.
//
// The package is pure: no clock of its own, no state, no goroutine. Next and Prev
// don't allocate, and they stop searching after 400 years, when the calendar repeats.
package cron

import "time"

// Everything inside is counted in minutes: of UTC since 1970 for instants, and as
// if the wall clock were UTC for wall times. In a stretch of constant offset the
// one is the other plus the offset, so nothing is ever built from a wall time
// that may not exist.
const (
	day  = 24 * 60
	week = 7 * day
	span = 146_097 * day // 400 years

	// Slots lie in the years 1 to 9999, all that RFC 3339 can write; the first
	// minute of all is no slot, since it is the zero time.
	minMinute = -719_162*day + 1
	maxMinute = 2_932_897*day - 1
)

// An Expr is a parsed expression. It is read-only: many goroutines may use one.
type Expr struct {
	source string

	// Bit n of a mask says that the value n matches; Sunday is 0 only.
	minute, hour, dom, month, dow uint64

	bothDays bool // day of month and day of week must both match
	fixed    bool // neither minute nor hour begins with *
}

// String returns the expression as it was given to Parse.
func (e *Expr) String() string { return e.source }

// Next returns the first slot strictly after an instant, in UTC. It is the zero
// time if there is none within 400 years, or none before the year 10000.
//
// A nil loc panics, as in time.Time.In: a zone that could not be loaded must never
// quietly become UTC.
func (e *Expr) Next(after time.Time, loc *time.Location) time.Time {
	m := max(floorDiv(after.Unix(), 60)+1, minMinute)
	last := min(m+span, maxMinute)
	for m <= last {
		p := periodAt(loc, m)
		if at, ok := e.first(p, m); ok && at <= last {
			return instant(at)
		}
		if p.to > last {
			break
		}
		// Jump. All later slots belong to wall times from p.to - week on, because
		// no offset reaches a week. Not from where first ended: after p the clock
		// may stand earlier than at its end.
		w, ok := e.wallFrom(p.to - week)
		if !ok {
			break
		}
		m = max(p.to, w-week)
	}
	return time.Time{}
}

// Prev returns the last slot at or before an instant, in UTC. It is the zero time
// if there is none within 400 years, or none after the year 0. A nil loc panics.
func (e *Expr) Prev(until time.Time, loc *time.Location) time.Time {
	m := min(floorDiv(until.Unix(), 60), maxMinute)
	first := max(m-span, minMinute)
	for m >= first {
		p := periodAt(loc, m)
		if at, ok := e.last(p, m); ok && at >= first {
			return instant(at)
		}
		// The jump of Next, seen in a mirror.
		m = p.from - 1
		w, ok := e.wallTo(m + week)
		if !ok {
			break
		}
		m = min(m, w+week)
	}
	return time.Time{}
}

// Count returns how many slots lie after the first instant and not after the
// second, at most limit, and the latest of them; zero time: there is none. The
// latest is right also when the count stopped at the limit. The cost is that of
// one Prev and at most limit calls of Next.
func (e *Expr) Count(after, until time.Time, loc *time.Location, limit int) (n int, last time.Time) {
	last = e.Prev(until, loc)
	if !last.After(after) {
		return 0, time.Time{}
	}
	for at := after; n < limit && at.Before(last); n++ {
		at = e.Next(at, loc)
	}
	return n, last
}

// first returns the first slot of p at or after minute m, which lies in p.
func (e *Expr) first(p period, m int64) (at int64, ok bool) {
	from := m + p.off
	if e.fixed {
		if m == p.from && p.madeUp() {
			if w, ok := e.wallFrom(p.high); ok && w < p.from+p.off {
				return p.from, true
			}
		}
		from = max(from, p.high)
	}
	w, ok := e.wallFrom(from)
	return w - p.off, ok && w < p.to+p.off
}

// last returns the last slot of p at or before minute m, which lies in p.
func (e *Expr) last(p period, m int64) (at int64, ok bool) {
	from := p.from + p.off
	if e.fixed {
		from = max(from, p.high)
	}
	if w, ok := e.wallTo(m + p.off); ok && w >= from {
		return w - p.off, true
	}
	if !e.fixed || !p.madeUp() {
		return 0, false
	}
	w, ok := e.wallTo(p.from + p.off - 1)
	return p.from, ok && w >= p.high
}

// instant is the other end of all the counting in minutes.
func instant(minute int64) time.Time { return time.Unix(minute*60, 0).UTC() }

// floorDiv divides and rounds down, also below zero, where Go rounds up: the
// minute of an instant before 1970 is the one that it lies in. b is positive.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
