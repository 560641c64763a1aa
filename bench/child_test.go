package main

// What children do and what is known of them, with real processes and a private server.

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measure runs the program on a server of its own and returns the medians by scenario and system.
func measure(t *testing.T, flags ...string) (medians map[string]float64, dir string) {
	t.Helper()
	dir = t.TempDir()
	cfg, err := parse(append(flags, "-json", filepath.Join(dir, "run.json"), "-plot", dir), t.Output())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out strings.Builder
	require.NoError(t, run(ctx, cfg, &out), out.String())
	data, err := os.ReadFile(filepath.Join(dir, "run.json"))
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(data, &r))
	medians = map[string]float64{}
	for _, s := range r.Summaries {
		medians[s.Scenario+" "+s.System] = s.Median
	}
	return medians, dir
}

func TestWorkersInOtherProcessesAreMeasured(t *testing.T) {
	t.Parallel()
	got, _ := measure(t, "-n", "1", "-scale", "0.002", "-scenarios", "payload,multi,idle,memory", "-systems", "rebase,river")
	for _, system := range []string{"rebase", "river"} {
		for _, scenario := range []string{"payload.1k", "payload.10k", "multi", "memory", "memory.allocs"} {
			require.Positive(t, got[scenario+" "+system], scenario)
		}
		for _, scenario := range []string{"idle", "idle.client", "idle.server"} {
			require.Contains(t, got, scenario+" "+system)
		}
		require.Greater(t, got["memory "+system], 5.0, "MiB")
		require.Less(t, got["memory.allocs "+system], 100_000.0)
	}
	require.Positive(t, got["idle.client river"], "50 clients that look every second use some time")
}

// Each job of a payload drain has its own text, of another length, near the mean.
func TestBallastIsRandomAndAroundItsMean(t *testing.T) {
	t.Parallel()
	require.Empty(t, batch{}.ballast())
	seen, sum := map[string]bool{}, 0
	lengths := map[int]bool{}
	for range 1000 {
		text := batch{bytes: 1000}.ballast()
		require.False(t, seen[text])
		require.GreaterOrEqual(t, len(text), 500-8)
		require.LessOrEqual(t, len(text), 1500+8)
		seen[text], lengths[len(text)] = true, true
		sum += len(text)
	}
	require.InDelta(t, 1000, sum/1000, 50)
	require.Greater(t, len(lengths), 100)
}

// A child that dies in the middle of a command is an error of it, and of those that come later.
func TestACommandToADeadChildFails(t *testing.T) {
	t.Parallel()
	c, err := startChild(exec.CommandContext(t.Context(), "sh", "-c", "read line; exit 3"))
	require.NoError(t, err)
	err = c.work(t.Context(), worker{slots: 1}, func(int64) {})
	require.ErrorContains(t, err, "the child has ended")
	_, err = c.stop()
	require.ErrorContains(t, err, "the child has ended")
	c.close()
}

func TestAChildThatSaysNonsenseFails(t *testing.T) {
	t.Parallel()
	c, err := startChild(exec.CommandContext(t.Context(), "sh", "-c", "read line; echo hello; sleep 60"))
	require.NoError(t, err)
	_, err = c.stop()
	require.ErrorContains(t, err, `the child said "hello"`)
	require.NoError(t, c.cmd.Process.Kill())
	c.close()
}

func TestHandledJobsOfAllChildrenAreCounted(t *testing.T) {
	t.Parallel()
	script := `read line; echo '{"handled":3}'; echo '{"handled":4}'; echo '{"id":1}'; read line; echo '{"id":2}'; read line; echo '{"id":3}'`
	var children []*child
	for range 2 {
		c, err := startChild(exec.CommandContext(t.Context(), "sh", "-c", script))
		require.NoError(t, err)
		t.Cleanup(c.close)
		children = append(children, c)
	}
	var handled atomic.Int64
	stop, err := crew{nil, children}.work(t.Context(), worker{slots: 1}, func(int64) { handled.Add(1) })
	require.NoError(t, err)
	require.NoError(t, stop())
	require.EqualValues(t, 14, handled.Load())
}

// The name of a process may hold spaces and parentheses.
func TestTheKernelsLineOfAProcessIsRead(t *testing.T) {
	t.Parallel()
	s, err := parseStat("42 (a (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 300 100 20 0 1 0 9 1 1\n")
	require.NoError(t, err)
	require.Equal(t, procStat{name: "a (b) c", parent: 7, own: 2 * time.Second, ended: 4 * time.Second}, s)
	for _, bad := range []string{"", "42 name S 7", "42 (x) S 7 1"} {
		_, err := parseStat(bad)
		require.Error(t, err, bad)
	}
	_, err = serverTime(os.Getpid())
	require.ErrorIs(t, err, errUnsupported, "this process is no server")
	peak, err := peakMemory(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, peak, 5.0)
}
