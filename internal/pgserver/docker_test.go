//go:build unix

// The container's life is the owner's, and what goes wrong is said. Programs
// that only look like docker and go stand in for the real ones: what is proved
// here is the life cycle, on machines without a Docker engine too.

package pgserver_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// fakes puts scripts named docker and go into PATH. The latter writes into the
// directory that is returned when it starts and ends.
func fakes(t *testing.T, docker, devdb string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, script := range map[string]string{"docker": docker, "go": devdb} {
		script = "#!/bin/sh\ncd " + dir + "\n" + script
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin") // /bin for cat, sleep and rm
	return dir
}

const devdbThatWorks = `echo "$@" >started; echo postgres://container; read -r _; : >ended`

func requireFile(t *testing.T, elem ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(elem...))
		return err == nil
	}, 5*time.Second, 10*time.Millisecond, filepath.Join(elem...))
}

func TestContainerRunsUntilStopped(t *testing.T) {
	dir := fakes(t, "echo 28.0", devdbThatWorks)
	url, stop, err := pgserver.StartDocker(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	require.Equal(t, "postgres://container", url)
	requireFile(t, dir, "started")
	require.NoFileExists(t, filepath.Join(dir, "ended"))
	require.NoError(t, stop())
	requireFile(t, dir, "ended")
}

func TestContainerEndsWithAnotherOwner(t *testing.T) {
	dir := fakes(t, "echo 28.0", devdbThatWorks)
	also := t.TempDir()
	owner := exec.Command("/bin/sleep", "600")
	require.NoError(t, owner.Start())
	_, _, err := pgserver.StartDocker(t.Context(), pgserver.Config{Owner: owner.Process.Pid, AlsoRemove: also})
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, "ended"))
	require.NoError(t, owner.Process.Kill())
	requireFile(t, dir, "ended")
	require.NoDirExists(t, also)
	require.Error(t, owner.Wait())
}

func TestNoEngineIsSaidAndNothingBuilt(t *testing.T) {
	dir := fakes(t, "echo 'Cannot connect to the Docker daemon' >&2; exit 1", devdbThatWorks)
	_, _, err := pgserver.StartDocker(t.Context(), pgserver.Config{})
	require.ErrorContains(t, err, "no engine answers")
	require.ErrorContains(t, err, "Cannot connect to the Docker daemon")
	require.NoFileExists(t, filepath.Join(dir, "started"))
}

func TestContainerThatFailsSaysWhy(t *testing.T) {
	fakes(t, "echo 28.0", "echo no such image >&2; exit 1")
	_, _, err := pgserver.StartDocker(t.Context(), pgserver.Config{})
	require.ErrorContains(t, err, "no such image")
}

func TestContainerThatHangsEndsWithTheContext(t *testing.T) {
	dir := fakes(t, "echo 28.0", `read -r _; : >ended`)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _, err := pgserver.StartDocker(ctx, pgserver.Config{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireFile(t, dir, "ended")
}
