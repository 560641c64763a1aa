//go:build unix

package main

// What lanes promise in counts: jobs of a lane at once, claim statements per job, and whose
// turn it is. None of it depends on how fast the machine is.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// TestMain makes the test binary a worker when it is started as one.
func TestMain(m *testing.M) {
	if isWorker() {
		os.Exit(workerMain())
	}
	pgtest.Main(m)
}

// newBench is a bench on a database of its own.
func newBench(t *testing.T) *bench {
	t.Helper()
	pool := pgtest.New(t)
	return &bench{
		url: pgtest.URL(t, pool), pool: pool, slots: 10,
		q: rebase.New(pool, &rebase.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}),
	}
}

// J26: two real processes under a limit of 2 a lane: never are three jobs of a lane running, two
// are, both processes take part, and a job costs 1.2 claim statements at most.
func TestTwoProcessesKeepALimitTogetherAndClaimInBatches(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := newBench(t)
	b.limited, b.jobs, b.handler = 10, 100, 5*time.Millisecond
	r, err := b.limitedRun(ctx)
	require.NoError(t, err)
	require.Equal(t, 1000, r.jobs)
	require.Equal(t, laneLimit, r.most, "jobs of a lane at once")
	require.True(t, r.shared, "one process ran everything")
	perJob := float64(r.claims) / float64(r.jobs)
	t.Logf("%d claim statements, %.2f a job", r.claims, perJob)
	require.LessOrEqual(t, perJob, 1.2)
}

// J26: the jobs of 10,000 lanes of one each come in as few claim statements as those of one
// lane, give or take a claim's breath: a lane costs no statement of its own.
func TestTenThousandLanesAreClaimedInBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const lanes = 10_000
	require.NoError(t, b.fill(t.Context(), lanes, func(i int) string { return fmt.Sprintf("tenant %d", i) }))
	var mu sync.Mutex
	seen := map[string]int{}
	stop := b.work(t.Context(), b.slots, func(_ context.Context, job *rebase.Job) error {
		mu.Lock()
		defer mu.Unlock()
		seen[job.Lane]++
		return nil
	}, nil)
	err := b.drained(t.Context())
	require.NoError(t, stop())
	require.NoError(t, err)
	statements, jobs, err := b.claims(t.Context())
	require.NoError(t, err)
	t.Logf("%d claim statements brought %d jobs", statements, jobs)
	require.Len(t, seen, lanes)
	require.LessOrEqual(t, statements, int64(lanes/10))
}

// J26: a job in a lane of its own is among the first that are claimed, though 100,000 of another
// lane are older. All that a worker of ten slots can have begun before it are the jobs of
// its first claim and of the round in which it learns that there are lanes.
func TestALaneOfOneIsAmongTheFirstClaimedBesideALaneOf100000(t *testing.T) {
	t.Parallel()
	const backlog, soon = 100_000, 60
	b := newBench(t)
	require.NoError(t, b.fill(t.Context(), backlog+1, func(i int) string {
		return map[bool]string{true: "one", false: "many"}[i == backlog] // the youngest
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex
	begun, place := 0, 0
	found := make(chan struct{})
	stop := b.work(ctx, b.slots, func(ctx context.Context, job *rebase.Job) error {
		mu.Lock()
		begun++
		if job.Lane == "one" {
			place = begun
			close(found)
		}
		mu.Unlock()
		return pause(ctx, 20*time.Millisecond) // long enough that nothing much is claimed ahead
	}, nil)
	select {
	case <-found:
	case <-ctx.Done():
	}
	require.NoError(t, stop())
	statements, _, err := b.claims(t.Context())
	require.NoError(t, err)
	t.Logf("place %d, within %d claim statements", place, statements)
	mu.Lock()
	defer mu.Unlock()
	require.Positive(t, place, "it has not begun")
	require.LessOrEqual(t, place, soon)
}

// The measure itself: who begins when another ends comes after it; lanes are counted apart.
func TestAtOnceCountsOverlaps(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	require.Zero(t, atOnce(nil))
	require.Equal(t, 1, atOnce([]run{{"a", at(0), at(5)}, {"a", at(5), at(9)}, {"b", at(1), at(4)}}))
	require.Equal(t, 3, atOnce([]run{{"a", at(0), at(5)}, {"a", at(1), at(9)}, {"a", at(4), at(6)}, {"a", at(7), at(8)}}))
}
