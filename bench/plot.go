package main

// Pictures: one for each scenario, a bar for every system, and three for people in a hurry:
// throughput.svg, latency.svg and held-curve.svg. A bar is a median, with a line from the least
// to the greatest value; axes begin at zero, so that lengths can be compared.

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// panels are the scenarios of a picture, with what a reader is told they are.
type panel struct{ scenario, title string }

var throughputPanels = []panel{
	{"drain", "No-op jobs, each at its best"},
	{"drain5", "No-op jobs, concurrency 5"},
	{"multi", "No-op jobs, four processes"},
	{"work1ms", "Jobs of 1 ms, 64 slots"},
	{"insert", "Bulk inserts, 1,000 a call"},
	{"enqueue.64", "Single enqueues, 64 connections"},
}

var latencyPanels = []panel{
	{"wake.p50", "From enqueue to handler, median"},
	{"wake.p99", "From enqueue to handler, 99 % within"},
}

func plotAll(dir string, sums []summary) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pictures := map[string]string{}
	var names []string
	of := map[string][]summary{}
	for _, s := range sums {
		if of[s.Scenario] == nil {
			names = append(names, s.Scenario)
		}
		of[s.Scenario] = append(of[s.Scenario], s)
	}
	for _, name := range names {
		pictures[name] = barPicture(name, of, []panel{{name, ""}})
	}
	for name, all := range of { // prototypes mean nothing to a reader in a hurry
		of[name] = slices.DeleteFunc(all, func(s summary) bool { return s.System == bareSystem.name || s.System == bareDeleteSystem.name })
	}
	pictures["throughput"] = barPicture("Throughput", of, throughputPanels)
	pictures["latency"] = barPicture("How soon an idle worker begins a job of another process", of, latencyPanels)
	pictures["held-curve"] = curvePicture(of)
	for name, svg := range pictures {
		if svg == "" {
			continue // nothing of it was measured
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// displayName is what a reader calls a system.
func displayName(system string) string {
	return cmp.Or(map[string]string{
		"river": "River", "graphile": "graphile-worker", "pgboss": "pg-boss", "insert": "plain INSERT", "notify": "with pg_notify",
	}[system], system)
}

const (
	pictureWidth = 860.0
	margin       = 20.0
	gutter       = 30.0
	rowHeight    = 22.0
	headHeight   = 34.0
	panelGap     = 16.0
)

// barPicture puts the panels that were measured into two columns, or one into the whole width.
func barPicture(title string, of map[string][]summary, panels []panel) string {
	panels = slices.DeleteFunc(slices.Clone(panels), func(p panel) bool { return of[p.scenario] == nil })
	if len(panels) == 0 {
		return ""
	}
	columns := min(len(panels), 2)
	width := (pictureWidth - 2*margin - float64(columns-1)*gutter) / float64(columns)
	var c canvas
	c.text("title", "start", margin, 30, title)
	if hasPeers(of, panels) {
		c.text("dim", "end", pictureWidth-margin, 30, "× is rebase's figure over that system's")
	}
	y := 44.0
	for row := range slices.Chunk(panels, columns) {
		var most float64
		for i, p := range row {
			h := c.bars(p, of[p.scenario], margin+float64(i)*(width+gutter), y, width)
			most = max(most, h)
		}
		y += most + panelGap
	}
	return c.document(title, pictureWidth, y)
}

func hasPeers(of map[string][]summary, panels []panel) bool {
	return slices.ContainsFunc(panels, func(p panel) bool {
		return len(of[p.scenario]) > 1 && slices.ContainsFunc(of[p.scenario], func(s summary) bool { return s.Ratio != 0 })
	})
}

// bars draws a panel and returns its height.
func (c *canvas) bars(p panel, sums []summary, x, y, width float64) float64 {
	const labels, values = 108, 118
	head := sums[0].Unit
	if p.title != "" {
		head = p.title + " (" + head + ")"
	}
	c.text("head", "start", x, y+20, head)
	var most float64
	for _, s := range sums {
		most = max(most, s.Median)
	}
	scale := (width - labels - values) / cmp.Or(most, 1)
	at := y + headHeight
	for _, s := range sums {
		class, text := "other", figure(s.Median)
		if s.System == rebaseSystem.name {
			class = "own"
		} else if s.Ratio != 0 {
			text += fmt.Sprintf("  · %.2g ×", s.Ratio)
		}
		c.text("", "start", x, at+13, displayName(s.System))
		end := x + labels + s.Median*scale
		c.rect(class, x+labels, at+2, s.Median*scale, rowHeight-8)
		if s.N > 1 {
			from, to := x+labels+s.Min*scale, min(x+labels+s.Max*scale, x+width-values/2)
			c.line("whisker", from, at+9, to, at+9)
			end = max(end, to)
		}
		c.text("", "start", end+7, at+13, text)
		at += rowHeight
	}
	return at - y
}

// curveColours of the systems that may be in held-curve.svg; rebase without a snapshot is in its
// own, dashed.
var curveColours = map[string]string{"rebase": "c0", "river": "c1", "graphile": "c2", "pgboss": "c3", "gue": "c4", "ceiling": "c5", "nofloors": "c5"}

// A curve is a line with its name at the end.
type curve struct {
	name, class string
	values      []float64
	label       float64 // where the name stands
}

func curvesOf(of map[string][]summary) (curves []curve) {
	for _, s := range of["held"] {
		if s.Curve == nil {
			continue
		}
		k := curve{name: displayName(s.System), class: "line " + curveColours[s.System], values: s.Curve}
		if s.System == nofloorsSystem.name {
			k.name, k.class = "without floors", k.class+" thin"
		}
		curves = append(curves, k)
	}
	for _, s := range of["held.clean"] {
		if s.System == rebaseSystem.name && s.Curve != nil {
			curves = append(curves, curve{name: "rebase, no snapshot", class: "line c0 thin", values: s.Curve})
		}
	}
	return curves
}

// curvePicture is how a drain under a held snapshot goes, fifth by fifth.
func curvePicture(of map[string][]summary) string {
	curves := curvesOf(of)
	if len(curves) == 0 {
		return ""
	}
	const title = "A drain while a snapshot is held: jobs/s in each fifth of the jobs"
	const left, right, top, height = 70.0, 670.0, 50.0, 250.0
	var c canvas
	c.text("title", "start", margin, 30, title)
	var most float64
	for _, k := range curves {
		most = max(most, slices.Max(k.values))
	}
	step := roundStep(most)
	scale := height / most
	for v := 0.0; v <= most; v += step {
		y := top + height - v*scale
		c.line("grid", left, y, right, y)
		c.text("dim", "end", left-8, y+4, figure(v))
	}
	for i := range 5 {
		c.text("dim", "middle", fifthAt(i, left, right), top+height+22, fmt.Sprintf("%d to %d %%", 20*i, 20*i+20))
	}
	for i := range curves {
		k := &curves[i]
		xy := make([]float64, 0, 2*len(k.values))
		for j, v := range k.values {
			xy = append(xy, fifthAt(j, left, right), top+height-v*scale)
		}
		c.polyline(k.class, xy)
		k.label = xy[len(xy)-1]
	}
	spreadLabels(curves, top+height)
	for _, k := range curves {
		c.text("", "start", right+10, k.label+4, k.name)
		c.line(k.class, fifthAt(4, left, right)+4, top+height-k.values[len(k.values)-1]*scale, right+6, k.label)
	}
	return c.document(title, pictureWidth, top+height+40)
}

// fifthAt is where the middle of a fifth is; the last leaves room for a line to its name.
func fifthAt(i int, left, right float64) float64 {
	return left + (right-left)*(float64(i)+0.5)/5
}

// roundStep cuts an axis into 3 to 8 steps of 1, 2 or 5 times a power of ten.
func roundStep(most float64) float64 {
	step := 1.0
	for step*8 < most {
		for _, f := range []float64{2, 2.5, 2} {
			if step *= f; step*8 >= most {
				break
			}
		}
	}
	return step
}

// spreadLabels keeps names a line apart, and above the bottom if there is room for all.
func spreadLabels(curves []curve, bottom float64) {
	const apart = 16
	slices.SortFunc(curves, func(a, b curve) int { return cmp.Compare(a.label, b.label) })
	for i := len(curves) - 1; i >= 0; i-- {
		curves[i].label = min(curves[i].label, bottom)
		bottom = curves[i].label - apart
	}
}
