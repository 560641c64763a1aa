// Package termpic draws what a program printed on a terminal as an SVG picture, so that the
// pictures in the documents are made of real output and can be made again.
//
// It knows text, colours and bold, which is all that the program uses; any other escape
// sequence is refused, because a picture without it would not be what the terminal shows.
package termpic

import (
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"

	"github.com/mattn/go-runewidth"
)

// The size of a character's cell and of the frame round the text, in pixels.
const (
	cellWidth  = 8.4
	lineHeight = 19
	margin     = 18
	titleBar   = 36
)

// colours are those of the codes 30 to 37 on a dark ground.
var colours = map[int]string{30: "#6b7280", 31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea", 37: "#f0f6fc"}

const foreground, background, bar = "#d7dde5", "#10151c", "#1b222c"

// A run is text of one look.
type run struct {
	text      string
	column    int
	colour    string
	bold, dim bool
}

// Render draws the text under a title. It returns an error that names the sequence for
// anything but "select graphic rendition" with codes that it knows.
func Render(title, text string) (string, error) {
	lines, err := parse(strings.TrimRight(text, "\n"))
	if err != nil {
		return "", err
	}
	columns := 40
	for _, line := range lines {
		if n := len(line); n > 0 {
			columns = max(columns, line[n-1].column+width(line[n-1].text))
		}
	}
	w, h := float64(columns)*cellWidth+2*margin, titleBar+len(lines)*lineHeight+2*margin-8
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" role="img" aria-label="%s">`+"\n", w, h, w, h, html.EscapeString(title))
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="9" fill="%s"/><path d="M0 %d V9 a9 9 0 0 1 9 -9 H%.0f a9 9 0 0 1 9 9 V%d z" fill="%s"/>`+"\n", background, titleBar, w-9, titleBar, bar)
	for i, c := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="6" fill="%s"/>`, 20+20*i, c)
	}
	fmt.Fprintf(&b, "\n"+`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">`+"\n")
	fmt.Fprintf(&b, `<text x="%.0f" y="23" text-anchor="middle" fill="#8b949e">%s</text>`+"\n", w/2, html.EscapeString(title))
	for i, line := range lines {
		for _, r := range line {
			r.draw(&b, titleBar+margin+10+i*lineHeight)
		}
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String(), nil
}

// words are pieces with nothing wider than one blank in them.
var words = regexp.MustCompile(`\S+( \S+)*`)

// draw places each piece by its column and fixes its length, so that columns stand in line
// whatever font there is and however it treats blanks.
func (r run) draw(b *strings.Builder, y int) {
	look := ""
	if r.bold {
		look += ` font-weight="bold"`
	}
	if r.dim {
		look += ` opacity="0.65"`
	}
	for _, at := range words.FindAllStringIndex(r.text, -1) {
		piece := r.text[at[0]:at[1]]
		x := margin + float64(r.column+width(r.text[:at[0]]))*cellWidth
		fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="%s" textLength="%.1f" lengthAdjust="spacingAndGlyphs"%s>%s</text>`+"\n",
			x, y, r.colour, float64(width(piece))*cellWidth, look, html.EscapeString(piece))
	}
}

func width(s string) int { return runewidth.StringWidth(s) }

// parse splits lines into runs.
func parse(text string) (lines [][]run, err error) {
	look := run{colour: foreground}
	for line := range strings.SplitSeq(text, "\n") {
		var runs []run
		column := 0
		for line != "" {
			plain, rest, escaped := strings.Cut(line, "\x1b[")
			if plain != "" {
				r := look
				r.text, r.column = plain, column
				runs = append(runs, r)
				column += width(plain)
			}
			if !escaped {
				break
			}
			codes, after, ok := strings.Cut(rest, "m")
			if !ok || strings.Trim(codes, "0123456789;") != "" {
				return nil, fmt.Errorf("termpic: unknown sequence %q", "\x1b["+rest[:min(len(rest), 10)])
			}
			if err := look.set(codes); err != nil {
				return nil, err
			}
			line = after
		}
		lines = append(lines, runs)
	}
	return lines, nil
}

func (r *run) set(codes string) error {
	for code := range strings.SplitSeq(codes, ";") {
		n, _ := strconv.Atoi(code) // an empty one is 0
		colour, known := colours[n]
		switch {
		case n == 0:
			*r = run{colour: foreground}
		case n == 1:
			r.bold = true
		case n == 2:
			r.dim = true
		case known:
			r.colour = colour
		default:
			return fmt.Errorf("termpic: unknown code %q", code)
		}
	}
	return nil
}
