package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
)

// Tables for people: aligned by the width that a terminal gives to each character, with the
// last column cut at the terminal's edge. Cells are text that is clean already. Colour is an
// extra that only a terminal gets, and never the only sign of anything.

// A style is a code of the terminal's "select graphic rendition".
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// paint colours a text for a terminal that wants it.
func (a *app) paint(s style, text string) string {
	if s == plain || text == "" || !a.OutTTY || a.Env("NO_COLOR") != "" || a.Env("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// widths doesn't depend on the locale: a picture in the documents is the same everywhere.
var widths = runewidth.Condition{StrictEmojiNeutral: true}

type cell struct {
	text  string
	style style
}

// A table is printed in pieces: its columns only grow, so that a long listing needs neither
// all of its rows in memory nor a second look.
type table struct {
	a     *app
	heads []string // one that begins with ">" is of numbers
	rows  [][]cell
	wide  []int
	begun bool
}

func (a *app) table(heads ...string) *table {
	return &table{a: a, heads: heads, wide: make([]int, len(heads))}
}

// add takes a row of strings and cells.
func (t *table) add(values ...any) {
	row := make([]cell, len(values))
	for i, v := range values {
		if c, ok := v.(cell); ok {
			row[i] = c
		} else {
			row[i] = cell{text: fmt.Sprint(v)}
		}
	}
	t.rows = append(t.rows, row)
}

// flush prints what there is.
func (t *table) flush(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	heads := make([]cell, len(t.heads))
	for i, h := range t.heads {
		heads[i] = cell{strings.TrimPrefix(h, ">"), bold}
	}
	rows := t.rows
	if !t.begun {
		rows = append([][]cell{heads}, rows...)
	}
	for _, row := range rows {
		for i, c := range row {
			t.wide[i] = max(t.wide[i], widths.StringWidth(c.text))
		}
	}
	for _, row := range rows {
		fmt.Fprintln(w, t.line(row))
	}
	t.begun, t.rows = true, t.rows[:0]
}

func (t *table) line(row []cell) string {
	var b strings.Builder
	at, last := 0, len(row)-1
	for last > 0 && row[last].text == "" {
		last-- // no blanks at the end of a line
	}
	for i, c := range row[:last+1] {
		if i > 0 {
			b.WriteString("  ")
			at += 2
		}
		if i == len(t.heads)-1 {
			c.text = t.a.fit(c.text, at)
		}
		gap := strings.Repeat(" ", max(t.wide[i]-widths.StringWidth(c.text), 0))
		switch {
		case strings.HasPrefix(t.heads[i], ">"):
			b.WriteString(gap + t.a.paint(c.style, c.text))
		case i == last:
			b.WriteString(t.a.paint(c.style, c.text))
		default:
			b.WriteString(t.a.paint(c.style, c.text) + gap)
		}
		at += t.wide[i]
	}
	return b.String()
}

// fit cuts a text that begins at the given column. What is no terminal gets the most that is
// sensible on a line.
func (a *app) fit(text string, at int) string {
	room := 200
	if a.OutTTY {
		width, _ := a.Size()
		room = max(width-at, 10)
	}
	return widths.Truncate(text, room, "…")
}

// fields prints names and values, one a line, without those that are empty.
func (a *app) fields(w io.Writer, pairs ...string) {
	wide := 0
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			wide = max(wide, len(pairs[i]))
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s  %s\n", a.paint(dim, fmt.Sprintf("%-*s", wide, pairs[i])), pairs[i+1])
		}
	}
}
