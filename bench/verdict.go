package main

// What the project has set itself, and whether this run shows it: ratios of medians of one run
// on one machine. A target whose systems were not all measured is not mentioned.

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A target compares rebase's median in a scenario with a system's in another, or, with of
// empty, with a fixed value.
type target struct {
	scenario string
	per      string // the other scenario; the same if empty
	of       string // the other system; "" for none
	least    float64
	most     float64 // if it is to be less instead
}

var targets = []target{
	{scenario: "drain", of: "river", least: 5},
	{scenario: "drain", of: "graphile", least: 3.5},
	{scenario: "drain", of: "ceiling", least: 0.75},
	{scenario: "retained.share", least: 0.90},
	{scenario: "drain5", of: "river", least: 20},
	{scenario: "drain5", per: "drain", of: "rebase", least: 0.90},
	{scenario: "held.share", least: 0.85},
	{scenario: "held.decay", least: 0.90},
	{scenario: "insert", of: "river", least: 3},
	{scenario: "insert.keys", of: "river", least: 2},
	{scenario: "enqueue.64", of: "insert", least: 0.85},
	{scenario: "enqueue.64", of: "notify", least: 3},
	{scenario: "enqueue.64.asleep", of: "notify", least: 1},
	{scenario: "wake.p50", of: "river", most: 0.8},
	{scenario: "wake.p99", of: "river", most: 0.8},
	{scenario: "latency20.share", least: 0.50},
	{scenario: "latency20.trips", most: 0.05},
	{scenario: "work1ms.busy", least: 0.95},
	{scenario: "work100ms.busy", least: 0.95},
	{scenario: "work100ms", least: 0.95 * workSlots * 10}, // of what sleeping 100 ms allows
	{scenario: "backlog.share", least: 0.90},
	{scenario: "fair", most: 50},
	{scenario: "memory", most: 64},
}

func writeVerdicts(out io.Writer, sums []summary) {
	medians := map[[2]string]float64{}
	for _, s := range sums {
		medians[[2]string{s.Scenario, s.System}] = s.Median
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range targets {
		value, ok := medians[[2]string{t.scenario, rebaseSystem.name}]
		name := t.scenario
		if t.of != "" && ok {
			per := t.scenario
			if t.per != "" {
				per = t.per
			}
			var other float64
			if other, ok = medians[[2]string{per, t.of}]; ok {
				value /= other
			}
			name += " ÷ " + t.of + "'s"
			if t.per != "" {
				name += " " + t.per
			}
		}
		if !ok {
			continue
		}
		want, met := fmt.Sprintf("≥ %v", t.least), value >= t.least
		if t.most > 0 {
			want, met = fmt.Sprintf("≤ %v", t.most), value <= t.most
		}
		fmt.Fprintf(w, "TARGET\t%s\t%.3g\t%s\t%s\n", name, value, want, map[bool]string{true: "met", false: "NOT MET"}[met])
	}
	_ = w.Flush()
}
