// Command wakebench measures what waking up costs and what it gives: how soon a job that
// another process enqueues begins, what the question "does anybody sleep?" costs an
// enqueue, whether any wake-up is lost, and how little an idle worker sends.
//
// It runs on a private server from local binaries, with fsync and all, because the price
// of a NOTIFY is a lock that is held until a commit is on disk. All figures of one part
// come from one run, alternated, so that they can be compared with each other; the load
// average is printed beside them.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

// A bench is what the parts share.
type bench struct {
	url                                     string
	jobs, clients, repeats, rounds, delayed int
	slice, settle, idle                     time.Duration
}

func main() {
	var b bench
	var parts string
	flag.StringVar(&b.url, "url", "", "of an empty database; if empty, a private server is started")
	flag.StringVar(&parts, "parts", "1,2,3,4,6", "what to measure: 1 latency, 2 price of an enqueue, 3 lost wake-ups, 4 idleness, 6 delayed jobs")
	flag.IntVar(&b.jobs, "jobs", 1000, "jobs of part 1")
	flag.IntVar(&b.clients, "clients", 64, "connections that enqueue at once in part 2")
	flag.IntVar(&b.repeats, "repeats", 5, "rounds of part 2")
	flag.DurationVar(&b.slice, "slice", time.Second, "time for each way of a round of part 2")
	flag.IntVar(&b.rounds, "rounds", 10_000, "rounds of part 3")
	flag.DurationVar(&b.settle, "settle", 4*time.Minute, "idleness before part 4 counts")
	flag.DurationVar(&b.idle, "idle", 2*time.Minute, "idleness that part 4 counts")
	flag.IntVar(&b.delayed, "delayed", 200, "jobs of part 6")
	enqueuer := flag.Bool("enqueuer", false, "be the other process of part 1")
	flag.Parse()
	ctx := context.Background()
	run := b.run
	if *enqueuer {
		run = b.enqueueOnDemand
	}
	if err := run(ctx, strings.Split(parts, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "wakebench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, parts []string) error {
	if b.url == "" {
		server, err := pgserver.Start(ctx, pgserver.Config{Durable: true, Settings: map[string]string{"max_connections": "300"}})
		if err != nil {
			return err
		}
		defer server.Close() // the guard ends it in any case
		b.url = server.URL("postgres")
	}
	q, close, err := b.open(ctx, 4)
	if err != nil {
		return err
	}
	defer close()
	if err := q.Migrate(ctx); err != nil {
		return err
	}
	fmt.Printf("%s, %d CPUs, load average %s\n", runtime.Version(), runtime.NumCPU(), load())
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{{"1", b.latency}, {"2", b.price}, {"3", b.races}, {"4", b.idleness}, {"6", b.lateness}} {
		if !slices.Contains(parts, part.name) {
			continue
		}
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("part %s: %w", part.name, err)
		}
		fmt.Printf("    load average %s\n", load())
	}
	return nil
}

// open makes a queue on a pool of its own, as another process would.
func (b *bench) open(ctx context.Context, conns int32) (*rebase.Queue, func(), error) {
	_, q, close, err := b.openPool(ctx, conns)
	return q, close, err
}

func (b *bench) openPool(ctx context.Context, conns int32) (*pgxpool.Pool, *rebase.Queue, func(), error) {
	config, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		return nil, nil, nil, err
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, nil, err
	}
	return pool, rebase.New(pool, &rebase.Options{Logger: quiet}), pool.Close, nil
}

// quiet drops what the library has to say below a warning.
var quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

// work runs a worker of one task until stop is called.
func (b *bench) work(ctx context.Context, task string, slots int, h rebase.Handler) (stop func() error, err error) {
	q, close, err := b.open(ctx, 2)
	if err != nil {
		return nil, err
	}
	w := rebase.NewWorker(q, &rebase.WorkerOptions{Concurrency: slots})
	w.Register(task, h, nil)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error {
		defer close()
		cancel()
		return <-done
	}, b.asleep(ctx, task)
}

// asleep waits until somebody holds the sleep lock of the task's bucket.
func (b *bench) asleep(ctx context.Context, task string) error {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for sleeps := false; !sleeps; {
		err := conn.QueryRow(ctx, `select exists (select from pg_locks where locktype = 'advisory' and classid = 7236 and granted
			and mode = 'ShareLock' and objid = (hashtext($1) & 15)::oid)`, task).Scan(&sleeps)
		if err != nil {
			return err
		}
	}
	return nil
}

// load is the machine's load average, where it can be told.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}

// quantile returns the value below which the share p of all lies.
func quantile(all []time.Duration, p float64) time.Duration {
	slices.Sort(all)
	return all[min(int(p*float64(len(all))), len(all)-1)].Round(10 * time.Microsecond)
}

// median of numbers that need not be sorted.
func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
