package cron_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// Zones by name, and clock changes that the agreed cases C1 to C5 don't show: gaps
// and overlaps of other lengths, at midnight, and beyond the table of a zone's file.

func TestLoadZone_TakesIANANames(t *testing.T) {
	t.Parallel()
	require.Same(t, time.UTC, mustZone(t, ""))
	for _, name := range []string{"UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Etc/GMT-14",
		"EST5EDT", "America/Port-au-Prince", "NZ-CHAT"} {
		require.Equal(t, name, mustZone(t, name).String())
	}
}

// S4, C23: a name that doesn't mean the same on every host is refused, never UTC.
func TestLoadZone_RefusesEverythingElse(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Local", "local", "LOCAL", "localtime", "posixrules", "Factory", "posix/Europe/Paris",
		"right/Europe/Paris", "Right/UTC", "Local/Time", "Mars/Olympus_Mons", "Europe", "Europe/", "/Europe/Paris",
		"/etc/localtime", "//UTC", "Europe//Paris", "../zoneinfo/UTC", "Europe/../UTC", "..", ".", "./UTC", "zone.tab",
		`Europe\Paris`, "C:/x", "UTC ", " UTC", "UTC\x00", "UTC\n", "+02:00", "UTC+2", "-1", "Europe/Zürich", "\xff",
		strings.Repeat("A", 1<<20)} {
		loc, err := cron.LoadZone(name)
		require.Nil(t, loc, "%.100q", name)
		ze, ok := errors.AsType[*cron.ZoneError](err)
		require.True(t, ok, "%.100q: want a *ZoneError, got %v", name, err)
		require.Equal(t, name, ze.Name)
		require.NotEmpty(t, ze.Reason)
		require.Less(t, len(err.Error()), 2500)
	}
}

func TestNext_ANilZonePanicsAndIsNeverUTC(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { mustParse(t, "@daily").Next(time.Now(), nil) })
	require.Panics(t, func() { mustParse(t, "@daily").Prev(time.Now(), nil) })
}

func TestDaylightSaving_GapsOfOtherLengths(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		// Half an hour: 02:00 becomes 02:30.
		expr: "15,45 2 * * *", zone: "Australia/Lord_Howe", after: "2026-10-03T00:00",
		want: []string{"2026-10-03T15:30", "2026-10-03T15:45", "2026-10-04T15:15", "2026-10-04T15:45"},
	}, instantsCase{
		// A quarter: 1986 began at 00:15.
		expr: "5 0 * * *", zone: "Asia/Kathmandu", after: "1985-12-31T00:00",
		want: []string{"1985-12-31T18:30", "1986-01-01T18:20"},
	}, instantsCase{
		// Exactly three hours, 00:01 becomes 03:01: the limit itself is made up.
		expr: "0 2 * * *", zone: "Antarctica/Casey", after: "2020-10-03T12:00",
		want: []string{"2020-10-03T16:01", "2020-10-04T15:00"},
	}, instantsCase{
		// A whole day: 30 December 2011 never was, and is not made up.
		expr: "0 12 * * *", zone: "Pacific/Apia", after: "2011-12-29T00:00",
		want: []string{"2011-12-29T22:00", "2011-12-30T22:00"},
	}, instantsCase{
		expr: "0 12 30 12 *", zone: "Pacific/Apia", after: "2011-01-01T00:00",
		want: []string{"2012-12-29T22:00"},
	}, instantsCase{
		// Midnight is missing; the day is that of the missing time.
		expr: "0 0 * * 5", zone: "Africa/Cairo", after: "2026-04-20T00:00",
		want: []string{"2026-04-23T22:00", "2026-04-30T21:00"},
	})
}

func TestDaylightSaving_OverlapsOfOtherLengths(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		// Half an hour: 02:00 becomes 01:30.
		expr: "40 1 * * *", zone: "Australia/Lord_Howe", after: "2026-04-04T00:00",
		want: []string{"2026-04-04T14:40", "2026-04-05T15:10"},
	}, instantsCase{
		expr: "*/20 1 * * *", zone: "Australia/Lord_Howe", after: "2026-04-04T14:00",
		want: []string{"2026-04-04T14:20", "2026-04-04T14:40", "2026-04-04T15:10", "2026-04-05T14:30"},
	}, instantsCase{
		// A whole day: 30 September 1969 was shown twice.
		expr: "0 13 * * *", zone: "Pacific/Kwajalein", after: "1969-09-29T00:00",
		want: []string{"1969-09-29T02:00", "1969-09-30T02:00", "1969-10-02T01:00"},
	}, instantsCase{
		// Winter time is the one that is "saved" here; the clock does the same.
		expr: "30 1 * * *", zone: "Europe/Dublin", after: "2026-10-24T12:00",
		want: []string{"2026-10-25T00:30", "2026-10-26T01:30"},
	})
}

// Prev looks at a week at a time: one that begins within a second pass must know it.
func TestPrev_SeesASecondPassFromAWeekLater(t *testing.T) {
	t.Parallel()
	e, loc := mustParse(t, "30 1 1 11 *"), mustZone(t, newYork)
	for until := instant(t, "2026-11-08T05:00"); until.Before(instant(t, "2026-11-08T08:00")); until = until.Add(time.Minute) {
		require.Equal(t, "2026-11-01T05:30", minute(e.Prev(until, loc)), "until %v", until)
	}
}

// Until 1972 some offsets were no whole minutes; so were the instants of a change.
// Slots are whole minutes of UTC all the same: those at which the clock shows theirs.
func TestNext_OffsetsOfOddSeconds(t *testing.T) {
	t.Parallel()
	checkAll(t, instantsCase{
		// Minus 44 min 30 s: at 12:45:00 UTC the clock says 12:00:30.
		expr: "0 12 * * *", zone: "Africa/Monrovia", after: "1971-06-01T00:00",
		want: []string{"1971-06-01T12:45", "1971-06-02T12:45"},
	}, instantsCase{
		// At 00:44:30 UTC midnight becomes 00:44:30.
		expr: "59 23,0 * * *", zone: "Africa/Monrovia", after: "1972-01-06T12:00",
		want: []string{"1972-01-07T00:44", "1972-01-07T00:59", "1972-01-07T23:59"},
	}, instantsCase{
		expr: "10 0 * * *", zone: "Africa/Monrovia", after: "1972-01-06T12:00",
		want: []string{"1972-01-07T00:45", "1972-01-08T00:10"},
	})
	for name, at := range map[string]string{"Africa/Monrovia": "1972-01-07T00:44", "Europe/Amsterdam": "1937-06-30T22:40"} {
		day := instant(t, at)
		agree(t, walk(mustZone(t, name), day.Add(-30*time.Hour), day.Add(30*time.Hour)), kinds...)
	}
}

// Beyond the table of a zone's file Go ends a leap year a day early (see zoneAt);
// a search that believed it would never leave that day.
func TestNext_TheLastDayOfALeapYearEnds(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{newYork, "Australia/Sydney", "Europe/Dublin"} {
		loc := mustZone(t, zone)
		for _, year := range []int{2040, 2044, 2096} {
			from := time.Date(year, 12, 30, 0, 0, 0, 0, time.UTC)
			agree(t, walk(loc, from, from.Add(96*time.Hour)), "0 12 * * *", "*/7 * * * *", "0 0 1 1 *", "59 23 31 12 *")
		}
	}
}

// Matches the wall clock only in an hour that every year leaves out: no slot, and
// the search for it is bounded.
func TestNext_IsZeroWhereNothingMatchesInFourHundredYears(t *testing.T) {
	t.Parallel()
	e, loc := mustParse(t, "* 2 8-14 3 */7"), mustZone(t, newYork)
	start := time.Now()
	require.Zero(t, e.Next(instant(t, "2026-01-01T00:00"), loc))
	require.Zero(t, e.Prev(instant(t, "9000-01-01T00:00"), loc))
	n, last := e.Count(instant(t, "2026-01-01T00:00"), instant(t, "2126-01-01T00:00"), loc, 10)
	require.Zero(t, n)
	require.Zero(t, last)
	require.Less(t, time.Since(start), time.Second)
}

func TestNext_SlotsLieInTheYearsOneTo9999(t *testing.T) {
	t.Parallel()
	e := mustParse(t, "0 0 * * *")
	require.Equal(t, "9999-12-31T00:00", minute(e.Next(instant(t, "9999-12-30T00:00"), time.UTC)))
	require.Zero(t, e.Next(instant(t, "9999-12-31T00:00"), time.UTC))
	require.Equal(t, "9999-12-31T00:00", minute(e.Prev(time.Date(20_000, 1, 1, 0, 0, 0, 0, time.UTC), time.UTC)))
	require.Equal(t, "0001-01-02T00:00", minute(e.Next(time.Time{}, time.UTC)))
	require.Zero(t, e.Prev(time.Time{}.Add(-1), time.UTC))
	for _, loc := range []*time.Location{time.UTC, mustZone(t, newYork)} {
		for _, seconds := range []int64{-1 << 63, -1 << 62, 1 << 62, 1<<63 - 1} {
			at := time.Unix(seconds, 0)
			require.Equal(t, seconds > 0, e.Next(at, loc).IsZero())
			require.Equal(t, seconds < 0, e.Prev(at, loc).IsZero())
		}
	}
}

func TestCount_IsTheNumberOfSlotsAndTheLatest(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time { return instant(t, s) }
	for _, c := range []struct {
		expr, zone, after, until string
		limit, n                 int
		last                     string
	}{
		// C16: ten hours away with a slot every minute. Both ends: not the first, but the last.
		{"* * * * *", "", "2026-01-01T00:00", "2026-01-01T10:00", 1000, 600, "2026-01-01T10:00"},
		{"* * * * *", "", "2026-01-01T00:00", "2026-01-01T10:00", 100, 100, "2026-01-01T10:00"},
		{"* * * * *", "", "2026-01-01T00:00", "2026-01-01T10:00", 600, 600, "2026-01-01T10:00"},
		{"* * * * *", "", "2026-01-01T00:00", "2026-01-01T10:00", 0, 0, "2026-01-01T10:00"},
		{"* * * * *", "", "2026-01-01T00:00", "2026-01-01T10:00", -1, 0, "2026-01-01T10:00"},
		{"0 10 * * *", "", "2026-01-01T10:00", "2026-01-02T09:59", 5, 0, ""},
		{"0 10 * * *", "", "2026-01-01T10:00", "2026-01-02T10:00", 5, 1, "2026-01-02T10:00"},
		{"0 10 * * *", "", "2026-01-02T10:00", "2026-01-01T10:00", 5, 0, ""},
		{"0 10 * * *", "", "2026-01-01T10:00", "2026-01-01T10:00", 5, 0, ""},
		{"0 * * * *", newYork, "2026-10-31T04:00", "2026-11-02T05:00", 100, 49, "2026-11-02T05:00"},
		{"30 1 * * *", newYork, "2026-11-01T05:30", "2026-11-02T06:29", 100, 0, ""},
	} {
		n, last := mustParse(t, c.expr).Count(at(c.after), at(c.until), mustZone(t, c.zone), c.limit)
		require.Equal(t, c.n, n, "%+v", c)
		if c.last == "" {
			require.Zero(t, last, "%+v", c)
		} else {
			require.Equal(t, c.last, minute(last), "%+v", c)
		}
	}
}
