// What the documents say is tried. The program that README.md and doc.go show is one, and is
// built and run here as a reader would run it. Links, headings, figures, the names of tests
// and the states in the picture are those that are there.
package rebase_test

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// shownProgram is the first Go block of README.md.
func shownProgram(t *testing.T) string {
	t.Helper()
	blocks, _ := split("README.md", documents(t)["README.md"])
	i := slices.IndexFunc(blocks, func(b block) bool { return b.info == "go" })
	require.NotEqual(t, -1, i)
	return blocks[i].text
}

func TestPackageCommentShowsTheReadmesProgram(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var code strings.Builder
	for line := range strings.Lines(shownProgram(t)) {
		if line != "\n" {
			code.WriteString("//\t" + line)
		} else {
			code.WriteString("//\n")
		}
	}
	require.Contains(t, string(doc), code.String())
}

func TestShownProgramHas25LinesAfterItsImports(t *testing.T) {
	t.Parallel()
	_, body, found := strings.Cut(shownProgram(t), "\n)\n")
	require.True(t, found)
	n := 0
	for line := range strings.Lines(body) {
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	require.LessOrEqual(t, n, 25)
}

// J2, J15: what it enqueues in a transaction runs, and an interrupt ends it cleanly.
func TestShownProgramRunsAndEndsCleanly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(source, []byte(shownProgram(t)), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source).CombinedOutput()
	require.NoError(t, err, "%s", out)

	pool := pgtest.Empty(t)
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pgtest.URL(t, pool))
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan(), "it ended before its job ran")
	require.Equal(t, "welcome, ada@example.org", lines.Text())
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.False(t, lines.Scan())
	require.NoError(t, cmd.Wait())

	var status string
	require.NoError(t, pool.QueryRow(t.Context(), `select status from rebase.jobs`).Scan(&status))
	require.Equal(t, "succeeded", status)
}

func TestReadmeHas200LinesAtMost(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, strings.Count(documents(t)["README.md"], "\n"), 200)
}

// anchors are the names by which a document's headings can be reached.
func anchors(prose string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(prose) {
		level := strings.TrimLeft(line, "#")
		if len(level) == len(line) || !strings.HasPrefix(level, " ") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(level))
		unique := name
		for n := 1; names[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		names[unique] = true
	}
	return names
}

var (
	linked = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	inCode = regexp.MustCompile("`[^`\n]*`")
)

func TestDocumentsLinkToFilesAndHeadingsThatAreThere(t *testing.T) {
	t.Parallel()
	for doc, text := range documents(t) {
		_, prose := split(doc, text)
		for _, m := range linked.FindAllStringSubmatch(inCode.ReplaceAllString(prose, ""), -1) {
			if strings.Contains(m[1], ":") {
				continue // somewhere else
			}
			target := doc
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(doc), m[1])
				_, err := os.Stat(target)
				require.NoError(t, err, "linked from %s", doc)
			}
			if m[2] != "" {
				raw, err := os.ReadFile(target)
				require.NoError(t, err)
				_, aim := split(target, string(raw))
				require.Contains(t, anchors(aim), m[2], "linked from %s", doc)
			}
		}
	}
}

func TestReadmeLinksToEveryDocument(t *testing.T) {
	t.Parallel()
	texts := documents(t)
	for doc := range texts {
		if doc != "README.md" {
			require.Contains(t, texts["README.md"], "]("+doc)
		}
	}
}

// The figures are copied from where they are explained, never typed.
func TestReadmesFiguresStandInPerformance(t *testing.T) {
	t.Parallel()
	texts := documents(t)
	_, rest, found := strings.Cut(texts["README.md"], "<!-- figures -->\n")
	require.True(t, found)
	rows, _, found := strings.Cut(rest, "<!-- end -->")
	require.True(t, found)
	for row := range strings.Lines(rows) {
		require.Contains(t, texts["docs/performance.md"], row, "copy the row from docs/performance.md")
	}
}

// Each guarantee says what it rests on, which tests prove it, and where it ends.
func TestGuaranteesNameWhatTheyRestOn(t *testing.T) {
	t.Parallel()
	sources, tests := theSources(t)
	texts := documents(t)
	sections := strings.Split(texts["docs/guarantees.md"], "\n## ")
	parts := regexp.MustCompile(`(?s)\*Rests on:\*(.+)\*Proved by:\*(.+)\*Not promised:\*(.+)`)
	code := regexp.MustCompile("`([^`]+)`")
	for n := 1; n <= 12; n++ {
		i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, strconv.Itoa(n)+". ") })
		require.NotEqual(t, -1, i, "guarantee %d", n)
		m := parts.FindStringSubmatch(sections[i])
		require.NotNil(t, m, "guarantee %d", n)
		for _, name := range code.FindAllStringSubmatch(m[1], -1) {
			require.Contains(t, sources, name[1], "guarantee %d", n)
		}
		require.Regexp(t, "`Test", m[2], "guarantee %d", n)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for doc, text := range texts {
		_, prose := split(doc, text)
		for _, name := range named.FindAllString(prose, -1) {
			require.Contains(t, tests, "\nfunc "+name+"(", "named in %s", doc)
		}
	}
}

// theSources are the texts of the library with its migrations, and of all tests.
func theSources(t *testing.T) (sources, tests string) {
	t.Helper()
	var source, test strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return fs.SkipDir
		}
		into := &source
		switch {
		case strings.HasSuffix(name, "_test.go"):
			into = &test
		case filepath.Dir(name) != "migrations" && filepath.Dir(name) != "." || filepath.Ext(name) != ".go" && filepath.Ext(name) != ".sql":
			return nil
		}
		text, err := os.ReadFile(name)
		into.WriteByte('\n')
		into.Write(text)
		return err
	}))
	return source.String(), test.String()
}

// J1: the picture has the five states, under their names.
func TestPictureHasTheStates(t *testing.T) {
	t.Parallel()
	f, err := os.Open("docs/pictures/states.svg")
	require.NoError(t, err)
	defer f.Close()
	var picture struct {
		States []string `xml:"g>text"`
	}
	require.NoError(t, xml.NewDecoder(f).Decode(&picture))
	require.ElementsMatch(t, picture.States, []string{
		string(rebase.StatusPending), string(rebase.StatusRunning), string(rebase.StatusSucceeded), string(rebase.StatusFailed), string(rebase.StatusCancelled),
	})
}
