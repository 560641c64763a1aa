package main

// SVG, written by hand, so that the pictures need no library. Each brings its own background,
// light or dark as the reader's system has it, so the text can be read on any page; everything
// is drawn in classes whose colours are said once.

import (
	"encoding/xml"
	"fmt"
	"strings"
)

const pictureStyle = `
text { font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.head { font-weight: 600 }
.dim { fill: #59636e }
.page { fill: #ffffff }
.own { fill: #0969da }
.other { fill: #afb8c1 }
.whisker { stroke: #59636e; stroke-width: 1.5 }
.grid { stroke: #d1d9e0 }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
.thin { stroke-width: 1.5; stroke-dasharray: 6 4 }
.c0 { stroke: #0969da } .c1 { stroke: #bc4c00 } .c2 { stroke: #1a7f37 } .c3 { stroke: #8250df } .c4 { stroke: #9a6700 } .c5 { stroke: #6e7781 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.dim { fill: #9198a1 }
.page { fill: #0d1117 }
.own { fill: #4493f8 }
.other { fill: #59636e }
.whisker { stroke: #9198a1 }
.grid { stroke: #3d444d }
.c0 { stroke: #4493f8 } .c1 { stroke: #f0883e } .c2 { stroke: #3fb950 } .c3 { stroke: #ab7df8 } .c4 { stroke: #d29922 } .c5 { stroke: #9198a1 }
}
`

// A canvas is a picture being drawn.
type canvas struct{ b strings.Builder }

func (c *canvas) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(&c.b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`+"\n", class, x, y, w, h)
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&c.b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// polyline takes x and y in turn.
func (c *canvas) polyline(class string, xy []float64) {
	c.b.WriteString(`<polyline class="` + class + `" points="`)
	for i := 0; i+1 < len(xy); i += 2 {
		fmt.Fprintf(&c.b, "%.1f,%.1f ", xy[i], xy[i+1])
	}
	c.b.WriteString("\"/>\n")
}

// text anchors at "start", "middle" or "end".
func (c *canvas) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(&c.b, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class, anchor, x, y, escaped(s))
}

// document is the whole file. title is for those who can't see it.
func (c *canvas) document(title string, w, h float64) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">
<style>%s</style>
<rect class="page" width="%.0f" height="%.0f" rx="6"/>
%s</svg>
`, w, h, w, h, escaped(title), pictureStyle, w, h, c.b.String())
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// figure writes a value as a reader wants it: thousands apart, three digits if it is small.
func figure(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.3g", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
