//go:build unix

// A worker process: this program again, told by its environment to be one. It runs the
// library as a service would and keeps its record. It also ends when its standard input
// does, that is with the process that started it, so none survives an interrupted run.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// workerEnv holds a worker's configuration; that it is set makes a process a worker.
const workerEnv = "REBASE_TORTURE_WORKER"

// workerConfig is what a worker process is told.
type workerConfig struct {
	URL         string
	ListenURL   string // "": the URL
	Name        string // of the process; no two of a run have the same
	Dir         string // of the record
	Concurrency int
	Visibility  time.Duration
	Schedules   int
}

// The tasks. What a job does is in its payload; the task decides about limits.
const (
	taskShort = "short"
	taskLong  = "long"  // longer than a lease
	taskTimed = "timed" // with a timeout of timedOut
	taskLaned = "laned" // laneLimit at once for each lane
	taskKeyed = "keyed"
	taskSlot  = "slot"  // of schedules
	taskProbe = "probe" // on a quiet queue
)

var tasks = []string{taskShort, taskLong, taskTimed, taskLaned, taskKeyed, taskSlot, taskProbe}

const (
	// Other tasks' timeout: how long a handler may hang on a connection of its own that lies in a
	// black hole. It must fit into the time in which the queue has to be empty (patience).
	longest      = 8 * time.Second
	timedOut     = 1500 * time.Millisecond
	laneLimit    = 2
	keepFor      = 4 * time.Second // succeeded and cancelled jobs
	keepDeadFor  = 8 * time.Second
	shutdownTime = 3 * time.Second
	maxSetbacks  = 25 // that cost no attempt, in a row
)

func isWorker() bool { return os.Getenv(workerEnv) != "" }

// workerMain returns the exit code: 0 after a clean shutdown, 3 when jobs were left behind.
func workerMain() int {
	var c workerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &c); err != nil {
		fmt.Fprintln(os.Stderr, "torture: worker:", err)
		return 2
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that matters
		os.Exit(4)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := serve(ctx, c)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "torture: worker:", err)
	if _, left := errors.AsType[*rebase.ShutdownError](err); left {
		return 3
	}
	return 1
}

func serve(ctx context.Context, c workerConfig) error {
	r, err := newRecord(c.Dir, c.Name)
	if err != nil {
		return err
	}
	go r.watchStalls(c.Visibility / 8)
	pool, err := newPool(context.WithoutCancel(ctx), c.URL, c.Name, 4)
	if err != nil {
		return err
	}
	q := rebase.New(pool, &rebase.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	w := rebase.NewWorker(q, &rebase.WorkerOptions{
		Name: c.Name, Concurrency: c.Concurrency, VisibilityTimeout: c.Visibility, ShutdownTimeout: shutdownTime,
		ListenURL: c.ListenURL, Timeout: longest,
		Backoff:   rebase.Exponential(200*time.Millisecond, 2, 2*time.Second),
		Retention: rebase.Retention{Succeeded: keepFor, Failed: keepDeadFor, Archive: archive},
	})
	h := &handlers{record: r, pool: pool, queue: q}
	for _, task := range tasks {
		opts := &rebase.TaskOptions{}
		switch task {
		case taskTimed:
			opts.Timeout = timedOut
		case taskLaned:
			opts.LaneConcurrency = laneLimit
		case taskLong:
			opts.Concurrency = max(c.Concurrency/2, 1)
		}
		rebase.Handle(w, task, h.handle, opts)
	}
	for i := range c.Schedules {
		w.Schedule(schedule(i))
	}
	return w.Run(ctx) // the pool ends with the process: handlers may have been left behind
}

// archive notes in the deleting transaction what is deleted.
func archive(ctx context.Context, tx pgx.Tx, jobs []*rebase.Job) error {
	ids := make([]int64, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	_, err := tx.Exec(ctx, "insert into torture.archived (job) select unnest($1::bigint[])", ids)
	return err
}

// schedule is the i-th of the code's schedules. All fire each minute, and all make up for
// what was missed, so every minute must have its job.
func schedule(i int) rebase.Schedule {
	return rebase.Schedule{
		ID: fmt.Sprintf("s%d", i), Cron: "* * * * *", Task: taskSlot, Payload: payload{Does: doesOK, For: 1},
		CatchUp: rebase.CatchUpAll(1000),
	}
}

// newPool opens a pool of at most n connections, which the server knows by the name.
func newPool(ctx context.Context, url, name string, n int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(n)
	config.ConnConfig.ConnectTimeout = 3 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = name
	return pgxpool.NewWithConfig(ctx, config)
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
