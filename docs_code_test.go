// What the documents show is tried: every block of Go is type-checked, every block of SQL is
// run against a database.
//
// A block of Go is a program, declarations, or statements with the variables of given at
// hand. What a reader need not see, such as the table of an example, stands in a comment
// "<!-- given-go" or "<!-- given-sql". Code of other libraries is marked with their names.
package rebase_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

// documents are the texts of all documents by name.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	read := func(name string) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		texts[filepath.ToSlash(name)] = string(text)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"} {
		read(name)
	}
	require.NoError(t, filepath.WalkDir("docs", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			read(name)
		}
		return err
	}))
	return texts
}

// A block is what stands between two fences, or in a comment that begins with "given-".
type block struct {
	doc, info, text string
	line            int // of its first line, from 1
}

// split takes a document apart into its blocks and the prose between them.
func split(doc, text string) (blocks []block, prose string) {
	var b *block
	var rest strings.Builder
	n := 0
	for line := range strings.Lines(text) {
		n++
		bare := strings.TrimSpace(line)
		fence, isFence := strings.CutPrefix(bare, "```")
		given, isGiven := strings.CutPrefix(bare, "<!-- given-")
		switch {
		case b == nil && isFence:
			b = &block{doc: doc, info: fence, line: n + 1}
		case b == nil && isGiven:
			b = &block{doc: doc, info: "given-" + given, line: n + 1}
		case b == nil:
			rest.WriteString(line)
		case isFence, strings.HasPrefix(b.info, "given-") && bare == "-->":
			blocks = append(blocks, *b)
			b = nil
		default:
			b.text += line
		}
	}
	return blocks, rest.String()
}

// given are the variables that a block of statements may use.
const given = `ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx, db *sql.DB, queue *rebase.Queue, worker *rebase.Worker,
	w http.ResponseWriter, r *http.Request, mux *http.ServeMux, job *rebase.Job, id int64, t *testing.T`

// imported are the packages that a block may use without saying so.
var imported = []string{
	"context", "database/sql", "encoding/json", "errors", "fmt", "io/fs", "log", "log/slog", "net/http", "net/netip", "os", "os/signal", "syscall", "testing", "time",
	"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgxpool", "github.com/stretchr/testify/require",
	"github.com/rebasejobs/rebase", "github.com/rebasejobs/rebase/internal/pgtest", "github.com/rebasejobs/rebase/migrations", "github.com/rebasejobs/rebase/rebasetest",
	"github.com/rebasejobs/rebase/webhook",
}

// foreign marks blocks of other libraries' Go, which are not checked here.
var foreign = []string{"go river", "go gue"}

// source makes a file of a block, with positions that are the document's.
func (b block) source() string {
	at := fmt.Sprintf("\n//line %s:%d\n", b.doc, b.line)
	if strings.HasPrefix(b.text, "package ") {
		return at[1:] + b.text
	}
	head := "package doc\n\nimport (\n\"" + strings.Join(imported, "\"\n\"") + "\"\n)\n"
	declarations := head + at + b.text
	if _, err := parser.ParseFile(token.NewFileSet(), "", declarations, 0); err == nil {
		return declarations
	}
	return head + "func _(" + given + ") (err error) {\n{" + at + b.text + "\n}\nreturn err\n}\n"
}

// exports tells where the compiled form of each imported package is.
func exports(t *testing.T) importer.Lookup {
	t.Helper()
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}, imported...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(files[path])
	}
}

// What is declared and not used is no mistake in a piece of a program.
func TestDocumentedGoCompiles(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	compiled := importer.ForCompiler(fset, "gc", exports(t))
	check := func(whole bool, files ...*ast.File) {
		cfg := types.Config{Importer: compiled, Error: func(err error) {
			if e, ok := errors.AsType[types.Error](err); !ok || whole || !e.Soft {
				t.Error(err)
			}
		}}
		_, _ = cfg.Check("doc", fset, files, nil) // its error is the first of those told
	}
	checked := 0
	for doc, text := range documents(t) {
		var files []*ast.File
		blocks, _ := split(doc, text)
		for _, b := range blocks {
			if b.info != "go" && b.info != "given-go" {
				if strings.HasPrefix(b.info, "go") {
					require.Contains(t, foreign, b.info, "%s:%d", b.doc, b.line)
				}
				continue
			}
			file, err := parser.ParseFile(fset, "", b.source(), parser.SkipObjectResolution)
			require.NoError(t, err, "%s:%d", b.doc, b.line)
			checked++
			if file.Name.Name == "main" {
				check(true, file)
			} else {
				files = append(files, file)
			}
		}
		check(false, files...)
	}
	require.Greater(t, checked, 20)
}

// The roles that a document grants something to exist while it is tried.
func TestDocumentedSQLRuns(t *testing.T) {
	t.Parallel()
	grantee := regexp.MustCompile(`(?i)\b(?:to|alter role) (\w+)\b(?:;| set)`)
	run := 0
	texts := documents(t)
	for _, doc := range slices.Sorted(maps.Keys(texts)) {
		tx, err := pgtest.New(t).Begin(t.Context())
		require.NoError(t, err)
		exec := func(sql string, b block) {
			_, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err, "%s:%d: %s", b.doc, b.line, sql)
		}
		roles := map[string]bool{}
		blocks, _ := split(doc, texts[doc])
		for _, b := range blocks {
			if b.info != "sql" && b.info != "given-sql" {
				require.NotContains(t, b.info, "sql", "%s:%d", b.doc, b.line)
				continue
			}
			for _, m := range grantee.FindAllStringSubmatch(b.text, -1) {
				if !roles[m[1]] {
					exec("create role "+m[1], b)
				}
				roles[m[1]] = true
			}
			exec(b.text, b)
			run++
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.Greater(t, run, 15)
}
