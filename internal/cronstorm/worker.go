//go:build unix

// A worker process: it declares the schedules as a service's code would, runs their jobs, and
// notes what each handler was given. It also ends when its standard input does, that is with the
// process that started it, so none survives a run that was interrupted.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// workerEnv holds a worker's configuration; that it is set makes a process a worker.
const workerEnv = "REBASE_CRONSTORM_WORKER"

// task is the one task of all schedules here.
const task = "slot"

type workerConfig struct {
	URL, Name string
	Schedules int
	Lease     time.Duration
}

func scheduleID(i int) string { return fmt.Sprintf("every minute %d", i) }

func isWorker() bool { return os.Getenv(workerEnv) != "" }

func workerMain() int {
	var c workerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &c); err != nil {
		fmt.Fprintln(os.Stderr, "cronstorm: worker:", err)
		return 2
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that matters
		os.Exit(4)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "cronstorm: worker:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, c workerConfig) error {
	pool, err := newPool(context.WithoutCancel(ctx), c.URL, c.Name, 3)
	if err != nil {
		return err
	}
	defer pool.Close()
	q := rebase.New(pool, &rebase.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	w := rebase.NewWorker(q, &rebase.WorkerOptions{Name: c.Name, Concurrency: 3, VisibilityTimeout: c.Lease})
	for i := range c.Schedules {
		w.Schedule(rebase.Schedule{
			ID: scheduleID(i), Cron: "* * * * *", Task: task, Payload: scheduleID(i),
			MaxAttempts: 100, // kills are no failures of the job
			CatchUp:     rebase.CatchUpAll(10_000),
		})
	}
	rebase.Handle(w, task, func(ctx context.Context, job *rebase.Job, schedule string) error {
		_, err := pool.Exec(ctx, noteSQL, job.ID, job.Runs, schedule, job.Slot, c.Name)
		return err
	}, nil)
	return w.Run(ctx)
}

// newPool opens a pool of at most n connections, which the server knows by the name.
func newPool(ctx context.Context, url, name string, n int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(n)
	config.ConnConfig.RuntimeParams["application_name"] = name
	return pgxpool.NewWithConfig(ctx, config)
}
