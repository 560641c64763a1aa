// The program that README.md and doc.go show is one program, and it is built and run here
// as a reader would run it. What the documents promise about their own size and links is
// checked, too.
package rebase_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

// shownProgram is the first Go block of README.md.
func shownProgram(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	program, _, found := strings.Cut(rest, "```\n")
	require.True(t, found)
	return program
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

func TestDocumentsLinkToFilesThatAreThere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/design.md", "docs/guarantees.md"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") {
				require.FileExists(t, filepath.Join(filepath.Dir(name), m[1]), "linked from %s", name)
			}
		}
	}
}

func TestReadmeHas200LinesAtMost(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(readme), "\n"), 200)
}
