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
	"github.com/jackc/pgx/v5/pgxpool"
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

// A program is the built one, and a database for it.
type program struct {
	binary string
	pool   *pgxpool.Pool
}

func (p *program) command(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), p.binary, args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pgtest.URL(t, p.pool))
	cmd.WaitDelay = patience
	return cmd
}

// The order matters: the first makes job 1, the second jobs 2 and 3.
func TestBuiltProgram(t *testing.T) {
	t.Parallel()
	p := &program{build(t), pgtest.New(t)}
	t.Run("ends with its exit code", p.endsWithItsExitCode)
	t.Run("asks on a terminal", p.asksOnATerminal)
	t.Run("redraws a terminal until an interrupt", p.redrawsUntilAnInterrupt)
	t.Run("leaves no statement behind on the server", p.leavesNoStatementBehind)
	t.Run("is interrupted at a question", p.isInterruptedAtAQuestion)
}

func (p *program) endsWithItsExitCode(t *testing.T) {
	for _, c := range []struct {
		code int
		args string
	}{
		{0, "check"}, {0, "enqueue t"}, {1, "stats --database-url host=/nowhere"}, {2, "lst"}, {2, "--nope"},
		{3, "show 999"}, {4, "retry 1"}, {5, "cancel 1 2"}, {0, "--help"}, {0, "--version"},
	} {
		cmd := p.command(t, strings.Fields(c.args)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		require.True(t, err == nil || errors.As(err, new(*exec.ExitError)), err)
		require.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%s: %s", c.args, errs.String())
		require.Equal(t, c.code != 0, strings.HasPrefix(errs.String(), "rebase: "), "%s: %s", c.args, errs.String())
		require.Equal(t, c.code != 0, out.Len() == 0, "%s: %s", c.args, out.String())
	}
}

func (p *program) asksOnATerminal(t *testing.T) {
	q := rebase.New(p.pool, nil)
	for range 2 {
		_, err := q.Enqueue(t.Context(), "asked", nil, nil)
		require.NoError(t, err)
	}
	cmd, terminal := p.start(t, nil, "cancel", "2", "3")
	said := readUntil(t, terminal, "Type yes to go on: ")
	require.Contains(t, said, "This will cancel 2 jobs.")
	_, err := terminal.WriteString("yes\n")
	require.NoError(t, err)
	readUntil(t, terminal, "cancelled job 3")
	require.NoError(t, cmd.Wait())
}

func (p *program) redrawsUntilAnInterrupt(t *testing.T) {
	cmd, terminal := p.start(t, &pty.Winsize{Rows: 30, Cols: 100}, "watch", "--interval", "100ms")
	readUntil(t, terminal, "\x1b[H\x1b[2J", "\x1b[J", "\x1b[H\x1b[", "\x1b[J")
	_, err := terminal.Write([]byte{3}) // Ctrl-C
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
}

func (p *program) leavesNoStatementBehind(t *testing.T) {
	tx, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = tx.Exec(t.Context(), `lock table rebase.jobs in access exclusive mode`)
	require.NoError(t, err)
	require.Error(t, p.command(t, "stats", "--timeout", "200ms").Run())
	require.Eventually(t, func() bool {
		var n int
		err := p.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n == 0
	}, 20*time.Second, 20*time.Millisecond)
}

func (p *program) isInterruptedAtAQuestion(t *testing.T) {
	cmd, terminal := p.start(t, nil, "cancel", "2", "3")
	readUntil(t, terminal, "Type yes")
	_, err := terminal.Write([]byte{3})
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
}

// start runs a command on a terminal of the size, nil for any.
func (p *program) start(t *testing.T, size *pty.Winsize, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := p.command(t, args...)
	terminal, err := pty.StartWithSize(cmd, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, terminal.Close()) })
	return cmd, terminal
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

// S1: a zone is known on a host that has no files of them.
func TestTheZonesAreInTheProgram(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, strings.Fields(string(out)), "time/tzdata")
}
