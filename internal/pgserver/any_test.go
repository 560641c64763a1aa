//go:build unix

// Local binaries come first, a container second, and then an error that helps.

package pgserver_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

func TestAnyWithoutBinariesTakesAContainer(t *testing.T) {
	t.Setenv("REBASE_PG_BIN", "")
	pgserver.HidePlaces(t)
	fakes(t, "echo 28.0", devdbThatWorks)
	url, stop, err := pgserver.Any(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	require.Equal(t, "postgres://container", url)
	require.NoError(t, stop())
}

func TestAnyWithNothingSaysWhatToInstall(t *testing.T) {
	t.Setenv("REBASE_PG_BIN", "")
	pgserver.HidePlaces(t)
	fakes(t, "echo 'Cannot connect to the Docker daemon' >&2; exit 1", "exit 1")
	_, _, err := pgserver.Any(t.Context(), pgserver.Config{})
	require.ErrorContains(t, err, "apt-get install postgresql")
	require.ErrorContains(t, err, "REBASE_PG_BIN")
	require.ErrorContains(t, err, "Cannot connect to the Docker daemon")
	var missing *pgserver.NotFoundError
	require.ErrorAs(t, err, &missing)
}

func TestAnyDoesNotHideBrokenBinariesBehindAContainer(t *testing.T) {
	dir := fakes(t, "echo 28.0", devdbThatWorks)
	t.Setenv("REBASE_PG_BIN", binDir(t, dir, "broken")) // scripts that do nothing
	_, _, err := pgserver.Any(t.Context(), pgserver.Config{})
	require.ErrorContains(t, err, dir)
	require.NoFileExists(t, dir+"/started")
}
