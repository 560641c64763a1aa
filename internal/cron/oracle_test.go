package cron_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The oracle: the same rules written a second time, as slowly and plainly as
// possible. It looks at every real minute's wall clock, one after the other, and
// remembers the latest wall time that it has seen. It knows nothing of ZoneBounds,
// periods, masks or jumps, and it reads expressions with code of its own.

// An oracle answers for each value of each field whether it matches.
type oracle struct {
	minute, hour, dom, month, dow [64]bool
	fixed, both                   bool
}

var oracleNames = strings.NewReplacer("JAN", "1", "FEB", "2", "MAR", "3", "APR", "4", "MAY", "5", "JUN", "6", "JUL", "7",
	"AUG", "8", "SEP", "9", "OCT", "10", "NOV", "11", "DEC", "12",
	"SUN", "0", "MON", "1", "TUE", "2", "WED", "3", "THU", "4", "FRI", "5", "SAT", "6")

// newOracle reads an expression that the parser has accepted.
func newOracle(t testing.TB, expr string) *oracle {
	t.Helper()
	expr = strings.Trim(expr, " \t")
	if expr[0] == '@' {
		expr = map[string]string{"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
			"@weekly": "0 0 * * 7", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *"}[expr]
	}
	f := strings.Fields(expr)
	require.Len(t, f, 5, expr)
	o := &oracle{
		fixed: !strings.HasPrefix(f[0], "*") && !strings.HasPrefix(f[1], "*"),
		both:  strings.HasPrefix(f[2], "*") || strings.HasPrefix(f[4], "*"),
	}
	for i, set := range []*[64]bool{&o.minute, &o.hour, &o.dom, &o.month, &o.dow} {
		limits := [][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}}[i]
		for item := range strings.SplitSeq(oracleNames.Replace(strings.ToUpper(f[i])), ",") {
			from, to, step := oracleItem(t, item, limits)
			for v := limits[0]; v <= limits[1]; v++ {
				set[v] = set[v] || from <= v && v <= to && (v-from)%step == 0
			}
		}
	}
	o.dow[0] = o.dow[0] || o.dow[7]
	return o
}

// oracleItem reads one item of a list.
func oracleItem(t testing.TB, item string, limits [2]int) (from, to, step int) {
	span, every, stepped := strings.Cut(item, "/")
	low, high, ranged := strings.Cut(span, "-")
	var errs [3]error
	from, errs[0] = strconv.Atoi(low)
	to, step = from, 1
	switch {
	case span == "*":
		from, to, errs[0] = limits[0], limits[1], nil
	case ranged:
		to, errs[1] = strconv.Atoi(high)
	case stepped:
		to = limits[1]
	}
	if stepped {
		step, errs[2] = strconv.Atoi(every)
	}
	if err := errors.Join(errs[:]...); err != nil {
		require.NoError(t, err, item)
	}
	return from, to, step
}

// matches says whether a wall time, written as if it were UTC, matches.
func (o *oracle) matches(wall time.Time) bool {
	hour, minute, _ := wall.Clock()
	if !o.minute[minute] || !o.hour[hour] {
		return false
	}
	_, month, day := wall.Date()
	if o.both {
		return o.month[month] && o.dom[day] && o.dow[wall.Weekday()]
	}
	return o.month[month] && (o.dom[day] || o.dow[wall.Weekday()])
}

// A stroll is every minute of a stretch of real time, with what the wall clock shows.
type stroll struct {
	loc      *time.Location
	from, to time.Time
	at, wall []time.Time
}

// walk looks at every minute up to to. It starts a day before from, to have seen
// the first pass of what may be a second.
func walk(loc *time.Location, from, to time.Time) stroll {
	s := stroll{loc: loc, from: from, to: to}
	for at := from.Add(-24 * time.Hour).Truncate(time.Minute).UTC(); !at.After(to); at = at.Add(time.Minute) {
		w := at.In(loc)
		s.at = append(s.at, at)
		s.wall = append(s.wall, time.Date(w.Year(), w.Month(), w.Day(), w.Hour(), w.Minute(), 0, 0, time.UTC))
	}
	return s
}

// slots returns the slots in (from, to].
func (s stroll) slots(o *oracle) (slots []time.Time) {
	seen := s.wall[0].Add(-time.Minute)
	for i, wall := range s.wall {
		due := !o.fixed && o.matches(wall)
		if o.fixed && wall.After(seen) {
			due = o.matches(wall)
			if skipped := wall.Sub(seen) - time.Minute; skipped <= 3*time.Hour {
				for w := seen.Add(time.Minute); w.Before(wall); w = w.Add(time.Minute) {
					due = due || o.matches(w)
				}
			}
			seen = wall
		}
		if due && s.at[i].After(s.from) {
			slots = append(slots, s.at[i])
		}
	}
	return slots
}

// agree compares Next, Prev and Count with the oracle over a stroll: from slot to
// slot in both directions, and from a few instants between.
func agree(t testing.TB, s stroll, exprs ...string) {
	t.Helper()
	for _, expr := range exprs {
		e, want := mustParse(t, expr), s.slots(newOracle(t, expr))
		var up, down []time.Time
		for at := e.Next(s.from, s.loc); !at.IsZero() && !at.After(s.to) && len(up) <= len(want); at = e.Next(at, s.loc) {
			up = append(up, at)
		}
		for at := e.Prev(s.to, s.loc); at.After(s.from) && len(down) <= len(want); at = e.Prev(at.Add(-1), s.loc) {
			down = append(down, at)
		}
		slices.Reverse(down)
		context := []any{"%s in %s from %v to %v", expr, s.loc, s.from.UTC(), s.to.UTC()}
		requireSame(t, want, up, "Next", context)
		requireSame(t, want, down, "Prev", context)

		n, last := e.Count(s.from, s.to, s.loc, len(want)+1)
		require.Equal(t, len(want), n, context...)
		if n > 0 {
			require.Equal(t, want[n-1], last, context...)
		}
		for i := 7; i < len(s.at); i += 611 { // a prime: any minute of the hour
			if at := s.at[i].Add(time.Second); at.After(s.from) && at.Before(s.to) {
				agreeAt(t, s, e.Next(at, s.loc), e.Prev(at, s.loc), at, want, context)
			}
		}
	}
}

// agreeAt checks one pair of answers against the list of all slots of the stroll.
func agreeAt(t testing.TB, s stroll, next, prev, at time.Time, want []time.Time, context []any) {
	t.Helper()
	i, _ := slices.BinarySearchFunc(want, at, time.Time.Compare)
	if i < len(want) {
		requireSame(t, want[i:i+1], []time.Time{next}, "Next after "+at.String(), context)
	} else if !next.IsZero() && !next.After(s.to) {
		require.Fail(t, "Next is in the stroll, but no slot", append(context, next)...)
	}
	if i > 0 {
		requireSame(t, want[i-1:i], []time.Time{prev}, "Prev of "+at.String(), context)
	} else if prev.After(s.from) {
		require.Fail(t, "Prev is in the stroll, but no slot", append(context, prev)...)
	}
}

// requireSame compares without reflection: it runs some million times.
func requireSame(t testing.TB, want, got []time.Time, what string, context []any) {
	t.Helper()
	if !slices.Equal(want, got) {
		require.Equal(t, want, got, append([]any{what + ": " + context[0].(string)}, context[1:]...)...)
	}
}
