//go:build unix

// Which server a test binary uses and how long that one lives. These tests run
// this test binary again, as a child of something that looks like the go command
// or of this process, with one test, TestChild, that tells what it got.

package pgtest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// childVar makes TestChild print its database's address and wait for the end of
// its input ("wait"), or leak a goroutine ("leak").
const childVar = "REBASE_PGTEST_CHILD"

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestChild(t *testing.T) {
	pool := pgtest.New(t)
	require.True(t, query[bool](t, pool, schemaExists))
	switch os.Getenv(childVar) {
	case "wait":
		fmt.Println("URL", pgtest.URL(t, pool))
		_, err := io.Copy(io.Discard, os.Stdin)
		require.NoError(t, err)
	case "leak":
		go func() { select {} }()
	}
}

// child is a test binary that another process runs.
type child struct {
	cmd    *exec.Cmd
	input  io.Closer // closing it ends TestChild
	output *bufio.Scanner
}

// startChild runs TestChild. The program is this binary, or one that runs it.
func startChild(t *testing.T, env []string, program string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(program, append(args, "-test.run=^TestChild$")...)
	cmd.Env = append(cleanEnvironment(), env...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // already ended where all went well
	return &child{cmd: cmd, input: in, output: bufio.NewScanner(out)}
}

// cleanEnvironment is ours without what decides about the server.
func cleanEnvironment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "REBASE_TEST_DATABASE_URL=") && !strings.HasPrefix(kv, "DATABASE_URL=") {
			env = append(env, kv)
		}
	}
	// Would be refused if anybody looked at it.
	return append(env, childVar+"=wait", "DATABASE_URL=postgres://nobody@192.0.2.1/precious")
}

// url waits until the child prints the address of its database.
func (c *child) url(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	for c.output.Scan() {
		if url, ok := strings.CutPrefix(c.output.Text(), "URL "); ok {
			cfg, err := pgx.ParseConfig(url)
			require.NoError(t, err)
			return cfg
		}
	}
	require.Fail(t, "the child printed no address")
	return nil
}

// fakeGo returns the path of a shell that is named like the go command.
func fakeGo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "go")
	require.NoError(t, os.Symlink("/bin/sh", path))
	return path
}

// needsBinaries skips where no private server can be had.
func needsBinaries(t *testing.T) {
	t.Helper()
	_, err := pgserver.Find()
	if _, missing := errors.AsType[*pgserver.NotFoundError](err); missing && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
}

func runDirs(t *testing.T, pid int) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(pgserver.TempDir(), fmt.Sprintf("rebase-test-*-%d-*", pid)))
	require.NoError(t, err)
	return dirs
}

func listening(port uint16) bool {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	return err == nil && conn.Close() == nil
}

func requireGone(t *testing.T, port uint16) {
	t.Helper()
	require.Eventually(t, func() bool { return !listening(port) }, 5*time.Second, 20*time.Millisecond)
}

func TestBinariesOfOneRunShareAServerThatDiesWithTheRun(t *testing.T) {
	t.Parallel()
	needsBinaries(t)
	// Two at the same time, as go test does with packages.
	run := startChild(t, nil, fakeGo(t), "-c", `"$0" "$@" & "$0" "$@"; wait`, os.Args[0])
	first, second := run.url(t), run.url(t)
	require.Equal(t, first.Port, second.Port)
	require.NotEqual(t, first.Database, second.Database)
	require.Len(t, runDirs(t, run.cmd.Process.Pid), 1)

	require.NoError(t, run.cmd.Process.Kill(), "SIGKILL, as a timeout of CI does")
	requireGone(t, first.Port)
	require.Eventually(t, func() bool { return len(runDirs(t, run.cmd.Process.Pid)) == 0 }, 5*time.Second, 20*time.Millisecond)
	require.NoError(t, run.input.Close())
}

func TestLaterBinaryOfTheRunFindsTheServerOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	needsBinaries(t)
	run := startChild(t, []string{childVar + "="}, fakeGo(t), "-c",
		`"$0" "$@" && `+childVar+`=wait "$0" "$@" & wait; `+childVar+`=wait "$0" "$@"`, os.Args[0])
	// The first has ended by now; the second, its sibling, prints, ends as its
	// input is /dev/null in the background, and a third follows.
	second, third := run.url(t), run.url(t)
	require.Equal(t, second.Port, third.Port)
	require.NoError(t, run.input.Close())
	require.NoError(t, run.cmd.Wait())
	requireGone(t, third.Port)
}

func TestBinaryStartedByHandHasAServerForItself(t *testing.T) {
	t.Parallel()
	needsBinaries(t)
	killed, ended := startChild(t, nil, os.Args[0]), startChild(t, nil, os.Args[0])
	port, other := killed.url(t).Port, ended.url(t).Port
	require.NotEqual(t, port, other)

	require.NoError(t, killed.cmd.Process.Kill())
	requireGone(t, port)
	require.NoError(t, ended.input.Close())
	require.NoError(t, ended.cmd.Wait())
	require.False(t, listening(other), "Main takes the server down before it returns")
}

func TestNamedServerComesFirstAndKeepsNothing(t *testing.T) {
	t.Parallel()
	named := pgtest.Server(t, pgserver.Config{})
	pool, err := pgxpool.New(t.Context(), named.URL("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	databases := "select array_agg(datname::text order by datname) from pg_database"
	before := query[[]string](t, pool, databases)

	keyValue := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", named.Port())
	for _, address := range []string{named.URL("postgres"), keyValue} {
		c := startChild(t, []string{"REBASE_TEST_DATABASE_URL=" + address}, os.Args[0])
		cfg := c.url(t)
		require.EqualValues(t, named.Port(), cfg.Port, "although there are local binaries")
		for _, name := range query[[]string](t, pool, databases) {
			if name != "postgres" && !strings.HasPrefix(name, "template") {
				require.True(t, strings.HasPrefix(name, "rebase_test_"), name)
			}
		}
		require.NoError(t, c.input.Close())
		require.NoError(t, c.cmd.Wait())
		require.Equal(t, before, query[[]string](t, pool, databases))
	}
}

// output runs TestChild to its end and returns what it printed.
func output(t *testing.T, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(cleanEnvironment(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestWrongBinaryDirectoryIsAClearError(t *testing.T) {
	t.Parallel()
	out, err := output(t, "REBASE_PG_BIN=/nowhere/bin")
	require.Error(t, err)
	require.Contains(t, out, `REBASE_PG_BIN="/nowhere/bin"`)
}

func TestUnreachableNamedServerIsAnErrorNotASkip(t *testing.T) {
	t.Parallel()
	out, err := output(t, "REBASE_TEST_DATABASE_URL=postgres://postgres@127.0.0.1:1/postgres?sslmode=disable")
	require.Error(t, err)
	require.Contains(t, out, "127.0.0.1:1")
}

func TestMainFailsWhenGoroutinesOutliveTheTests(t *testing.T) {
	t.Parallel()
	needsBinaries(t)
	out, err := output(t, childVar+"=leak")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, out, "goroutines outlived the tests")
	require.Contains(t, out, "TestChild.func")
	out, err = output(t, childVar+"=")
	require.NoError(t, err, out)
}
