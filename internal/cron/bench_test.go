package cron_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// What Next costs for each kind of expression, and that it leaves no garbage: a
// scheduler asks it for every schedule at every look.

var costs = []struct{ name, expr, zone string }{
	{"minutely/UTC", "* * * * *", ""},
	{"minutely/NewYork", "* * * * *", newYork},
	{"hourly/NewYork", "0 * * * *", newYork},
	{"daily/UTC", "30 2 * * *", ""},
	{"daily/NewYork", "30 2 * * *", newYork},
	{"weekdays/NewYork", "0 9 * * 1-5", newYork},
	{"monthly/NewYork", "0 0 1 * *", newYork},
	{"yearly/NewYork", "0 0 1 1 *", newYork},
	{"leapday/UTC", "0 0 29 2 *", ""},
	{"leapday/NewYork", "0 0 29 2 *", newYork},
	{"leapsunday/NewYork", "0 0 29 2 */7", newYork},
	{"never/NewYork", "* 2 8-14 3 */7", newYork}, // searches all 400 years
}

// Not parallel: the allocations of other tests would be counted.
func TestNext_AllocatesNothing(t *testing.T) {
	at := time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC)
	for _, c := range costs {
		e, loc := mustParse(t, c.expr), mustZone(t, c.zone)
		require.Zero(t, testing.AllocsPerRun(20, func() { e.Next(at, loc) }), "Next: %s", c.name)
		require.Zero(t, testing.AllocsPerRun(20, func() { e.Prev(at, loc) }), "Prev: %s", c.name)
		require.Zero(t, testing.AllocsPerRun(20, func() { e.Count(at, at.Add(time.Hour), loc, 9) }), "Count: %s", c.name)
	}
}

func BenchmarkNext(b *testing.B) {
	for _, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			e, loc := mustParse(b, c.expr), mustZone(b, c.zone)
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			b.ReportAllocs()
			at := start
			for b.Loop() {
				// From slot to slot, so that all days and changes of the clock are met.
				if at = e.Next(at, loc); at.Year() > 2080 || at.IsZero() {
					at = start
				}
			}
		})
	}
}

func BenchmarkPrev(b *testing.B) {
	for _, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			e, loc := mustParse(b, c.expr), mustZone(b, c.zone)
			at := time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC)
			b.ReportAllocs()
			for b.Loop() {
				e.Prev(at, loc)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, expr := range []string{"*/15 * * * *", "5,35 8-18/2 1-7 JAN-JUN MON-FRI", "@daily", "0 0 30 2 *"} {
		b.Run(expr, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = cron.Parse(expr)
			}
		})
	}
}
