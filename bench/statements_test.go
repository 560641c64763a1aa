package main

// The ceiling's statements are copies of the library's: statements.go is compared with the
// sources of the root package, so that the two can't drift apart. With -update it is written.

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write statements.go anew from the root package's sources")

const statementsHead = `package main

// Copies of the statements of a worker's rounds, from claim.go, result.go, conn.go and job.go
// of the root package. A test compares them with those sources; after a change there,
//
//	go test ./bench -run Statements -update
//
// writes this file anew.

`

// copied names the constants that the ceiling sends.
var copied = []string{"claimSQL", "succeedSQL", "overSQL", "beginSQL", "settingsSQL", "commitSQL"}

func TestStatementsOfTheCeilingAreTheLibrarys(t *testing.T) {
	consts := rootConstants(t)
	var b strings.Builder
	b.WriteString(statementsHead)
	for i, name := range copied {
		require.Contains(t, consts, name, "the root package has no such constant any more")
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString("const " + name + " = `" + consts[name] + "`\n")
	}
	if *update {
		require.NoError(t, os.WriteFile("statements.go", []byte(b.String()), 0o644))
	}
	have, err := os.ReadFile("statements.go")
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "run: go test ./bench -run Statements -update")
}

// The ceiling reads the claim's rows by position, without the library's reader.
func TestCeilingReadsTheIDAndTheRunTimeOfARow(t *testing.T) {
	columns := strings.Split(rootConstants(t)["jobColumns"], ",")
	require.Equal(t, "j.id", strings.TrimSpace(columns[0]))
	require.Equal(t, "j.run_at", strings.TrimSpace(columns[7]))
}

// rootConstants evaluates the string constants of the root package, without its tests.
func rootConstants(t *testing.T) map[string]string {
	files, err := filepath.Glob("../*.go")
	require.NoError(t, err)
	exprs := map[string]ast.Expr{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.CONST {
				collect(d, exprs)
			}
		}
	}
	consts := map[string]string{}
	for name, expr := range exprs {
		if value, ok := evaluate(expr, exprs); ok {
			consts[name] = value
		}
	}
	return consts
}

func collect(d *ast.GenDecl, exprs map[string]ast.Expr) {
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for i, name := range v.Names {
			if i < len(v.Values) {
				exprs[name.Name] = v.Values[i]
			}
		}
	}
}

// evaluate knows strings, their sums and names of other constants.
func evaluate(expr ast.Expr, exprs map[string]ast.Expr) (string, bool) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(e.Value)
		return value, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		named, ok := exprs[e.Name]
		if !ok {
			return "", false
		}
		return evaluate(named, exprs)
	case *ast.BinaryExpr:
		left, ok1 := evaluate(e.X, exprs)
		right, ok2 := evaluate(e.Y, exprs)
		return left + right, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}
