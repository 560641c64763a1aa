// Where the binaries are looked for: the variable, PATH, the usual places with
// the newest version first; and what is said when there are none.

package pgserver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// binDir makes a directory that looks like one of PostgreSQL's.
func binDir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"initdb", "postgres"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755))
	}
	return dir
}

func TestFindPrefersTheVariable(t *testing.T) {
	tmp := t.TempDir()
	named := binDir(t, tmp, "named")
	t.Setenv("PATH", binDir(t, tmp, "path"))
	t.Setenv("REBASE_PG_BIN", named)
	dir, err := pgserver.Find()
	require.NoError(t, err)
	require.Equal(t, named, dir)
}

func TestFindDoesNotPassOverAWrongVariable(t *testing.T) {
	t.Setenv("PATH", binDir(t, t.TempDir(), "path"))
	t.Setenv("REBASE_PG_BIN", "/nowhere/bin")
	_, err := pgserver.Find()
	require.ErrorContains(t, err, `REBASE_PG_BIN="/nowhere/bin"`)
	var missing *pgserver.NotFoundError
	require.NotErrorAs(t, err, &missing, "so that nobody falls back to something else")
}

func TestFindTakesPathBeforeTheUsualPlaces(t *testing.T) {
	tmp := t.TempDir()
	onPath := binDir(t, tmp, "path")
	binDir(t, tmp, "places", "18", "bin")
	half := filepath.Join(tmp, "half")
	require.NoError(t, os.MkdirAll(half, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(half, "postgres"), nil, 0o755))

	dir, err := pgserver.FindIn([]string{"", half, onPath}, []string{filepath.Join(tmp, "places", "*", "bin")})
	require.NoError(t, err)
	require.Equal(t, onPath, dir, "a directory with half the binaries doesn't count")
}

func TestFindTakesTheNewestVersionOfAPlace(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	for _, v := range []string{"9.6", "18", "16", "latest"} {
		binDir(t, tmp, v, "bin")
	}
	empty := filepath.Join(tmp, "19", "bin") // a newer one that was removed
	require.NoError(t, os.MkdirAll(empty, 0o755))
	dir, err := pgserver.FindIn(nil, []string{filepath.Join(tmp, "nothing"), filepath.Join(tmp, "*", "bin")})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(tmp, "18", "bin"), dir)
}

func TestNothingFoundNamesWhereItLooked(t *testing.T) {
	t.Parallel()
	_, err := pgserver.FindIn([]string{t.TempDir()}, []string{"/nowhere/*/bin"})
	var missing *pgserver.NotFoundError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"/nowhere/*/bin"}, missing.Looked)
	require.ErrorContains(t, err, "/nowhere/*/bin")
}

func TestBinDirWithoutServerIsAnError(t *testing.T) {
	t.Parallel()
	_, err := pgserver.Start(t.Context(), pgserver.Config{BinDir: "/nowhere"})
	require.ErrorContains(t, err, `BinDir "/nowhere"`)
}
