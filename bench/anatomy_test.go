package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a job writes is known: a claim is a HOT update; a result moves the row out of one index
// and into another, so that it has an entry there and a new one in the primary key.
func TestTheAnatomyOfADrainShowsWhatAJobWrites(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg, err := parse([]string{"-anatomy", "-systems", "rebase", "-scale", "0.1", "-profile", dir}, t.Output())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out strings.Builder
	err = run(ctx, cfg, &out)
	require.NoError(t, err, out.String())
	if strings.Contains(out.String(), "with its contrib modules") && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" {
		t.Skip(out.String())
	}
	for name, want := range map[string]map[string]float64{
		"drain":       {"row versions": 2, "of them HOT": 1, "row locks": 2, "B-tree entries": 2, "TOAST rows written": 0},
		"payload.10k": {"row versions": 2, "of them HOT": 1, "B-tree entries": 2, "TOAST rows written": 0, "TOAST rows deleted": 0},
		"insert":      {"row versions": 1, "row locks": 0, "B-tree entries": 2},
		"insert.keys": {"row versions": 1, "row locks": 0, "B-tree entries": 3},
	} {
		_, text, _ := strings.Cut(out.String(), "## "+name+", a job\n")
		for line, value := range want {
			require.InDelta(t, value, tableValue(t, text, line), 0.3, "%s: %s\n%s", name, line, text)
		}
		require.InDelta(t, 600, tableValue(t, text, "WAL, bytes"), 400, name)
		require.FileExists(t, dir+"/anatomy-"+name+"-rebase.pprof")
	}
	for _, statement := range []string{"claim", "results", "settings"} {
		require.Contains(t, out.String(), "\n  "+statement+" ", "the statement isn't known by its text any more")
	}
}

// tableValue is the first number of a line.
func tableValue(t *testing.T, text, line string) float64 {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n"+line)
	require.True(t, found, text)
	v, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	require.NoError(t, err, rest)
	return v
}

func TestAStatementIsNamedByItsFirstWords(t *testing.T) {
	t.Parallel()
	require.Equal(t, "claim", nameOf(claimSQL))
	require.Equal(t, "results", nameOf(succeedSQL))
	require.Equal(t, "settings", nameOf(settingsSQL))
	require.Equal(t, "claims that are over", nameOf(overSQL))
	require.Equal(t, "delete from things where id = $1", nameOf("\n delete\tfrom things\nwhere id = $1"))
	long := nameOf("select " + strings.Repeat("word ", 50))
	require.LessOrEqual(t, len(long), 60)
	require.Contains(t, long, "word word")
}
