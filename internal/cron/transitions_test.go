package cron_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// Every change of every clock, against the oracle. The changes are found by looking
// at the offset of each hour, not with ZoneBounds.

// sample: half hours, quarters, a lost day, two hours, winter time as the exception,
// four changes a year, none since 1986, rules that ended, and a gap of three hours.
var sample = []string{newYork, "Australia/Lord_Howe", "Pacific/Apia", "Antarctica/Troll", "Europe/Dublin",
	"Africa/Casablanca", "Asia/Kathmandu", "Pacific/Chatham", "Asia/Tehran", "Antarctica/Casey"}

// S2: from 1985 on, and beyond the tables of the zones' files.
func TestDaylightSaving_EveryChangeInTheSampleAgreesWithTheOracle(t *testing.T) {
	t.Parallel()
	agreeInZones(t, sample, 1985, 2031)
	agreeInZones(t, sample, 2038, 2042)
}

// S2: every zone that this machine knows if REBASE_LONG is set, else the sample.
func TestDaylightSaving_EveryZoneOfTheMachineAgreesWithTheOracle(t *testing.T) {
	t.Parallel()
	names := sample
	if long(t) {
		names = machineZones(t)
		require.Greater(t, len(names), 400)
	}
	agreeInZones(t, names, 2024, 2031)
}

// agreeInZones compares round every change of each zone's clock in [from, to), and on
// one ordinary day.
func agreeInZones(t *testing.T, names []string, from, to int) {
	t.Helper()
	extra := 4 // random expressions for each change
	if long(t) {
		extra = 12
	}
	var zones, changes, compared atomic.Int64
	start := time.Now()
	t.Run(fmt.Sprintf("%d to %d", from, to-1), func(t *testing.T) {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				loc := mustZone(t, name)
				days := changesOf(loc, from, to)
				zones.Add(1)
				changes.Add(int64(len(days)))
				rng := rand.New(rand.NewPCG(uint64(from), uint64(len(name)))) // the same run after run
				for _, at := range append(days, time.Date(from, 1, 15, 0, 0, 0, 0, time.UTC)) {
					_, month, day := at.In(loc).Date()
					exprs := append(slices.Clone(kinds), // and two that are rare: on this day of a year only
						fmt.Sprintf("*/20 * %d %d *", day, month), fmt.Sprintf("10,50 0-4,22,23 %d %d *", day, month))
					for range extra {
						exprs = append(exprs, randomExpr(rng))
					}
					agree(t, walk(loc, at.Add(-16*time.Hour), at.Add(16*time.Hour)), exprs...)
					compared.Add(int64(len(exprs)))
				}
			})
		}
	})
	require.EqualValues(t, len(names), zones.Load())
	require.Positive(t, changes.Load())
	t.Logf("%d zones, %d changes of the clock, %d comparisons of an expression over 32 hours, %v",
		zones.Load(), changes.Load(), compared.Load(), time.Since(start).Round(time.Millisecond))
}

// kinds has one of each kind, with the hours in which clocks are changed.
var kinds = []string{"* * * * *", "*/7 * * * *", "0 * * * *", "* 2 * * *", "*/30 0-3 * * *", "5 */2 * * *", "30 2 * * *",
	"0 0 * * *", "30 1,2 * * *", "5 0-4 * * *", "15,45 0-3,22,23 * * 0", "0-59/5 1-3 * * *", "10-20 23,0 1-7,25-31 * 6,7", "59 23 * * 5-7"}

// changesOf returns the hours before which the offset of a zone changed.
func changesOf(loc *time.Location, from, to int) (changes []time.Time) {
	end := time.Date(to, 1, 1, 0, 0, 0, 0, time.UTC)
	at := time.Date(from, 1, 1, 0, 0, 0, 0, time.UTC)
	_, offset := at.In(loc).Zone()
	for ; at.Before(end); at = at.Add(time.Hour) {
		if _, now := at.In(loc).Zone(); now != offset {
			changes, offset = append(changes, at), now
		}
	}
	return changes
}

// machineZones lists the time zone database of this machine: each file that says
// that it is one, but not the second copies of all zones and not the host's own.
func machineZones(t *testing.T) (names []string) {
	t.Helper()
	fsys := os.DirFS("/usr/share/zoneinfo")
	require.NoError(t, fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		top, _, _ := strings.Cut(path, "/")
		if slices.Contains([]string{"posix", "right", "localtime", "posixrules", "Factory"}, top) || d.IsDir() {
			return nil
		}
		data, err := fs.ReadFile(fsys, path)
		if bytes.HasPrefix(data, []byte("TZif")) {
			names = append(names, path)
		}
		return err
	}))
	return names
}

// randomExpr writes an expression that Parse accepts, most often with fixed times in
// the hours in which clocks are changed.
func randomExpr(rng *rand.Rand) string {
	item := func(low, high int) string {
		a, b := low+rng.IntN(high-low+1), low+rng.IntN(high-low+1)
		a, b = min(a, b), max(a, b)
		switch rng.IntN(6) {
		case 0:
			return fmt.Sprintf("%d-%d", a, b)
		case 1:
			return fmt.Sprintf("%d-%d/%d", a, b, 1+rng.IntN(high-low))
		case 2:
			return fmt.Sprintf("%d/%d", a, 1+rng.IntN(high-low))
		default:
			return fmt.Sprint(a)
		}
	}
	list := func(low, high, stars int) string {
		switch rng.IntN(10) {
		case 0:
			return fmt.Sprintf("*/%d", 1+rng.IntN(high-low))
		case 1, 2:
			return item(low, high) + "," + item(low, high)
		case 3:
			return item(low, high) + ",*"
		default:
			if rng.IntN(10) < stars {
				return "*"
			}
			return item(low, high)
		}
	}
	for {
		hour := list(0, 23, 1)
		if rng.IntN(3) > 0 {
			hour = list(0, 4, 0)
		}
		expr := strings.Join([]string{list(0, 59, 1), hour, list(1, 31, 7), list(1, 12, 9), list(0, 7, 7)}, " ")
		if _, err := cron.Parse(expr); err == nil { // else it never matches
			return expr
		}
	}
}
