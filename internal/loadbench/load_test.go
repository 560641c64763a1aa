//go:build unix

package main

// Small versions of the three parts, with real processes, and tests of what the figures rest on: the
// checks that refuse a bad run, and the readers of what the machine says.

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
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

// newBench is a small bench on a database of its own.
func newBench(t *testing.T, pool *pgxpool.Pool) *bench {
	t.Helper()
	return &bench{
		url: pgtest.URL(t, pool), pool: pool,
		q:         rebase.New(pool, &rebase.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}),
		processes: 4, slots: 25, jobs: 3000, timed: 500, handler: 10 * time.Millisecond,
		idlers: 6, probes: 5, idleFor: 2 * time.Second,
		clients: 100, serverConns: 5, enqueueFor: time.Second, limit: time.Minute,
	}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// J5: any number of processes drain one table, each job is run once, and nobody loses a lease. A
// worker has three connections, whatever its slots.
func TestFourProcessesDrainATableAndRunEachJobOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, pgtest.New(t))
	r, err := b.workersRun(deadline(t))
	require.NoError(t, err)
	t.Log(r)
	require.Equal(t, 3*b.processes, r.connections)
	require.Zero(t, r.lost)
	require.Zero(t, r.expired)
	require.Len(t, r.drains, 2)
	for i, n := range []int{b.jobs, b.timed} {
		d := r.drains[i]
		require.Equal(t, n, d.jobs)
		require.EqualValues(t, n, d.succeeded)
		require.EqualValues(t, n, d.runs)
		require.LessOrEqual(t, int64(n)-d.once, r.released, "only a job that was given back unbegun may be claimed twice")
		if i == 1 { // alone one process would need 200 ms, far longer than it takes the others to wake
			require.Greater(t, d.workers, 1, "one process ran everything")
		}
		require.Positive(t, d.took)
	}
	require.GreaterOrEqual(t, r.drains[1].took, b.handler)
}

// N2, N1: an idle worker looks every 30 s, so within two seconds none looks twice; and a single job
// starts at once, though all of them sleep. On a server of its own: others' open transactions
// would keep the workers from falling asleep for good.
func TestIdleProcessesAreQuietAndASingleJobWakesOne(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Config{})
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := newBench(t, pool)
	require.NoError(t, b.q.Migrate(t.Context()))
	r, err := b.idleRun(deadline(t))
	require.NoError(t, err)
	t.Log(r)
	require.Equal(t, 3*b.idlers, r.connections)
	require.LessOrEqual(t, r.most, int64(1), "looks of one worker")
	require.LessOrEqual(t, r.rounds, int64(3*b.idlers))
	require.Len(t, r.wakes, b.probes)
	require.Less(t, quantile(r.wakes, 0.5), time.Second, "a job that nobody was woken for waits for seconds")
	require.EqualValues(t, b.probes, r.runs)
	for _, n := range r.looked {
		require.Positive(t, n, "a job ran, but no look was counted")
		require.LessOrEqual(t, n, b.idlers)
	}
}

// N3: enqueues go through PgBouncer in transaction mode, from twenty times as many clients as it has
// server connections; none fails, and a worker with a direct address runs each job once.
func TestManyClientsEnqueueThroughAPoolerAndEachJobRunsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, pgtest.New(t))
	r, err := b.enqueuersRun(deadline(t))
	if missing, ok := errors.AsType[*missingError](err); ok && os.Getenv("CI") == "" && os.Getenv("REBASE_REQUIRE_PGBOUNCER") == "" {
		t.Skip("did not run:", missing)
	}
	require.NoError(t, err)
	t.Log(r)
	require.Zero(t, r.failed)
	require.GreaterOrEqual(t, r.enqueued, int64(b.clients), "a client enqueued nothing")
	require.EqualValues(t, r.enqueued, r.drained.succeeded)
	require.EqualValues(t, r.enqueued, r.drained.runs)
	require.LessOrEqual(t, r.connections, b.serverConns+3+int(b.pool.Stat().MaxConns()))
}

// Without PgBouncer the part says what to install and names what it looked for.
func TestWithoutPgBouncerThePartSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	b := &bench{pgbouncer: "/nowhere/pgbouncer"}
	_, err := b.enqueuers(t.Context())
	var missing *missingError
	require.ErrorAs(t, err, &missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, `-pgbouncer "/nowhere/pgbouncer"`)
	require.ErrorContains(t, err, "install the package pgbouncer")
}

// A pooler that ends at once is an error with its own words, not a hang.
func TestAPoolerThatDoesNotStartIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, pgtest.New(t))
	b.pgbouncer = "/bin/false"
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := b.startPooler(ctx)
	require.ErrorContains(t, err, "PgBouncer does not come up")
}

// A worker that can't work is an error of the part, and not a fleet that is one short.
func TestAWorkerThatEndsEarlyIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, pgtest.Empty(t)) // its workers find no schema
	_, err := b.fleet(deadline(t), 1, workerConfig{Slots: 1})
	require.ErrorContains(t, err, "a worker has ended too early")
}

// A figure is refused unless everything was done once.
func TestAResultWithALostOrDoubledJobIsRefused(t *testing.T) {
	t.Parallel()
	good := func() *workersResult {
		return &workersResult{drains: []*drained{{jobs: 10, succeeded: 10, runs: 10, once: 10}}}
	}
	require.NoError(t, good().check())
	for name, spoil := range map[string]func(*workersResult){
		"a job did not succeed": func(r *workersResult) { r.drains[0].succeeded = 9 },
		"a handler ran twice":   func(r *workersResult) { r.drains[0].runs = 11 },
		"a lease was lost":      func(r *workersResult) { r.lost = 1 },
		"a lease expired":       func(r *workersResult) { r.expired = 1 },
	} {
		r := good()
		spoil(r)
		require.Error(t, r.check(), name)
	}
}

// A wrong flag is named with its value before anything is started.
func TestAWrongFlagIsNamedWithItsValue(t *testing.T) {
	t.Parallel()
	b := newBench(t, pgtest.New(t))
	require.NoError(t, b.check())
	err := b.run(t.Context(), []string{"workers", "nonsense"})
	require.EqualError(t, err, "-parts nonsense: is none of workers, idle and enqueuers")
	b.clients = 0
	require.EqualError(t, b.run(t.Context(), []string{"idle"}), "-clients 0: must be above zero")
	b.clients, b.settle = 1, -time.Second
	require.EqualError(t, b.run(t.Context(), []string{"idle"}), "-settle -1s: must not be below zero")
}

// Waiting for the disk is not being busy, and guest time is not counted twice.
func TestBusyProcessorsAreReadFromTheKernel(t *testing.T) {
	t.Parallel()
	before := parseCPU("cpu  100 0 50 1000 10 0 0 0 70 0\ncpu0 1 2 3\n")
	require.Equal(t, cpu{busy: 150, all: 1160, known: true}, before)
	after := parseCPU("cpu  100 0 50 1000 60 25 25 0 90 0\n")
	require.Equal(t, cpu{busy: 200, all: 1260, known: true}, after)
	require.Equal(t, "unknown", before.busySince(before), "no time has passed")
	require.NotEqual(t, "unknown", after.busySince(before))
	for _, bad := range []string{"", "cpu 1 2", "cpu a 0 0 0 0 0 0", "intr 1 2 3 4 5 6 7"} {
		require.Equal(t, "unknown", parseCPU(bad).busySince(before), bad)
	}
}

// A process's name is its own choice, brackets and spaces included.
func TestAProcessIsReadFromTheKernel(t *testing.T) {
	t.Parallel()
	p, err := parseProcess("42 (a) (b c) S 7 0 0 0 0 0 0 0 0 0 100 50 20 10 20 0 1")
	require.NoError(t, err)
	require.Equal(t, processStat{name: "a) (b c", parent: 7, own: 1500 * time.Millisecond, ended: 300 * time.Millisecond}, p)
	for _, bad := range []string{"", "42 name S 7", "42 (x) S 7", "42 (x) S seven 0 0 0 0 0 0 0 0 0 100 50 20 10 20 0 1"} {
		_, err := parseProcess(bad)
		require.Error(t, err, bad)
	}
}

func TestAQuantileOfNoneIsZero(t *testing.T) {
	t.Parallel()
	require.Zero(t, quantile([]time.Duration(nil), 0.5))
	require.Equal(t, 3, quantile([]int{5, 1, 3, 4, 2}, 0.5))
	require.Equal(t, 5, quantile([]int{5, 1, 3, 4, 2}, 1))
}
