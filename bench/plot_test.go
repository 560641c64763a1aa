package main

// The pictures, and what -scale, -list and -from say.

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// examples are two systems in all that the pictures show.
func examples() (all []measurement) {
	for _, system := range []string{"rebase", "river"} {
		for i, scenario := range []string{"drain", "drain5", "insert", "enqueue.64", "wake.p50", "wake.p99", "held", "held.clean"} {
			m := measurement{Scenario: scenario, System: system, Value: float64(1000 * (i + 1) * len(system)), Unit: "jobs/s"}
			if strings.HasPrefix(scenario, "held") {
				m.Curve = []float64{1000, 900, 800, 700, 600 * float64(len(system))}
			}
			all = append(all, m)
		}
	}
	return all
}

func TestPicturesAreDrawnForTheReadme(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, plotAll(dir, summarise(examples())))
	for name, wants := range map[string][]string{
		"throughput": {"No-op jobs, each at its best (jobs/s)", "rebase", "River", "6,000", "· 1.2 ×"},
		"latency":    {"median", "99 % within", "River"},
		"held-curve": {"polyline", "rebase, no snapshot", "River", "80 to 100 %"},
		"drain":      {"drain", "River"},
	} {
		data, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		require.NoError(t, err)
		for _, want := range append(wants, "prefers-color-scheme: dark", `class="page"`) {
			require.Contains(t, string(data), want, name)
		}
		d := xml.NewDecoder(bytes.NewReader(data))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
	}
}

// What was not measured has no picture, and no panel.
func TestNoPictureOfNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, plotAll(dir, summarise([]measurement{{Scenario: "drain", System: "river", Value: 1, Unit: "jobs/s"}})))
	require.NoFileExists(t, filepath.Join(dir, "latency.svg"))
	require.NoFileExists(t, filepath.Join(dir, "held-curve.svg"))
	data, err := os.ReadFile(filepath.Join(dir, "throughput.svg"))
	require.NoError(t, err)
	require.NotContains(t, string(data), "Bulk inserts")
}

func TestFiguresAndAxes(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 0.123456: "0.123", 12.34: "12.3", 999: "999", 1000: "1,000", 123456.7: "123,457", 1234567: "1,234,567"} {
		require.Equal(t, want, figure(v))
	}
	for most, want := range map[float64]float64{5: 1, 100_000: 20_000, 140_000: 20_000, 36_000: 5_000} {
		require.Equal(t, want, roundStep(most))
	}
	require.Equal(t, "a &amp; b", escaped("a & b"))
	labels := []curve{{label: 70}, {label: 28}, {label: 30}}
	spreadLabels(labels, 60)
	require.Equal(t, []float64{14, 30, 60}, []float64{labels[0].label, labels[1].label, labels[2].label})
}

// The curve leaves out the time before the first handler; each point is the median of its rounds.
func TestTheCurveOfADrain(t *testing.T) {
	t.Parallel()
	var d drained
	d.begun.Store(1e9)
	for i := range d.fifths {
		d.fifths[i].Store(int64(1e9 * (i + 2)))
	}
	d.fifths[4].Store(7e9)
	require.Equal(t, []float64{20, 20, 20, 20, 10}, d.curve(100))
	require.Equal(t, []float64{2, 5}, medianCurve([][]float64{{1, 9}, {2, 5}, {3, 4}}))
	require.Nil(t, medianCurve(nil))
}

func TestScaleOfAllAndOfSomeScenarios(t *testing.T) {
	t.Parallel()
	cfg, err := parse([]string{"-scale", "0.5,retained=0.2", "-n", "idle=1"}, t.Output())
	require.NoError(t, err)
	require.Equal(t, "5,idle=1", cfg.rounds.String())
	require.Equal(t, 1.0, cfg.rounds.of("idle"))
	require.Equal(t, 0.5, cfg.scale.of("drain"))
	require.Equal(t, 0.2, cfg.scale.of("retained"))
	require.Equal(t, "0.5,retained=0.2", cfg.scale.String())
	require.Equal(t, 1_000_000, (&trial{bench: &bench{cfg: cfg}, scenario: retained}).scaled(5_000_000))
	for flags, want := range map[string]string{
		"-scale 0":            "not a number above 0",
		"-scale 1,retaned=.2": `unknown scenario "retaned"`,
		"-scale NaN":          "not a number above 0",
		"-scale 1,drain=x":    "not a number above 0",
	} {
		_, err := parse(strings.Fields(flags), t.Output())
		require.ErrorContains(t, err, want)
	}
}

func TestTheListSaysWhatEachScenarioAnswers(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	list(&out)
	for _, s := range allScenarios {
		require.True(t, strings.HasSuffix(s.asks, "?"), s.name)
		require.Contains(t, out.String(), s.asks)
	}
}

// Runs made apart are shown as one.
func TestEarlierRunsAreShownTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var files []string
	for _, scenario := range []string{"drain", "memory"} {
		r := report{Measurements: []measurement{
			{Scenario: scenario, System: "rebase", Value: 60, Unit: "u"}, {Scenario: scenario, System: "river", Value: 10, Unit: "u"},
		}}
		files = append(files, filepath.Join(dir, scenario+".json"))
		require.NoError(t, r.write(files[len(files)-1]))
	}
	cfg, err := parse([]string{"-from", strings.Join(files, ","), "-plot", dir}, t.Output())
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, again(cfg, &out))
	require.Regexp(t, `TARGET +drain ÷ river's +6 +≥ 5 +met`, out.String())
	require.Regexp(t, `TARGET +memory +60 +≤ 64 +met`, out.String())
	require.FileExists(t, filepath.Join(dir, "memory.svg"))

	cfg.from = []string{filepath.Join(dir, "none.json")}
	require.ErrorIs(t, again(cfg, &out), os.ErrNotExist)
	require.NoError(t, os.WriteFile(cfg.from[0], []byte("{"), 0o600))
	var syntax *json.SyntaxError
	require.ErrorAs(t, again(cfg, &out), &syntax)
}
