//go:build unix

// Loadbench measures rebase with many at once, on a private server with fsync and all:
//
//	workers    20 processes of 100 slots each drain a full table
//	idle       100 processes have nothing to do: what they cost, and how they wake
//	enqueuers  1,000 connections enqueue through PgBouncer while a worker drains
//
//	go run ./internal/loadbench -parts workers,idle,enqueuers
//
// All worker processes are this program again (worker.go). A part is an error if a job got
// lost, ran twice or lost its lease: a rate counts only if everything was done once.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

// The tasks. Every worker serves them all.
const (
	taskNoop  = "load.noop"  // does nothing
	taskTimed = "load.timed" // takes as long as -handler says
	taskProbe = "load.probe" // says when it began
)

// A bench is what the parts share.
type bench struct {
	url  string
	pool *pgxpool.Pool
	q    *rebase.Queue

	processes, slots, jobs, timed int // workers
	handler                       time.Duration
	idlers, probes                int // idle
	settle, idleFor               time.Duration
	clients, serverConns          int // enqueuers
	enqueueFor                    time.Duration
	pgbouncer                     string
	limit                         time.Duration // of a part
}

func main() {
	if isWorker() {
		os.Exit(workerMain())
	}
	var b bench
	parts := flag.String("parts", "workers,idle,enqueuers", "what to measure")
	flag.IntVar(&b.processes, "processes", 20, "worker processes of workers")
	flag.IntVar(&b.slots, "slots", 100, "concurrency of a worker, of workers and enqueuers")
	flag.IntVar(&b.jobs, "jobs", 100_000, "jobs of workers that do nothing")
	flag.IntVar(&b.timed, "timed", 20_000, "jobs of workers that take a while")
	flag.DurationVar(&b.handler, "handler", 10*time.Millisecond, "how long these take")
	flag.IntVar(&b.idlers, "idlers", 100, "worker processes of idle")
	flag.IntVar(&b.probes, "probes", 50, "jobs that wake one of them")
	flag.DurationVar(&b.settle, "settle", 12*time.Second, "time before idle counts; the server's statistics are up to 10 s late")
	flag.DurationVar(&b.idleFor, "idle", time.Minute, "time that idle counts")
	flag.IntVar(&b.clients, "clients", 1000, "client connections of enqueuers")
	flag.IntVar(&b.serverConns, "pool", 20, "server connections of the pooler")
	flag.DurationVar(&b.enqueueFor, "enqueue", 10*time.Second, "how long enqueuers enqueue")
	flag.StringVar(&b.pgbouncer, "pgbouncer", "", "PgBouncer's binary; if empty, it is looked for")
	flag.DurationVar(&b.limit, "limit", 5*time.Minute, "time limit of a part")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, strings.Split(*parts, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "loadbench:", err)
		os.Exit(1)
	}
}

// check refuses what can't be measured.
func (b *bench) check() error {
	for _, f := range []struct {
		flag  string
		value int64
	}{
		{"processes", int64(b.processes)}, {"slots", int64(b.slots)}, {"jobs", int64(b.jobs)}, {"timed", int64(b.timed)},
		{"handler", int64(b.handler)}, {"idlers", int64(b.idlers)}, {"probes", int64(b.probes)}, {"idle", int64(b.idleFor)},
		{"clients", int64(b.clients)}, {"pool", int64(b.serverConns)}, {"enqueue", int64(b.enqueueFor)}, {"limit", int64(b.limit)},
	} {
		if f.value <= 0 {
			return &flagError{f.flag, fmt.Sprint(f.value), "must be above zero"}
		}
	}
	if b.settle < 0 {
		return &flagError{"settle", b.settle.String(), "must not be below zero"}
	}
	return nil
}

// A flagError says which flag has which wrong value.
type flagError struct{ flag, value, reason string }

func (e *flagError) Error() string { return fmt.Sprintf("-%s %s: %s", e.flag, e.value, e.reason) }

// run measures the parts on a server of their own. One that fails does not stop the others.
func (b *bench) run(ctx context.Context, parts []string) (err error) {
	known := map[string]func(context.Context) (fmt.Stringer, error){"workers": b.workers, "idle": b.idle, "enqueuers": b.enqueuers}
	for _, part := range parts {
		if known[part] == nil {
			return &flagError{"parts", part, "is none of workers, idle and enqueuers"}
		}
	}
	if err := b.check(); err != nil {
		return err
	}
	connections := max(3*b.processes, 3*b.idlers, b.serverConns+3) + 30
	server, err := pgserver.Start(ctx, pgserver.Config{Durable: true, Settings: map[string]string{
		"max_connections": fmt.Sprint(connections), "shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min",
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	b.url = server.URL("postgres")
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.pool.Close()
	if err := b.q.Migrate(ctx); err != nil {
		return err
	}
	var failed []error
	fmt.Printf("%s, %d CPUs, load average %s\n", runtime.Version(), runtime.NumCPU(), load())
	for _, part := range parts {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		result, err := b.measure(ctx, known[part])
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part, err))
			continue
		}
		fmt.Printf("%s\n    load average %s\n", result, load())
	}
	return errors.Join(failed...)
}

// measure runs a part within the limit.
func (b *bench) measure(ctx context.Context, part func(context.Context) (fmt.Stringer, error)) (fmt.Stringer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.limit, fmt.Errorf("-limit %v has passed", b.limit))
	defer cancel()
	return part(ctx)
}

func (b *bench) open(ctx context.Context) (err error) {
	if b.pool, err = pgxpool.New(ctx, b.url); err == nil {
		b.q = rebase.New(b.pool, &rebase.Options{Logger: quiet})
	}
	return err
}

// quiet drops what the library has to say below a warning.
var quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

// fill makes n jobs.
func (b *bench) fill(ctx context.Context, task string, n int) error {
	items := make([]rebase.Item, n)
	for i := range items {
		items[i] = rebase.Item{Task: task, Payload: i}
	}
	for part := range slices.Chunk(items, 5000) {
		if _, err := b.q.EnqueueMany(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// execAll runs statements one after the other, none of them in a transaction with others.
func (b *bench) execAll(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := b.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// pause waits, and says why it was cut short.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// quantile is the value below which the share p of all lies; 0.5 is the median. Of none it is 0.
func quantile[T cmp.Ordered](all []T, p float64) (none T) {
	if len(all) == 0 {
		return none
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(int(p*float64(len(all))), len(all)-1)]
}
