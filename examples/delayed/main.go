// Delayed jobs: due in 1, 2 and 5 seconds, and how late each was.
//
// A worker that has nothing to do asks when the next job is due and sleeps exactly so
// long; enqueueing a job that is due earlier wakes it. All times are the database's: when
// a job is due and when it was claimed are read from one clock, so a host whose clock is
// wrong changes nothing.
//
//	go run ./examples/delayed
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
)

// Reminder is a payload that is the text itself.
const Reminder rebase.Task[string] = "delayed-reminder"

var delays = []time.Duration{5 * time.Second, time.Second, 2 * time.Second}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "delayed:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	url, closeDB, err := exampledb.Open(ctx)
	if err != nil {
		return err
	}
	defer closeDB()
	return run(ctx, url, os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
}

func run(ctx context.Context, url string, out io.Writer, log *slog.Logger) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue := rebase.New(pool, &rebase.Options{Logger: log})
	if err := queue.Migrate(ctx); err != nil {
		return err
	}

	// The handler only tells: what is printed is printed by one goroutine.
	ran := make(chan *rebase.Job)
	worker := rebase.NewWorker(queue, &rebase.WorkerOptions{Name: "delayed"})
	Reminder.Handle(worker, func(ctx context.Context, job *rebase.Job, text string) error {
		select {
		case ran <- job:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, nil)
	workerCtx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(workerCtx) }()

	err = remind(ctx, queue, ran, out)
	cancel()
	return errors.Join(err, <-ended)
}

// remind enqueues the jobs and waits until all of them have run.
func remind(ctx context.Context, queue *rebase.Queue, ran <-chan *rebase.Job, out io.Writer) error {
	wanted := map[int64]time.Duration{}
	for _, d := range delays {
		done, err := Reminder.Enqueue(ctx, queue, "in "+d.String(), &rebase.EnqueueOptions{Delay: d})
		if err != nil {
			return err
		}
		wanted[done.ID] = d
		fmt.Fprintf(out, "job %d is to run in %v\n", done.ID, d)
	}
	for len(wanted) > 0 {
		select {
		case job := <-ran:
			d, ours := wanted[job.ID]
			if !ours {
				continue // left over from a run that was interrupted
			}
			delete(wanted, job.ID)
			// UpdatedAt is the time of the last change of status: here, of the claim.
			late := job.UpdatedAt.Sub(job.RunAt)
			fmt.Fprintf(out, "job %d, due in %v: claimed %.1f ms after that\n", job.ID, d, float64(late.Microseconds())/1000)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
