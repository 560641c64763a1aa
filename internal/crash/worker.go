//go:build unix

// A worker process: this program again, told by its environment to be one. It runs the
// library as a service would and nothing else; SIGTERM ends it as it would a service. It
// also ends when its standard input does, that is with the process that started it, so
// none survives a run that was interrupted.

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
const workerEnv = "REBASE_CRASH_WORKER"

// task is the one task of all jobs here.
const task = "crash"

// WorkerConfig is what a worker process is told.
type WorkerConfig struct {
	URL         string
	Name        string
	Concurrency int
	Visibility  time.Duration
	Shutdown    time.Duration // zero: the library's default
}

// Payload says what a job's handler is to do.
type Payload struct {
	N    int64         `json:"n"`              // the enqueuer's own number, never used twice
	For  time.Duration `json:"for"`            // how long it takes
	Does string        `json:"does,omitempty"` // one of the words below
}

const (
	doesFail     = "fail"     // fails at its first run
	doesPoison   = "poison"   // kills its process
	doesDeaf     = "deaf"     // ignores its context
	doesComplete = "complete" // has an effect and ends by CompleteTx, then waits before it commits
	doesQuery    = "query"    // waits in a query and returns its error as it is
)

func isWorker() bool { return os.Getenv(workerEnv) != "" }

// workerMain returns the exit code: 0 after a clean shutdown, 3 when jobs were left behind.
func workerMain() int {
	var c WorkerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &c); err != nil {
		fmt.Fprintln(os.Stderr, "crash: worker:", err)
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
	fmt.Fprintln(os.Stderr, "crash: worker:", err)
	if _, left := errors.AsType[*rebase.ShutdownError](err); left {
		return 3
	}
	return 1
}

func serve(ctx context.Context, c WorkerConfig) error {
	pool, err := newPool(context.WithoutCancel(ctx), c.URL, c.Name, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	notes, err := newPool(context.WithoutCancel(ctx), c.URL, c.Name, c.Concurrency+1)
	if err != nil {
		return err
	}
	h := &handlers{record: record{pool: notes, process: c.Name}}
	q := rebase.New(pool, &rebase.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	w := rebase.NewWorker(q, &rebase.WorkerOptions{
		Name: c.Name, Concurrency: c.Concurrency, VisibilityTimeout: c.Visibility, ShutdownTimeout: c.Shutdown,
	})
	rebase.Handle(w, task, h.handle, nil)
	return w.Run(ctx) // the notes' pool ends with the process: handlers may have been left behind
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

type handlers struct{ record record }

// handle puts the record round what the payload asks for.
func (h *handlers) handle(ctx context.Context, job *rebase.Job, p Payload) error {
	h.record.begin(job, p.N)
	err := h.do(ctx, job, p)
	h.record.end(ctx, job, err)
	return err
}

func (h *handlers) do(ctx context.Context, job *rebase.Job, p Payload) error {
	switch p.Does {
	case doesPoison:
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {} // the signal is on its way
	case doesDeaf:
		pause(context.WithoutCancel(ctx), p.For)
		return nil
	case doesComplete:
		return h.complete(ctx, job, p.For)
	case doesQuery:
		_, err := h.record.pool.Exec(ctx, "select pg_sleep($1)", p.For.Seconds())
		return err
	}
	if err := pause(ctx, p.For); err != nil {
		return err
	}
	if p.Does == doesFail && job.Runs == 1 {
		return errors.New("an ordinary failure")
	}
	return nil
}

// complete makes one row of crash.effects and the job's end one commit.
func (h *handlers) complete(ctx context.Context, job *rebase.Job, wait time.Duration) error {
	return pgx.BeginFunc(ctx, h.record.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into crash.effects (job, fence) values ($1, $2)", job.ID, job.Fence); err != nil {
			return err
		}
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err
		}
		return pause(ctx, wait)
	})
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
