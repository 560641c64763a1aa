package main

// Pictures: for each scenario a bar for every system, its median, with a line from the least to
// the greatest value. Axes begin at zero, so that lengths can be compared.

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

var barColours = map[string]color.Color{
	rebaseSystem.name: color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff},
}

var otherColour = color.RGBA{R: 0xb0, G: 0xb7, B: 0xbf, A: 0xff}

func plotAll(dir string, sums []summary) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := 0; i < len(sums); {
		j := i
		for j < len(sums) && sums[j].Scenario == sums[i].Scenario {
			j++
		}
		path := filepath.Join(dir, sums[i].Scenario+".svg")
		if err := plotOne(path, sums[i:j]); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		i = j
	}
	return nil
}

// spread is what the error bars want.
type spread []summary

func (s spread) Len() int                { return len(s) }
func (s spread) XY(i int) (x, y float64) { return float64(i), s[i].Median }
func (s spread) YError(i int) (float64, float64) {
	return s[i].Median - s[i].Min, s[i].Max - s[i].Median
}

func plotOne(path string, sums []summary) error {
	p := plot.New()
	p.Title.Text = sums[0].Scenario
	p.Y.Label.Text = sums[0].Unit
	p.Y.Min = 0
	names := make([]string, len(sums))
	for i, s := range sums {
		names[i] = s.System
		bar, err := plotter.NewBarChart(plotter.Values{s.Median}, vg.Points(40))
		if err != nil {
			return err
		}
		bar.XMin, bar.LineStyle.Width, bar.Color = float64(i), 0, otherColour
		if c, ok := barColours[s.System]; ok {
			bar.Color = c
		}
		p.Add(bar)
	}
	lines, err := plotter.NewYErrorBars(spread(sums))
	if err != nil {
		return err
	}
	p.Add(lines)
	p.NominalX(names...)
	return p.Save(vg.Points(120+70*float64(len(sums))), vg.Points(260), path)
}
