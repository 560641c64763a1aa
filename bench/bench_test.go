package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each queue and the loops beside it drain 200 jobs, every value is printed and kept, and there is a
// picture. The figures mean nothing here; that they come at all does.
func TestASmallDrainOfEverySystemIsMeasuredAndKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg, err := parse([]string{"-n", "1", "-scale", "0.002", "-scenarios", "drain", "-json", filepath.Join(dir, "run.json"), "-plot", dir}, t.Output())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out strings.Builder
	require.NoError(t, run(ctx, cfg, &out), out.String())
	data, err := os.ReadFile(filepath.Join(dir, "run.json"))
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(data, &r))
	want := drain.systems
	if strings.Contains(out.String(), "SKIPPED scenario=drain") {
		t.Log("the queues on Node.js were left out:\n" + out.String())
		want = append([]*system{ceilingSystem, bareSystem, bareDeleteSystem}, queues...)
	}
	require.Len(t, r.Measurements, len(want))
	require.Len(t, r.Summaries, len(want))
	for _, s := range want {
		require.Contains(t, out.String(), "RESULT scenario=drain system="+s.name+" value=")
	}
	for _, m := range r.Measurements {
		require.Positive(t, m.Value, m.System)
		require.Equal(t, "jobs/s", m.Unit)
	}
	require.Contains(t, r.ServerSettings, "fsync = on")
	picture, err := os.ReadFile(filepath.Join(dir, "drain.svg"))
	require.NoError(t, err)
	require.Contains(t, string(picture), "<svg")
}

func TestMediansSpreadAndRatiosOfRounds(t *testing.T) {
	t.Parallel()
	var all []measurement
	for _, v := range []float64{10, 12, 11, 90, 12} {
		all = append(all,
			measurement{Scenario: "s", System: "river", Value: v, Unit: "jobs/s"},
			measurement{Scenario: "s.part", System: "river", Value: 1, Unit: "×"},
			measurement{Scenario: "s", System: "rebase", Value: 3 * v, Unit: "jobs/s"})
	}
	require.Equal(t, []summary{
		{Scenario: "s", System: "river", Unit: "jobs/s", N: 5, Median: 12, MAD: 1, Min: 10, Max: 90, Ratio: 3},
		{Scenario: "s", System: "rebase", Unit: "jobs/s", N: 5, Median: 36, MAD: 3, Min: 30, Max: 270, Ratio: 1},
		{Scenario: "s.part", System: "river", Unit: "×", N: 5, Median: 1, Min: 1, Max: 1},
	}, summarise(all))
	require.Equal(t, 99.0, quantile(upTo(100), 0.99))
	require.Equal(t, 50.0, quantile(upTo(100), 0.50))
	require.Equal(t, 7.0, quantile(upTo(7), 0.99))
}

func upTo(n int) (values []float64) {
	for i := range n {
		values = append(values, float64(n-i))
	}
	return values
}

// A misspelt name ends the run before it begins.
func TestUnknownNamesAreRefused(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"-scenarios drain,drian": `unknown scenario "drian"`,
		"-systems rivers":        `unknown system "rivers"`,
		"-n 0":                   "not a number above 0",
		"-n 1.5":                 "not a whole number",
		"-ceiling-batch 0":       "must be positive",
		"drain":                  `unexpected argument "drain"`,
	} {
		_, err := parse(strings.Fields(flags), t.Output())
		require.ErrorContains(t, err, want)
	}
	cfg, err := parse([]string{"-scenarios", "held,drain"}, t.Output())
	require.NoError(t, err)
	require.Equal(t, []string{"drain", "held"}, cfg.scenarios)
}
