package crontest_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	robfig "github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// The widely used parser as a witness, in UTC and where both keep the same rules.
// Read from its source and confirmed by the tests below, its rules differ so:
//
//   - Day rule. Both ask whether a day field has a star: if so both days must match,
//     else either. But a star is there for robfig if any item of the list is * or
//     */1, and not if it is */n; here if the field begins with *. So a day field that
//     has a * anywhere is compared only as a whole: *.
//   - Sunday is 0 only: 7 is an error there, and a/n in the day of week ends at 6.
//   - It gives up after five years, and finds no next 29 February after 2096.
//   - It takes ? and empty items of a list, steps longer than a field, TZ= and
//     CRON_TZ= (which panics without a field after it) and @every. It is never fed any.
//
// Clock changes are not compared: there robfig loses or repeats fixed times.

// parser is robfig's for five fields and no words.
var parser = robfig.NewParser(robfig.Minute | robfig.Hour | robfig.Dom | robfig.Month | robfig.Dow)

// randomField writes a field with values from low to high: * or a list, which with
// star may have */n in it.
func randomField(rng *rand.Rand, low, high int, star bool) string {
	n := func() int { return low + rng.IntN(high-low+1) }
	item := func() string {
		a, b := n(), n()
		a, b = min(a, b), max(a, b)
		step := 1 + rng.IntN(high-low)
		kinds := []string{fmt.Sprint(a), fmt.Sprint(a), fmt.Sprintf("%d-%d", a, b), fmt.Sprintf("%d-%d/%d", a, b, step)}
		if high != 6 {
			kinds = append(kinds, fmt.Sprintf("%d/%d", a, step))
		}
		if star {
			kinds = append(kinds, fmt.Sprintf("*/%d", step))
		}
		return kinds[rng.IntN(len(kinds))]
	}
	if rng.IntN(5) < 2 {
		return "*"
	}
	items := make([]string, 1+rng.IntN(3))
	for i := range items {
		items[i] = item()
	}
	return strings.Join(items, ",")
}

// randomExpr writes an expression of the common rules, one in ten a rare day.
func randomExpr(rng *rand.Rand) string {
	if rng.IntN(10) == 0 {
		return fmt.Sprintf("%d %d %d %d/%d *", rng.IntN(60), rng.IntN(24), 29+rng.IntN(3), 1+rng.IntN(12), 1+rng.IntN(12))
	}
	return strings.Join([]string{
		randomField(rng, 0, 59, true), randomField(rng, 0, 23, true),
		randomField(rng, 1, 31, false), randomField(rng, 1, 12, true), randomField(rng, 0, 6, false),
	}, " ")
}

// Thousands of expressions, a dozen slots each. What never matches for us must have
// no slot in robfig's five years either.
func TestNext_AgreesWithRobfigInUTC(t *testing.T) {
	t.Parallel()
	const seed1, seed2 = 20_260_101, 5
	rng := rand.New(rand.NewPCG(seed1, seed2))
	var slots, never, far int
	for range 10_000 {
		expr := randomExpr(rng)
		theirs, err := parser.Parse(expr)
		require.NoError(t, err, expr)
		at := time.Date(1950+rng.IntN(200), 1, 1+rng.IntN(365), rng.IntN(24), rng.IntN(60), rng.IntN(60), rng.IntN(2), time.UTC)
		ours, err := cron.Parse(expr)
		if err != nil {
			require.ErrorContains(t, err, "never matches", expr)
			require.Zero(t, theirs.Next(at), expr)
			never++
			continue
		}
		for range 12 {
			want, got := theirs.Next(at), ours.Next(at, time.UTC)
			if want.IsZero() { // beyond five years
				require.GreaterOrEqual(t, got.Year(), at.Year()+5, "%q after %v", expr, at)
				far++
				break
			}
			if !want.Equal(got) {
				require.Equal(t, want, got, "%q after %v", expr, at)
			}
			require.False(t, ours.Prev(got.Add(-1), time.UTC).After(at), "%q: Prev finds a slot between %v and %v", expr, at, got)
			at = got
			slots++
		}
	}
	t.Logf("%d slots alike, %d expressions that never match, %d searches beyond five years", slots, never, far)
	require.Greater(t, slots, 100_000)
	require.Positive(t, never)
	require.Positive(t, far)
}

// The words mean the same, fixed or not.
func TestWords_AgreeWithRobfig(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"} {
		theirs, err := robfig.ParseStandard(word)
		require.NoError(t, err)
		// Its words belong to the zone of this process unless told.
		theirs.(*robfig.SpecSchedule).Location = time.UTC
		ours, err := cron.Parse(word)
		require.NoError(t, err)
		for at := time.Date(2026, 1, 31, 23, 59, 59, 0, time.UTC); at.Year() < 2030; {
			require.Equal(t, theirs.Next(at), ours.Next(at, time.UTC), "%s after %v", word, at)
			at = ours.Next(at, time.UTC).AddDate(0, 0, 9)
		}
	}
}

// The differences listed above are real: if one goes, the comparison can be widened.
func TestRules_DifferFromRobfigWhereListed(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ expr, ours, theirs string }{
		{"0 0 */2 * 5", "2026-01-09", "2026-01-02"},
		{"0 0 13 * */2", "2026-01-13", "2026-01-03"},
		{"0 0 5,* * 6", "2026-01-02", "2026-01-03"},
		{"0 0 * * 4/3", "2026-01-04", "2026-01-08"},
	} {
		ours, err := cron.Parse(c.expr)
		require.NoError(t, err)
		theirs, err := parser.Parse(c.expr)
		require.NoError(t, err)
		require.Equal(t, c.ours, ours.Next(at, time.UTC).Format(time.DateOnly), c.expr)
		require.Equal(t, c.theirs, theirs.Next(at).Format(time.DateOnly), c.expr)
	}
	_, err := parser.Parse("0 0 * * 7")
	require.Error(t, err)
	leap, err := parser.Parse("0 0 29 2 *")
	require.NoError(t, err)
	require.Zero(t, leap.Next(time.Date(2097, 1, 1, 0, 0, 0, 0, time.UTC)))
}

func BenchmarkNext(b *testing.B) {
	for _, expr := range []string{"* * * * *", "*/15 * * * *", "30 2 * * *", "0 9 * * 1-5", "0 0 1 * *", "0 0 1 1 *", "0 0 29 2 *"} {
		ours, err := cron.Parse(expr)
		require.NoError(b, err)
		theirs, err := parser.Parse(expr)
		require.NoError(b, err)
		for _, zone := range []string{"UTC", "America/New_York"} {
			loc, err := cron.LoadZone(zone)
			require.NoError(b, err)
			theirs.(*robfig.SpecSchedule).Location = loc
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			run := func(name string, next func(time.Time) time.Time) {
				b.Run(strings.ReplaceAll(expr, " ", "_")+"/"+strings.TrimPrefix(zone, "America/")+"/"+name, func(b *testing.B) {
					b.ReportAllocs()
					at := start
					for b.Loop() {
						if at = next(at); at.Year() > 2080 || at.IsZero() {
							at = start
						}
					}
				})
			}
			run("rebase", func(at time.Time) time.Time { return ours.Next(at, loc) })
			run("robfig", theirs.Next)
		}
	}
}
