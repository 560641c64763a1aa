package cron_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// Fuzzing: any text, any instant. What is accepted must be in the grammar as it is
// written down here a second time, and what Next says must hold whoever asks.

// grammar is loose about values (Parse checks them) and strict about form.
var grammar = regexp.MustCompile(`^[ \t]*(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|` +
	`((\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?(,(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?)*([ \t]+|$)){5})[ \t]*$`)

var seeds = []string{"* * * * *", "30 2 * * *", "5 2,3 * * *", "*/10 * * * *", "0 0 29 2 *", "0 0 31 4,6 *", "0 0 */2 * 5",
	"0 0 * * 5-7", "0 0 * jan-DEC sun", "10-40/15 1 1 1 */7", "@hourly", "@reboot", "", ", , , , ,", "0,", "*-5", "1-2-3", "*/0", "*/90",
	"60", "+5", "5-1", "99999999999999999999 * * * *", "0 * * * * *", "\x00", "٣ * * * *", "CRON_TZ=UTC", "TZ=", "5,* 1/3 *,5 2 7",
	"* 2 8-14 3 */7"}

// C11: never a panic, and always a typed error or an expression that has a next slot.
func FuzzParse(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, expr string) {
		e, err := cron.Parse(expr)
		if err != nil {
			require.Nil(t, e)
			pe, ok := errors.AsType[*cron.ParseError](err)
			require.True(t, ok)
			require.Equal(t, expr, pe.Expr)
			require.NotEmpty(t, pe.Reason)
			return
		}
		require.LessOrEqual(t, len(expr), 256)
		require.Regexp(t, grammar, expr)
		require.Equal(t, expr, e.String())
		require.False(t, e.Next(start, time.UTC).IsZero())
		newOracle(t, expr)
	})
}

// C12: Next is a whole minute of UTC strictly after the instant, there is nothing
// between, and Prev is its inverse; for every instant that a time.Time can hold.
func FuzzNext(f *testing.F) {
	zones := fuzzZones(f)
	for i, s := range seeds {
		f.Add(s, uint64(i), 2*int64(1_772_000_000+i*86_000), int64(i%2), byte(i))
	}
	f.Add("0 12 * * *", uint64(0), int64(1<<63-1), int64(0), byte(0))
	f.Add("0 12 * * *", uint64(0), int64(-1<<63), int64(1), byte(1))
	f.Fuzz(func(t *testing.T, expr string, seed uint64, seconds, nanos int64, zone byte) {
		expr = acceptable(expr, seed)
		e := mustParse(t, expr)
		// Half: the greatest numbers overflow a time.Time, and After turns round.
		loc, at := zones[int(zone)%len(zones)], time.Unix(seconds/2, nanos)
		if next := e.Next(at, loc); !next.IsZero() {
			require.Equal(t, next.Format(minuteLayout), minute(next))
			require.True(t, next.After(at))
			require.Equal(t, next, e.Prev(next, loc))
			require.Equal(t, next, e.Next(next.Add(-1), loc))
			if prev := e.Prev(next.Add(-1), loc); !prev.IsZero() {
				require.False(t, prev.After(at), "%q in %s: %v lies between %v and Next, %v", expr, loc, prev, at.UTC(), next)
				require.Equal(t, next, e.Next(prev, loc))
			}
			n, last := e.Count(at, next, loc, 2)
			require.Equal(t, 1, n)
			require.Equal(t, next, last)
		}
		if prev := e.Prev(at, loc); !prev.IsZero() {
			require.Equal(t, prev.Format(minuteLayout), minute(prev))
			require.False(t, prev.After(at))
		}
	})
}

// S2: two days from any instant of the years 1900 to 2100 are as the oracle says.
func FuzzAgreesWithTheOracle(f *testing.F) {
	zones := fuzzZones(f)
	for i, s := range seeds {
		f.Add(s, uint64(i), int64(1_772_953_200+i*86_000), byte(i))
		f.Add(s, uint64(i+99), int64(1_793_500_000-i*3_600), byte(1))
	}
	f.Fuzz(func(t *testing.T, expr string, seed uint64, seconds int64, zone byte) {
		const century = 100 * 365 * 86_400
		from := time.Unix(seconds%century, 0)
		if seconds < 0 {
			from = time.Unix(seconds%(70*365*86_400), 0)
		}
		agree(t, walk(zones[int(zone)%len(zones)], from, from.Add(48*time.Hour)), acceptable(expr, seed))
	})
}

// acceptable returns expr if Parse takes it (FuzzParse looks at the rest), else one
// made from seed: few texts that a fuzzer thinks of are expressions.
func acceptable(expr string, seed uint64) string {
	if _, err := cron.Parse(expr); err == nil {
		return expr
	}
	return randomExpr(rand.New(rand.NewPCG(seed, 0)))
}

// fuzzZones has UTC, the sample, and zones whose old offsets have odd seconds.
func fuzzZones(f *testing.F) (zones []*time.Location) {
	f.Helper()
	for _, name := range append([]string{"", "Africa/Monrovia", "Europe/Amsterdam", "Pacific/Kwajalein", "America/Juneau"}, sample...) {
		zones = append(zones, mustZone(f, name))
	}
	return zones
}
