//go:build unix

// Lanebench measures what lanes cost and what they promise, on a private server with fsync
// and all:
//
//	many   10,000 lanes of one job each, beside one lane with as many jobs, alternated
//	wait   how long a job waits in a lane of its own behind a lane of 100,000
//	limit  two real processes under a limit of 2 a lane: jobs of a lane at once, and claim
//	       statements per job
//
// What must hold whatever the machine does is tested in lanes_test.go; here are the figures.
package main

import (
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

// task is the one task of all jobs here.
const task = "laned"

// A bench is what the parts share.
type bench struct {
	url  string
	pool *pgxpool.Pool
	q    *rebase.Queue

	lanes, rounds, slots int // many
	backlog, probes      int // wait
	limited, jobs        int // limit
	handler              time.Duration
}

func main() {
	if isWorker() {
		os.Exit(workerMain())
	}
	var b bench
	parts := flag.String("parts", "many,wait,limit", "what to measure")
	flag.StringVar(&b.url, "url", "", "of an empty database; if empty, a private server is started")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds of many, of which the median counts")
	flag.IntVar(&b.lanes, "lanes", 10_000, "lanes, and jobs, of many")
	flag.IntVar(&b.slots, "slots", 10, "concurrency of a worker")
	flag.IntVar(&b.backlog, "backlog", 100_000, "jobs of the long lane of wait")
	flag.IntVar(&b.probes, "probes", 50, "jobs in lanes of their own of wait")
	flag.IntVar(&b.limited, "limited", 10, "lanes of limit")
	flag.IntVar(&b.jobs, "jobs", 1000, "jobs a lane of limit")
	flag.DurationVar(&b.handler, "handler", 5*time.Millisecond, "how long a handler of limit takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, strings.Split(*parts, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "lanebench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, parts []string) (err error) {
	if b.url == "" {
		server, err := pgserver.Start(ctx, pgserver.Config{Durable: true, Settings: map[string]string{
			"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min",
		}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		b.url = server.URL("postgres")
	}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.pool.Close()
	if err := b.q.Migrate(ctx); err != nil {
		return err
	}
	fmt.Printf("%s, %d CPUs, load average %s\n", runtime.Version(), runtime.NumCPU(), load())
	known := map[string]func(context.Context) error{"many": b.many, "wait": b.wait, "limit": b.limit}
	for _, part := range parts {
		do, ok := known[part]
		if !ok {
			return fmt.Errorf("-parts: %q is none of many, wait and limit", part)
		}
		if err := do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}

func (b *bench) open(ctx context.Context) (err error) {
	if b.pool, err = pgxpool.New(ctx, b.url); err == nil {
		b.q = rebase.New(b.pool, &rebase.Options{Logger: quiet})
	}
	return err
}

// quiet drops what the library has to say below a warning.
var quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

// fill makes n jobs in an empty table; laneOf names the lane of each. The statistics are those
// of the full table, as after a while of use.
func (b *bench) fill(ctx context.Context, n int, laneOf func(i int) string) error {
	if _, err := b.pool.Exec(ctx, "truncate rebase.jobs, rebase.claims"); err != nil {
		return err
	}
	items := make([]rebase.Item, 0, n)
	for i := range n {
		items = append(items, rebase.Item{Task: task, Options: &rebase.EnqueueOptions{Lane: laneOf(i), MaxAttempts: 10}})
	}
	for part := range slices.Chunk(items, 5000) {
		if _, err := b.q.EnqueueMany(ctx, part); err != nil {
			return err
		}
	}
	for _, sql := range []string{"vacuum analyze rebase.jobs", "checkpoint"} {
		if _, err := b.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// work runs a worker until stop is called.
func (b *bench) work(ctx context.Context, slots int, h rebase.Handler, opts *rebase.TaskOptions) (stop func() error) {
	w := rebase.NewWorker(b.q, &rebase.WorkerOptions{Concurrency: slots})
	w.Register(task, h, opts)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

// drained waits until no job is unfinished.
func (b *bench) drained(ctx context.Context) error {
	for {
		var left bool
		err := b.pool.QueryRow(ctx, "select exists (select from rebase.jobs where finished_at is null)").Scan(&left)
		if err != nil || !left {
			return err
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// claims is how many claim statements there were in all, and how many jobs they brought.
func (b *bench) claims(ctx context.Context) (statements, jobs int64, err error) {
	s, err := b.q.Stats(ctx)
	if err != nil {
		return 0, 0, err
	}
	return s.Totals["claims"], s.Totals["claimed"], nil
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

// load is the machine's load average, where it can be told.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}

// quantile is the value below which the share p of all lies; 0.5 is the median.
func quantile[T int | float64 | time.Duration](all []T, p float64) T {
	all = slices.Sorted(slices.Values(all))
	return all[min(int(p*float64(len(all))), len(all)-1)]
}
