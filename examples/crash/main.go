// A worker is killed in the middle of its jobs, and nothing is lost.
//
// This program starts itself twice more, as two workers with one queue. When both are at
// work, the first gets SIGKILL: it can say goodbye to nobody. Its claims end three seconds
// after its last renewal (VisibilityTimeout; the default is 5 minutes); then the other
// worker takes its jobs back and, after a backoff, runs them.
//
// The witness is a table of the example's own, without any unique index that could hide a
// second entry. Jobs were begun twice: that is what "at least once" means. Their effect
// is there once, because handler and queue commit it together (Job.CompleteTx).
//
//	go run ./examples/crash
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
)

const numJobs = 40

// begun is written when a handler begins, outside of any transaction of the job's;
// recorded with the job's end.
const schema = `
create schema if not exists rebase_crash;
create table if not exists rebase_crash.begun (job_id bigint not null, worker text not null);
create table if not exists rebase_crash.recorded (job_id bigint not null, worker text not null)`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begin := start
	if os.Getenv(nameVariable) != "" {
		begin = work
	}
	if err := begin(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	url, closeDB, err := exampledb.Open(ctx)
	if err != nil {
		return err
	}
	defer closeDB()
	return run(ctx, url, os.Stdout)
}

// run is the program of the one who enqueues, kills and counts.
func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue := rebase.New(pool, nil)
	if err := queue.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	victim, err := startWorker(ctx, "victim", url)
	if err != nil {
		return err
	}
	defer victim.kill()
	survivor, err := startWorker(ctx, "survivor", url)
	if err != nil {
		return err
	}
	defer survivor.kill()

	w := &witness{pool: pool, out: out, began: time.Now(), victim: victim.name}
	err = w.follow(ctx, queue, victim, survivor)
	return errors.Join(err, survivor.stop())
}
