//go:build unix

package main

// One short run of each kind. The long runs, and the proof that the checker finds what is
// planted, are commands; see main.go.

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// TestMain makes the test binary a worker when it is started as one.
func TestMain(m *testing.M) {
	if isWorker() {
		os.Exit(workerMain())
	}
	pgtest.Main(m)
}

// short is a run that fits into ./check.
var short = plan{Duration: 18 * time.Second, Workers: 3, Concurrency: 6, Visibility: 3 * time.Second, Rate: 60}

// Guarantees 1 to 12, all at once: whatever is done to processes, links, the server and its
// tables, no promise is broken.
func TestTortureBreaksNoPromise(t *testing.T) {
	t.Parallel()
	report := tortured(t, short, 1)
	require.Zero(t, report.violations(), report.String())
	for _, rule := range []string{"committed", "rows", "results", "attempts", "leases", "effects", "keys", "lanes", "wakes", "drains", "processes"} {
		require.NotZero(t, report.counts[rule], "the rule %q had nothing to judge", rule)
	}
	require.Greater(t, len(report.faults), 5, "the adversary did hardly anything: %v", report.faults)
}

// The checker finds a fault that is planted: without a unique index of keys, two jobs with one key.
func TestTortureFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	p := short
	p.Duration, p.Plant = 12*time.Second, "key"
	report := tortured(t, p, 2)
	require.NotZero(t, report.violations())
	require.Equal(t, "keys", report.broken[0].rule, report.String())
	require.Contains(t, report.String(), "the story of job")
}

// tortured runs a seed. It needs a server of its own, which only local binaries can give.
func tortured(t *testing.T, p plan, seed uint64) *report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	report, err := p.run(ctx, seed)
	if _, missing := errors.AsType[*pgserver.NotFoundError](err); missing && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" {
		t.Skipf("a server of the test's own needs local binaries: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		if report.Dir != "" && !t.Failed() {
			require.NoError(t, os.RemoveAll(report.Dir))
		}
	})
	return report
}
