package cron

import (
	"math/bits"
	"time"
)

// The search on the wall clock, which knows nothing of time zones: a wall time is a
// minute counted as if it were UTC, where every day has 1,440 of them. A search tries
// whole months, then picks day, hour and minute out of bit masks; it walks neither
// days nor minutes, so a rare expression costs no more than its empty months.

// wallFrom returns the first matching wall minute at or after w. It gives up after
// 400 years: the calendar, weekdays included, has then begun again.
func (e *Expr) wallFrom(w int64) (int64, bool) {
	today := floorDiv(w, day)
	y, m, d := time.Unix(w*60, 0).UTC().Date()
	for range 400*12 + 1 {
		first, days := e.days(y, m)
		days &^= 1<<d - 1
		if first+int64(d)-1 == today && days>>d&1 == 1 {
			if t, ok := e.timeFrom(w - today*day); ok {
				return today*day + t, true
			}
			days &^= 1 << d
		}
		if days != 0 {
			t, ok := e.timeFrom(0)
			return (first+lowest(days)-1)*day + t, ok
		}
		d = 1
		if m++; m > time.December {
			y, m = y+1, time.January
		}
	}
	return 0, false
}

// wallTo returns the last matching wall minute at or before w, as wallFrom does.
func (e *Expr) wallTo(w int64) (int64, bool) {
	today := floorDiv(w, day)
	y, m, d := time.Unix(w*60, 0).UTC().Date()
	for range 400*12 + 1 {
		first, days := e.days(y, m)
		days &= 1<<(d+1) - 1
		if first+int64(d)-1 == today && days>>d&1 == 1 {
			if t, ok := e.timeTo(w - today*day); ok {
				return today*day + t, true
			}
			days &^= 1 << d
		}
		if days != 0 {
			t, ok := e.timeTo(day - 1)
			return (first+highest(days)-1)*day + t, ok
		}
		d = 31
		if m--; m < time.January {
			y, m = y-1, time.December
		}
	}
	return 0, false
}

// days returns the day number of a month's first day and the mask of the days that
// match in it: bit d is day d. If none does, the first day is not worked out.
func (e *Expr) days(y int, m time.Month) (first int64, mask uint64) {
	if e.month>>m&1 == 0 {
		return 0, 0
	}
	first = dayNumber(y, m)
	// The week's mask, turned so that its lowest bit is the weekday of the first
	// (day 0, in 1970, was a Thursday), then laid out five times.
	const fiveTimes = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28
	turn := first + 4 - 7*floorDiv(first+4, 7)
	turned := (e.dow>>turn | e.dow<<(7-turn)) & 0x7f
	dow := turned * fiveTimes << 1

	mask = e.dom | dow
	if e.bothDays {
		mask = e.dom & dow
	}
	length := dayNumber(y, m+1) - first
	return first, mask & (1<<(length+1) - 1)
}

// dayNumber counts the days from 1970 to the first of a month; month 13 is January.
func dayNumber(y int, m time.Month) int64 {
	return floorDiv(time.Date(y, m, 1, 0, 0, 0, 0, time.UTC).Unix(), 86_400)
}

// timeFrom returns the first matching minute of a day at or after minute t of it.
func (e *Expr) timeFrom(t int64) (int64, bool) {
	h := t / 60
	if e.hour>>h&1 == 1 {
		if left := e.minute >> (t % 60) << (t % 60); left != 0 {
			return h*60 + lowest(left), true
		}
	}
	left := e.hour >> (h + 1) << (h + 1)
	return lowest(left)*60 + lowest(e.minute), left != 0
}

// timeTo returns the last matching minute of a day at or before minute t of it.
func (e *Expr) timeTo(t int64) (int64, bool) {
	h := t / 60
	if e.hour>>h&1 == 1 {
		if left := e.minute & (1<<(t%60+1) - 1); left != 0 {
			return h*60 + highest(left), true
		}
	}
	left := e.hour & (1<<h - 1)
	return highest(left)*60 + highest(e.minute), left != 0
}

// lowest and highest return the number of the lowest and the highest bit of a mask.
func lowest(mask uint64) int64  { return int64(bits.TrailingZeros64(mask)) }
func highest(mask uint64) int64 { return int64(bits.Len64(mask)) - 1 }
