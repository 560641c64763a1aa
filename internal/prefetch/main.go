// Command prefetch shows how many jobs a worker chooses to claim ahead: for handlers of 0, 1,
// 100 and 1,000 ms at concurrency 5. Quick handlers need a stock, or they wait for the next
// claim; with slow ones each job in stock only waits, where another worker could run it.
//
// What is in stock is counted from outside: rows that were claimed, less the handlers that
// have begun.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
)

const concurrency = 5

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "prefetch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	url, stop, err := exampledb.Open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	fmt.Printf("%-10s %12s %12s %12s\n", "handler", "jobs/s", "ahead, mean", "ahead, most")
	for _, c := range []struct {
		takes time.Duration
		jobs  int
	}{{0, 50_000}, {time.Millisecond, 10_000}, {100 * time.Millisecond, 150}, {time.Second, 15}} {
		line, err := measure(ctx, pool, c.takes, c.jobs)
		if err != nil {
			return fmt.Errorf("handlers of %v: %w", c.takes, err)
		}
		fmt.Println(line)
	}
	return nil
}

// A stock is what the samples tell.
type stock struct {
	begun, ended atomic.Int64
	sum, n, most int64
}

// measure runs the jobs and looks at the stock again and again, once a tenth of them has
// begun: until then the worker is still learning.
func measure(ctx context.Context, pool *pgxpool.Pool, takes time.Duration, jobs int) (string, error) {
	q := rebase.New(pool, &rebase.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := q.Migrate(ctx); err != nil {
		return "", err
	}
	task := "handler of " + takes.String()
	if _, err := q.EnqueueMany(ctx, itemsOf(task, jobs)); err != nil {
		return "", err
	}
	s := new(stock)
	w := rebase.NewWorker(q, &rebase.WorkerOptions{Concurrency: concurrency})
	w.Register(task, func(context.Context, *rebase.Job) error {
		s.begun.Add(1)
		time.Sleep(takes)
		s.ended.Add(1)
		return nil
	}, nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	start := time.Now()
	var err error
	for err == nil && s.ended.Load() < int64(jobs) {
		time.Sleep(5 * time.Millisecond)
		if s.begun.Load() > int64(jobs)/10 {
			err = s.look(ctx, pool, task)
		}
	}
	took := time.Since(start)
	stop()
	if err = errors.Join(err, <-ended); s.n == 0 {
		err = errors.Join(err, errors.New("it was over before it could be looked at"))
	}
	return fmt.Sprintf("%-10v %12.0f %12.1f %12d", takes, float64(jobs)/took.Seconds(), float64(s.sum)/float64(max(s.n, 1)), s.most), err
}

// look counts once. Handlers begin while the count is taken, so half of those are allowed for.
func (s *stock) look(ctx context.Context, pool *pgxpool.Pool, task string) error {
	before := s.begun.Load()
	var claimed int64
	err := pool.QueryRow(ctx, "select count(*) from rebase.jobs where task = $1 and status <> 'pending'", task).Scan(&claimed)
	ahead := max(claimed-(before+s.begun.Load())/2, 0)
	s.sum, s.n, s.most = s.sum+ahead, s.n+1, max(s.most, ahead)
	return err
}

// itemsOf makes n items of the task.
func itemsOf(task string, n int) []rebase.Item {
	items := make([]rebase.Item, n)
	for i := range items {
		items[i].Task = task
	}
	return items
}
