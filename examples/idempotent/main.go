// Two ways to make a handler safe to run twice.
//
// A job may run more than once: its process can die after the handler's effect and before
// its result is recorded. What then?
//
// An effect outside the database (charge.go): give the other side something by which it
// knows the effect again. A job's id never changes, over retries and redrives, so it will
// do; ask by it before acting.
//
// An effect in the same database (credit.go): put the effect and the job's end into one
// transaction, with Job.CompleteTx. There is nothing to ask then: both are committed, or
// neither.
//
//	go run ./examples/idempotent
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "idempotent:", err)
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

func run(ctx context.Context, url string, out io.Writer, logger *slog.Logger) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue := rebase.New(pool, &rebase.Options{Logger: logger})
	if err := queue.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}

	worker := rebase.NewWorker(queue, &rebase.WorkerOptions{
		Name:    "idempotent",
		Backoff: func(int) time.Duration { return 100 * time.Millisecond },
	})
	say := log.New(out, "", 0).Printf // handlers run at once: a line is written whole
	bank := newBank()
	ChargeCard.Handle(worker, charger(bank, say), nil)
	AddCredit.Handle(worker, crediter(pool, say), nil)

	var account int64
	if err := pool.QueryRow(ctx, `insert into rebase_idempotent.accounts default values returning id`).Scan(&account); err != nil {
		return err
	}
	card, err := ChargeCard.Enqueue(ctx, queue, Charge{"4711", 1999}, nil)
	if err != nil {
		return err
	}
	credit, err := AddCredit.Enqueue(ctx, queue, Credit{account, 500}, nil)
	if err != nil {
		return err
	}
	// RunOnce ends when nothing is due; the backoff of a failed attempt is still to come.
	for open := 2; open > 0; {
		if _, err := worker.RunOnce(ctx); err != nil {
			return err
		}
		if open, err = unfinished(ctx, queue, card.ID, credit.ID); err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return tell(ctx, pool, bank, account, out)
}

// unfinished counts those of the jobs that have not ended.
func unfinished(ctx context.Context, queue *rebase.Queue, ids ...int64) (n int, err error) {
	for _, id := range ids {
		job, jobErr := queue.Job(ctx, id)
		if jobErr != nil {
			err = errors.Join(err, jobErr)
		} else if job.FinishedAt == nil {
			n++
		}
	}
	return n, err
}

// tell compares what was asked for with what was done.
func tell(ctx context.Context, pool *pgxpool.Pool, bank *bank, account int64, out io.Writer) error {
	var cents int64
	if err := pool.QueryRow(ctx, `select cents from rebase_idempotent.accounts where id = $1`, account).Scan(&cents); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe bank has %d charge of 19.99, and the account %d.%02d: each effect happened once.\n", bank.count(), cents/100, cents%100)
	return nil
}
