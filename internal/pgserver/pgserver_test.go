//go:build unix

// The server starts, keeps its data and its port over restarts, takes settings,
// and never outlives its owner. The tests run as whoever runs them; as root the
// server must run as the user postgres, as anybody else as themselves.

package pgserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// helperVar makes this test binary play the process that gets killed.
const helperVar = "REBASE_PGSERVER_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperVar); mode != "" {
		helper(mode)
	}
	goleak.VerifyTestMain(m)
}

// helper starts a server, prints its port and directory, and waits to be killed.
func helper(mode string) {
	var cfg pgserver.Config
	if mode != "own" {
		owner, err := strconv.Atoi(mode)
		check(err)
		cfg.Owner = owner
	}
	s, err := pgserver.Start(context.Background(), cfg)
	check(err)
	fmt.Println(s.Port(), filepath.Dir(s.SocketDir()))
	if mode != "own" {
		os.Exit(0) // the server stays: it is the owner's
	}
	select {}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(t *testing.T, s *pgserver.Server, sql string) {
	t.Helper()
	conn := connect(t, s)
	_, err := conn.Exec(t.Context(), sql)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context())) // a smart shutdown waits for it
}

func start(t *testing.T, cfg pgserver.Config) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), cfg)
	if _, missing := errors.AsType[*pgserver.NotFoundError](err); missing && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func connect(t *testing.T, s *pgserver.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server may be gone by then
	return conn
}

func show(t *testing.T, conn *pgx.Conn, setting string) string {
	t.Helper()
	var v string
	require.NoError(t, conn.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&v))
	return v
}

func TestServerStartsWithSettingsForTests(t *testing.T) {
	t.Parallel()
	conn := connect(t, start(t, pgserver.Config{}))
	var collation string
	require.NoError(t, conn.QueryRow(t.Context(), "select datcollate from pg_database where datname = 'postgres'").Scan(&collation))
	require.Equal(t, "C", collation)
	for name, want := range map[string]string{
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
		"max_connections": "300", "shared_buffers": "256MB", "max_prepared_transactions": "10",
		"wal_level": "logical", "server_encoding": "UTF8",
		"listen_addresses": "127.0.0.1", "autovacuum": "on",
	} {
		require.Equal(t, want, show(t, conn, name), name)
	}
}

func TestSettingsGivenWinOverTheDefaults(t *testing.T) {
	t.Parallel()
	conn := connect(t, start(t, pgserver.Config{Durable: true, Settings: map[string]string{
		"shared_buffers": "16MB", "max_connections": "20", "search_path": `"it''s", public`,
	}}))
	require.Equal(t, "16MB", show(t, conn, "shared_buffers"))
	require.Equal(t, "20", show(t, conn, "max_connections"))
	require.Equal(t, `"it''s", public`, show(t, conn, "search_path"))
	require.Equal(t, "on", show(t, conn, "fsync"), "Durable")
	require.Equal(t, "on", show(t, conn, "synchronous_commit"), "Durable")
	require.Equal(t, "on", show(t, conn, "full_page_writes"), "Durable")
}

func TestBadSettingFailsWithTheServersOwnWords(t *testing.T) {
	t.Parallel()
	start(t, pgserver.Config{}) // skips where there is no server at all
	_, err := pgserver.Start(t.Context(), pgserver.Config{Settings: map[string]string{"shared_buffers": "lots"}})
	require.ErrorContains(t, err, `invalid value for parameter "shared_buffers": "lots"`)
}

func TestRestartKeepsPortAndData(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	url := s.URL("postgres")
	run(t, s, "create table kept (n int)")
	for i, mode := range []string{"fast", "immediate", "smart"} {
		run(t, s, fmt.Sprintf("insert into kept values (%d)", i))
		run(t, s, "checkpoint") // with synchronous_commit off an immediate stop may lose the last commits
		require.NoError(t, s.Restart(mode), mode)
		require.Equal(t, url, s.URL("postgres"))
		run(t, s, fmt.Sprintf("do 'begin assert (select count(*) from kept) = %d; end'", i+1))
		if mode == "immediate" {
			log, err := s.Log()
			require.NoError(t, err)
			require.Contains(t, log, "was not properly shut down", "immediate is like a crash")
		}
	}
}

func TestStoppedServerRefusesConnectionsUntilRestart(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	require.NoError(t, s.Stop("fast"))
	_, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.ErrorContains(t, err, "refused")
	require.NoError(t, s.Stop("fast"), "stopping twice does nothing")
	require.NoError(t, s.Restart("fast"), "a stopped server is started")
	run(t, s, "select 1")
}

func TestUnknownStopModeIsNamed(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	require.ErrorContains(t, s.Stop("quick"), `"quick"`)
	require.ErrorContains(t, s.Restart(""), `""`)
	run(t, s, "select 1")
}

func TestCloseRemovesEverything(t *testing.T) {
	t.Parallel()
	also := t.TempDir()
	s := start(t, pgserver.Config{AlsoRemove: also})
	require.NoError(t, s.Close())
	require.NoDirExists(t, filepath.Dir(s.SocketDir()))
	require.NoDirExists(t, also)
	require.NoError(t, s.Close(), "a second Close does nothing")
	require.Error(t, s.Restart("fast"))
}

func TestCancelledStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	start(t, pgserver.Config{})
	dir, err := os.MkdirTemp(pgserver.TempDir(), "rebase-cancelled-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755)) // for the server's user
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = pgserver.Start(ctx, pgserver.Config{Dir: dir})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestServerIsGoneFiveSecondsAfterItsProcessWasKilled(t *testing.T) {
	t.Parallel()
	start(t, pgserver.Config{})
	cmd, port, dir := startHelper(t, "own")
	require.True(t, listening(port))
	require.NoError(t, cmd.Process.Kill())
	requireGone(t, port, dir)
}

func TestServerLivesAndEndsWithAnotherOwner(t *testing.T) {
	t.Parallel()
	start(t, pgserver.Config{})
	owner := exec.Command("sleep", "600")
	require.NoError(t, owner.Start())
	cmd, port, dir := startHelper(t, strconv.Itoa(owner.Process.Pid))
	require.NoError(t, cmd.Wait(), "the process that started the server ends")
	require.True(t, listening(port), "the server doesn't")
	// Not reaped at first: a zombie owner is a dead owner.
	require.NoError(t, owner.Process.Kill())
	requireGone(t, port, dir)
	require.Error(t, owner.Wait())
}

func startHelper(t *testing.T, mode string) (cmd *exec.Cmd, port int, dir string) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVar+"="+mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // already dead where all went well
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	first, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
	port, err = strconv.Atoi(first)
	require.NoError(t, err)
	require.DirExists(t, dir)
	return cmd, port, dir
}

func requireGone(t *testing.T, port int, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return !listening(port) && os.IsNotExist(err)
	}, 5*time.Second, 20*time.Millisecond, "port %d, directory %s", port, dir)
}

func listening(port int) bool {
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && conn.Close() == nil
}
