//go:build unix

package main

// The tests are the short runs: a few hundred jobs each, one kind of harm each. Every one
// ends with the same checker, so each proves all promises under its harm.

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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

const lease = 3 * time.Second // the shortest that the library takes

// A bed is a database with a fleet and a producer on it.
type bed struct {
	*testing.T
	ctx   context.Context
	pool  *pgxpool.Pool
	fleet *Fleet
	maker *Producer
	rand  *rand.Rand
}

// newBed uses the run's common server; maxAttempts is for its jobs.
func newBed(t *testing.T, concurrency, maxAttempts int) *bed {
	pool := pgtest.New(t)
	_, err := pool.Exec(t.Context(), recordSchemaSQL)
	require.NoError(t, err)
	return bedOn(t, pool, pgtest.URL(t, pool), concurrency, maxAttempts)
}

// newServerBed has a server of its own, which may be restarted. Commits are flushed to
// the system before they are confirmed, so that a crash of the server loses none.
func newServerBed(t *testing.T, concurrency, maxAttempts int) (*bed, *pgserver.Server) {
	server := pgtest.Server(t, pgserver.Config{Settings: map[string]string{"synchronous_commit": "on"}})
	pool, err := newPool(t.Context(), server.URL("postgres"), "harness", 10)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, prepare(t.Context(), pool))
	return bedOn(t, pool, server.URL("postgres"), concurrency, maxAttempts), server
}

func bedOn(t *testing.T, pool *pgxpool.Pool, url string, concurrency, maxAttempts int) *bed {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b := &bed{
		T: t, ctx: ctx, pool: pool, maker: NewProducer(pool, maxAttempts), rand: rand.New(rand.NewPCG(1, 2)),
		fleet: NewFleet(pool, t.TempDir(), WorkerConfig{URL: url, Concurrency: concurrency, Visibility: lease}),
	}
	t.Cleanup(b.tellLogs)
	t.Cleanup(b.fleet.Close)
	return b
}

// tellLogs shows what the processes had to say when the test has failed.
func (b *bed) tellLogs() {
	if !b.Failed() {
		return
	}
	for _, p := range b.fleet.procs {
		log, err := os.ReadFile(p.log)
		b.Logf("%s (%v):\n%s", p.Name, err, log[max(0, len(log)-4000):])
	}
}

// make enqueues n jobs in transactions of ten at most.
func (b *bed) make(n int, payload Payload) (ids []int64) {
	b.Helper()
	for n > 0 {
		batch := make([]Payload, min(n, 10))
		for i := range batch {
			batch[i] = payload
		}
		made, err := b.maker.Make(b.ctx, b.rand, batch...)
		require.NoError(b, err)
		ids, n = append(ids, made...), n-len(batch)
	}
	return ids
}

// produce enqueues n jobs of all sorts, from now on; the channel tells how that ended.
func (b *bed) produce(n int) <-chan error {
	made := make(chan error, 1)
	plan := Plan{Jobs: n, MaxAttempts: b.maker.options.MaxAttempts, Longest: 100 * time.Millisecond}
	go func() { made <- plan.produce(b.ctx, b.maker, 7) }()
	return made
}

// start starts n processes and waits for them.
func (b *bed) start(n int) []*Proc {
	b.Helper()
	procs, err := b.fleet.StartAll(b.ctx, n)
	require.NoError(b, err)
	return procs
}

// replace starts a process in place of one that has ended.
func (b *bed) replace() *Proc {
	b.Helper()
	p, err := b.fleet.Start()
	require.NoError(b, err)
	return p
}

// await waits until the answer to sql is true.
func (b *bed) await(what, sql string, args ...any) {
	b.Helper()
	require.NoError(b, b.fleet.Await(b.ctx, what, sql, args...))
}

// wait lets time pass: it is leases and outages that these tests are about.
func (b *bed) wait(d time.Duration) {
	b.Helper()
	require.NoError(b, pause(b.ctx, d))
}

// finish drains the queue, ends the fleet, and checks everything.
func (b *bed) finish(expect Expect) *Report {
	b.Helper()
	require.NoError(b, b.fleet.Drain(b.ctx))
	report, err := Check(b.ctx, b.pool, expect)
	require.NoError(b, err)
	b.Log(report)
	require.Empty(b, report.Shown())
	return report
}

// runningOn is true when process $1 runs $2 handlers or more.
const runningOn = "select count(*) >= $2 from crash.runs where process = $1 and ended_at is null"
