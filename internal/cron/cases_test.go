package cron_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// The agreed instants, C1 to C12: each line is one expression in one zone, and the
// slots that must follow a given instant, in UTC. They are written out by hand and
// are not to be computed.

const newYork = "America/New_York"

// an instantsCase says which slots follow after, in order. If complete is set,
// there is no further slot before that instant.
type instantsCase struct {
	expr, zone, after string
	want              []string
	complete          string
}

func (c instantsCase) check(t *testing.T) {
	t.Helper()
	e, loc := mustParse(t, c.expr), mustZone(t, c.zone)
	at := instant(t, c.after)
	var got []string
	for range c.want {
		at = e.Next(at, loc)
		got = append(got, minute(at))
	}
	require.Equal(t, c.want, got, "%s in %s", c.expr, c.zone)
	if c.complete != "" {
		require.False(t, e.Next(at, loc).Before(instant(t, c.complete)), "%s in %s: a further slot", c.expr, c.zone)
	}
	// The same slots, seen from the last one backwards.
	for i := len(c.want) - 1; i >= 0; i-- {
		require.Equal(t, c.want[i], minute(e.Prev(at, loc)), "%s in %s, backwards", c.expr, c.zone)
		at = instant(t, c.want[i]).Add(-1)
	}
}

func checkAll(t *testing.T, cases ...instantsCase) {
	t.Helper()
	for _, c := range cases {
		c.check(t)
	}
}

func TestC1_AFixedTimeInsideAGapFiresRightAfterIt(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "30 2 * * *", zone: newYork, after: "2026-03-07T12:00",
		want:     []string{"2026-03-08T07:00", "2026-03-09T06:30"},
		complete: "2026-03-10T06:30",
	})
}

func TestC2_SeveralFixedTimesInsideAGapCollapseIntoOne(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "5 2,3 * * *", zone: newYork, after: "2026-03-07T12:00",
		want:     []string{"2026-03-08T07:00", "2026-03-08T07:05", "2026-03-09T06:05"},
		complete: "2026-03-09T07:05",
	}, instantsCase{
		// All 60 are owed, and the slot of 03:00 itself is the same minute: one.
		expr: "0-59 2,3 * * *", zone: newYork, after: "2026-03-07T12:00",
		want: []string{"2026-03-08T07:00", "2026-03-08T07:01", "2026-03-08T07:02"},
	})
}

func TestC3_AFixedTimeInARepeatedHourFiresInTheFirstPassOnly(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "30 1 * * *", zone: newYork, after: "2026-10-31T12:00",
		want:     []string{"2026-11-01T05:30", "2026-11-02T06:30"},
		complete: "2026-11-03T06:30",
	}, instantsCase{
		// Asked in the middle of the second pass, the answer is the same.
		expr: "30 1 * * *", zone: newYork, after: "2026-11-01T06:15",
		want: []string{"2026-11-02T06:30"},
	})
}

func TestC4_AWildcardFiresInBothPassesOfARepeatedHour(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "0 * * * *", zone: newYork, after: "2026-11-01T04:59",
		want:     []string{"2026-11-01T05:00", "2026-11-01T06:00", "2026-11-01T07:00"},
		complete: "2026-11-01T08:00",
	}, instantsCase{
		expr: "*/10 * * * *", zone: newYork, after: "2026-11-01T05:29",
		want: []string{"2026-11-01T05:30", "2026-11-01T05:40", "2026-11-01T05:50",
			"2026-11-01T06:00", "2026-11-01T06:10", "2026-11-01T06:20", "2026-11-01T06:30", "2026-11-01T06:40",
			"2026-11-01T06:50", "2026-11-01T07:00"},
		complete: "2026-11-01T07:10",
	}, instantsCase{
		// A * in one of the two is enough.
		expr: "*/30 1 * * *", zone: newYork, after: "2026-10-31T12:00",
		want: []string{"2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30",
			"2026-11-02T06:00"},
	}, instantsCase{
		// Also when the next wall time that matches is a year ahead of the first pass.
		expr: "*/30 1 1 11 *", zone: newYork, after: "2026-10-31T12:00",
		want: []string{"2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30",
			"2027-11-01T05:00"},
	})
}

func TestC5_AWildcardFollowsTheRealClockThroughAGap(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "0 * * * *", zone: newYork, after: "2026-03-08T05:59",
		want:     []string{"2026-03-08T06:00", "2026-03-08T07:00", "2026-03-08T08:00"},
		complete: "2026-03-08T09:00",
	}, instantsCase{
		expr: "*/15 * * * *", zone: newYork, after: "2026-03-08T06:44",
		want:     []string{"2026-03-08T06:45", "2026-03-08T07:00"},
		complete: "2026-03-08T07:15",
	}, instantsCase{
		// Nothing is made up for a wildcard: that Sunday has no hour 2.
		expr: "*/30 2 * * *", zone: newYork, after: "2026-03-07T07:30",
		want: []string{"2026-03-09T06:00"},
	})
}

func TestC6_AnExpressionThatNeverMatchesIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for _, expr := range []string{"0 0 30 2 *", "0 0 31 4,6 *", "0 0 30,31 FEB *", "0 0 31 2,4,6,9,11 *", "0 0 30 2 */2"} {
		best := time.Hour // the fastest of some tries: the machine may be busy
		for range 20 {
			start := time.Now()
			_, err := cron.Parse(expr)
			best = min(best, time.Since(start))
			requireRefused(t, err, expr, "day of month", "never matches")
		}
		require.Less(t, best, time.Millisecond, expr)
	}
	mustParse(t, "0 0 30 2 1")     // either day is enough here: Mondays
	mustParse(t, "0 0 */28 2 */7") // the 1st or 29th, on a Sunday: rare, but it comes
}

func TestC7_TheTwentyNinthOfFebruary(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "0 0 29 2 *", after: "2026-01-01T00:00",
		want: []string{"2028-02-29T00:00", "2032-02-29T00:00"},
	}, instantsCase{
		expr: "0 0 29 2 *", after: "2096-03-01T00:00",
		want: []string{"2104-02-29T00:00"},
	}, instantsCase{
		// Only when it is a Sunday: 40 years, over 2100.
		expr: "0 0 29 2 */7", after: "2075-01-01T00:00",
		want: []string{"2088-02-29T00:00", "2128-02-29T00:00"},
	})
}

func TestC8_TheThirtyFirstSkipsShortMonths(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "0 0 31 * *", after: "2026-01-31T00:00",
		want: []string{"2026-03-31T00:00", "2026-05-31T00:00", "2026-07-31T00:00"},
	})
}

func TestC9_TheDayRule(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "0 0 13 * 5", after: "2026-01-01T00:00",
		want: []string{"2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00", "2026-01-16T00:00"},
	}, instantsCase{
		expr: "0 0 */2 * 5", after: "2026-01-01T00:00",
		want: []string{"2026-01-09T00:00", "2026-01-23T00:00", "2026-02-13T00:00"},
	}, instantsCase{
		expr: "0 0 1-31 * 5", after: "2026-01-01T00:00",
		want: []string{"2026-01-02T00:00", "2026-01-03T00:00", "2026-01-04T00:00", "2026-01-05T00:00"},
	}, instantsCase{
		expr: "0 0 13 * */2", after: "2026-01-01T00:00", // even weekdays: the 13th of January is a Tuesday
		want: []string{"2026-01-13T00:00", "2026-06-13T00:00"},
	}, instantsCase{
		expr: "0 0 5,* * 5", after: "2026-01-01T00:00", // doesn't begin with *
		want: []string{"2026-01-02T00:00", "2026-01-03T00:00"},
	}, instantsCase{
		expr: "0 0 *,5 * 5", after: "2026-01-01T00:00", // does
		want: []string{"2026-01-02T00:00", "2026-01-09T00:00"},
	})
}

func TestC10_SevenIsSundayToo(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		expr: "0 0 * * 7", after: "2026-01-01T00:00",
		want: []string{"2026-01-04T00:00", "2026-01-11T00:00"},
	}, instantsCase{
		expr: "0 0 * * 5-7", after: "2026-01-01T00:00",
		want: []string{"2026-01-02T00:00", "2026-01-03T00:00", "2026-01-04T00:00", "2026-01-09T00:00"},
	}, instantsCase{
		expr: "0 0 * * 0,7", after: "2026-01-01T00:00",
		want: []string{"2026-01-04T00:00", "2026-01-11T00:00"},
	})
}

func TestC12_NextIsStrictlyAfterAndPrevIsNot(t *testing.T) {
	t.Parallel()
	e := mustParse(t, "0 12 * * *")
	slot, next, prev := instant(t, "2026-05-05T12:00"), instant(t, "2026-05-06T12:00"), instant(t, "2026-05-04T12:00")
	for _, c := range []struct{ at, next, prev time.Time }{
		{slot, next, slot},
		{slot.Add(-1), slot, prev},
		{slot.Add(1), next, slot},
		{slot.Add(500 * time.Millisecond), next, slot},
		{slot.Add(-time.Minute), slot, prev},
		{slot.In(mustZone(t, "Asia/Kathmandu")), next, slot},
	} {
		require.Equal(t, c.next, e.Next(c.at, time.UTC), "after %v", c.at)
		require.Equal(t, c.prev, e.Prev(c.at, time.UTC), "until %v", c.at)
	}
	// Before 1970, where division rounds the other way.
	old := time.Date(1960, 5, 5, 12, 0, 0, 0, time.UTC)
	require.Equal(t, old, e.Next(old.Add(-1), time.UTC))
	require.Equal(t, old, e.Prev(old.Add(1), time.UTC))
}
