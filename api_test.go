package rebase_test

// The exported API, as it was recorded: what is added, changed or lost shows in a review as lines
// of api/*.txt, which nobody changes by accident. After a change that is meant:
//
//	go test -run TestTheExportedAPIIsTheRecordedOne -update .

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages are those that users import, by the names of their files.
var packages = map[string]string{"rebase": ".", "rebasetest": "rebasetest", "webhook": "webhook", "prom": "prom", "otel": "otel"}

func TestTheExportedAPIIsTheRecordedOne(t *testing.T) {
	t.Parallel()
	for name, dir := range packages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, have := filepath.Join("api", name+".txt"), exportedAPI(t, dir)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(have), 0o644))
			}
			recorded, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(recorded), have, "meant? then run this test with -update, and write it into CHANGELOG.md")
		})
	}
}

// exportedAPI prints every exported declaration of the package, sorted, without comments.
func exportedAPI(t *testing.T, dir string) string {
	fset := token.NewFileSet()
	found, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	var files []*ast.File
	for _, path := range found {
		if !strings.HasSuffix(path, "_test.go") {
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	require.NotEmpty(t, files, "no package in "+dir)
	p, err := doc.NewFromFiles(fset, files, dir)
	require.NoError(t, err)
	var decls []string
	add := func(d ast.Decl) {
		var b bytes.Buffer
		require.NoError(t, printer.Fprint(&b, fset, d))
		decls = append(decls, b.String())
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			v.Decl.Doc = nil
			add(bare(v.Decl))
		}
	}
	functions := func(all []*doc.Func) {
		for _, f := range all {
			add(&ast.FuncDecl{Recv: f.Decl.Recv, Name: f.Decl.Name, Type: f.Decl.Type})
		}
	}
	values(p.Consts)
	values(p.Vars)
	functions(p.Funcs)
	for _, typ := range p.Types {
		add(bare(typ.Decl))
		values(typ.Consts)
		values(typ.Vars)
		functions(typ.Funcs)
		functions(typ.Methods)
	}
	slices.Sort(decls)
	return strings.Join(decls, "\n\n") + "\n"
}

// bare drops comments: they may change.
func bare(d *ast.GenDecl) *ast.GenDecl {
	d.Doc = nil
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			n.Doc, n.Comment = nil, nil
		case *ast.ValueSpec:
			n.Doc, n.Comment = nil, nil
		case *ast.TypeSpec:
			n.Doc, n.Comment = nil, nil
		}
		return true
	})
	return d
}
