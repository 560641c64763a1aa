package termpic_test

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/cmd/rebase/internal/termpic"
)

func TestPictureHasEveryWordAtItsColumn(t *testing.T) {
	t.Parallel()
	svg, err := termpic.Render("rebase <list>", "\x1b[1mID\x1b[0m  TASK\n 1  \x1b[31;1ma & b\x1b[0m\n")
	require.NoError(t, err)
	for _, want := range []string{
		`rebase &lt;list&gt;`,
		`<text x="18.0" y="64" fill="#d7dde5" textLength="16.8" lengthAdjust="spacingAndGlyphs" font-weight="bold">ID</text>`,
		`<text x="51.6" y="64" fill="#d7dde5" textLength="33.6" lengthAdjust="spacingAndGlyphs">TASK</text>`,
		`<text x="26.4" y="83" fill="#d7dde5" textLength="8.4" lengthAdjust="spacingAndGlyphs">1</text>`,
		`<text x="51.6" y="83" fill="#ff7b72" textLength="42.0" lengthAdjust="spacingAndGlyphs" font-weight="bold">a &amp; b</text>`,
	} {
		require.Contains(t, svg, want)
	}
	dec := xml.NewDecoder(strings.NewReader(svg))
	for err == nil {
		_, err = dec.Token()
	}
	require.Equal(t, io.EOF, err, "it is well-formed")
}

func TestPictureRefusesWhatItCantShow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\x1b[2J", "\x1b[48;5;1mx", "\x1b[", "\x1b[4mx"} {
		_, err := termpic.Render("t", text)
		require.ErrorContains(t, err, "termpic: unknown", text)
	}
}
