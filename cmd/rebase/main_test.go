//go:build unix

package main_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// The built program, as a shell sees it: exit codes, the environment, a real terminal, signals.

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds every wait; the machine may be slow.
const patience = 90 * time.Second

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rebase")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func TestBuiltProgram(t *testing.T) {
	t.Parallel()
	binary := build(t)
	pool := pgtest.New(t)
	q := rebase.New(pool, nil)
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+pgtest.URL(t, pool))
		cmd.WaitDelay = patience
		return cmd
	}
	t.Run("ends with its exit code", func(t *testing.T) {
		for _, c := range []struct {
			code int
			args string
		}{
			{0, "check"}, {0, "enqueue t"}, {1, "stats --database-url host=/nowhere"}, {2, "lst"}, {2, "--nope"},
			{3, "show 999"}, {4, "retry 1"}, {5, "cancel 1 2"}, {0, "--help"}, {0, "--version"},
		} {
			cmd := command(strings.Fields(c.args)...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			require.True(t, err == nil || errors.As(err, new(*exec.ExitError)), err)
			require.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%s: %s", c.args, errs.String())
			require.Equal(t, c.code == 0, errs.Len() == 0, "%s: %s", c.args, errs.String())
			require.Equal(t, c.code != 0, out.Len() == 0, "%s: %s", c.args, out.String())
		}
	})
	t.Run("asks on a terminal", func(t *testing.T) {
		for range 2 {
			_, err := q.Enqueue(t.Context(), "asked", nil, nil)
			require.NoError(t, err)
		}
		cmd := command("cancel", "2", "3")
		terminal, err := pty.Start(cmd)
		require.NoError(t, err)
		defer func() { require.NoError(t, terminal.Close()) }()
		said := readUntil(t, terminal, "Type yes to go on: ")
		require.Contains(t, said, "This will cancel 2 jobs.")
		_, err = terminal.WriteString("yes\n")
		require.NoError(t, err)
		readUntil(t, terminal, "cancelled job 3")
		require.NoError(t, cmd.Wait())
	})
	t.Run("redraws a terminal until an interrupt", func(t *testing.T) {
		cmd := command("watch", "--interval", "100ms")
		terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100})
		require.NoError(t, err)
		defer func() { require.NoError(t, terminal.Close()) }()
		readUntil(t, terminal, "\x1b[H\x1b[2J", "\x1b[J", "\x1b[H\x1b[", "\x1b[J")
		_, err = terminal.Write([]byte{3}) // Ctrl-C
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
	})
	t.Run("leaves no statement behind on the server", func(t *testing.T) {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
		_, err = tx.Exec(t.Context(), `lock table rebase.jobs in access exclusive mode`)
		require.NoError(t, err)
		require.Error(t, command("stats", "--timeout", "200ms").Run())
		require.Eventually(t, func() bool {
			var n int
			err := pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n)
			return err == nil && n == 0
		}, 20*time.Second, 20*time.Millisecond)
	})
	t.Run("is interrupted at a question", func(t *testing.T) {
		cmd := command("cancel", "2", "3")
		terminal, err := pty.Start(cmd)
		require.NoError(t, err)
		defer func() { require.NoError(t, terminal.Close()) }()
		readUntil(t, terminal, "Type yes")
		_, err = terminal.Write([]byte{3})
		require.NoError(t, err)
		require.Error(t, cmd.Wait())
		require.Equal(t, 130, cmd.ProcessState.ExitCode())
	})
}

// readUntil reads until all the texts have come, in their order.
func readUntil(t *testing.T, r io.Reader, texts ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	said := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			all.Write(buf[:n])
			rest, found := all.String(), true
			for _, text := range texts {
				if _, rest, found = strings.Cut(rest, text); !found {
					break
				}
			}
			if found || err != nil {
				said <- all.String()
				return
			}
		}
	}()
	select {
	case text := <-said:
		for _, want := range texts {
			require.Contains(t, text, want)
		}
		return text
	case <-ctx.Done():
		require.FailNow(t, "waited in vain", "for %q", texts)
		return ""
	}
}
