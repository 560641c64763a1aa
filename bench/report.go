package main

// What came of a run: every value, and of each scenario and system the median with its spread
// and the ratio of rebase to it. The spread is the median absolute deviation, which one bad
// round doesn't move, beside the least and the greatest value, which it does.

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A measurement is one value.
type measurement struct {
	Scenario string  `json:"scenario"`
	System   string  `json:"system"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Round    int     `json:"round"`
	Load     string  `json:"load"`
	// Curve is the rate of each fifth, where somebody asks how a drain went.
	Curve []float64 `json:"curve,omitempty"`
}

// A report is what -json writes.
type report struct {
	Started        time.Time         `json:"started"`
	Ended          time.Time         `json:"ended"`
	Platform       string            `json:"platform"`
	CPUs           int               `json:"cpus"`
	GoVersion      string            `json:"go"`
	Postgres       string            `json:"postgres"`
	ServerSettings []string          `json:"server_settings"`
	Systems        map[string]string `json:"systems"`
	Rounds         string            `json:"rounds"`
	Scale          string            `json:"scale"`
	LoadAtStart    string            `json:"load_at_start"`
	LoadAtEnd      string            `json:"load_at_end"`
	Measurements   []measurement     `json:"measurements"`
	Summaries      []summary         `json:"summaries"`

	failures int
}

func (r *report) add(out io.Writer, m measurement) {
	r.Measurements = append(r.Measurements, m)
	fmt.Fprintf(out, "RESULT scenario=%s system=%s value=%.6g unit=%s round=%d load=%q\n", m.Scenario, m.System, m.Value, m.Unit, m.Round, m.Load)
}

func (r *report) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// A summary is what the rounds of one scenario and system say together.
type summary struct {
	Scenario string  `json:"scenario"`
	System   string  `json:"system"`
	Unit     string  `json:"unit"`
	N        int     `json:"n"`
	Median   float64 `json:"median"`
	MAD      float64 `json:"mad"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	// Ratio is rebase's median over this one, 0 if there is none. Of times less is better.
	Ratio float64 `json:"rebase_ratio,omitempty"`
	// Curve has the medians of the rounds' curves.
	Curve []float64 `json:"curve,omitempty"`
}

// summarise keeps the order in which scenarios and systems first came.
func summarise(all []measurement) []summary {
	values, curves := map[[2]string][]float64{}, map[[2]string][][]float64{}
	var sums []summary
	for _, m := range all {
		key := [2]string{m.Scenario, m.System}
		if values[key] == nil {
			sums = append(sums, summary{Scenario: m.Scenario, System: m.System, Unit: m.Unit})
		}
		values[key] = append(values[key], m.Value)
		if m.Curve != nil {
			curves[key] = append(curves[key], m.Curve)
		}
	}
	rebase := map[string]float64{}
	for i := range sums {
		s := &sums[i]
		v := values[[2]string{s.Scenario, s.System}]
		s.N, s.Median, s.Min, s.Max = len(v), median(v), slices.Min(v), slices.Max(v)
		off := make([]float64, len(v))
		for j := range v {
			off[j] = math.Abs(v[j] - s.Median)
		}
		s.MAD, s.Curve = median(off), medianCurve(curves[[2]string{s.Scenario, s.System}])
		if s.System == rebaseSystem.name {
			rebase[s.Scenario] = s.Median
		}
	}
	for i := range sums {
		if own, ok := rebase[sums[i].Scenario]; ok && sums[i].Median != 0 {
			sums[i].Ratio = own / sums[i].Median
		}
	}
	return byScenario(sums)
}

// byScenario puts the parts of a scenario, which come in turns, together.
func byScenario(sums []summary) []summary {
	first := map[string]int{}
	for i, s := range sums {
		if _, ok := first[s.Scenario]; !ok {
			first[s.Scenario] = i
		}
	}
	slices.SortStableFunc(sums, func(a, b summary) int { return first[a.Scenario] - first[b.Scenario] })
	return sums
}

// medianCurve is the median of each point.
func medianCurve(curves [][]float64) []float64 {
	if len(curves) == 0 {
		return nil
	}
	mid := make([]float64, len(curves[0]))
	for i := range mid {
		at := make([]float64, 0, len(curves))
		for _, c := range curves {
			at = append(at, c[i])
		}
		mid[i] = median(at)
	}
	return mid
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// quantile is the nearest rank; of fewer values than 1/(1-q) it is the greatest.
func quantile(values []float64, q float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return v[min(int(math.Ceil(q*float64(len(v))))-1, len(v)-1)]
}

// writeTable: the column "rebase" is how many times rebase's median is this one.
func writeTable(out io.Writer, sums []summary) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\tsystem\tmedian\tMAD\tmin\tmax\tn\tunit\trebase ÷ this\t")
	last := ""
	for _, s := range sums {
		if last != "" && last != s.Scenario {
			fmt.Fprintln(w, strings.Repeat("\t", 9))
		}
		last = s.Scenario
		ratio := "-"
		if s.Ratio != 0 {
			ratio = fmt.Sprintf("%.3g", s.Ratio)
		}
		fmt.Fprintf(w, "%s\t%s\t%.5g\t%.3g\t%.5g\t%.5g\t%d\t%s\t%s\t\n", s.Scenario, s.System, s.Median, s.MAD, s.Min, s.Max, s.N, s.Unit, ratio)
	}
	_ = w.Flush()
}
