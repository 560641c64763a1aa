// Schedules: a report each minute and a nightly job in a named zone, declared by two
// processes, and fired once a slot.
//
// This program starts itself twice more, as two workers of one service: the same code, so both
// declare the same schedules. A slot of the report is then made due, so that nobody has to wait
// for the minute: either worker may fire it, and one job comes of it. The nightly job is run now,
// by hand; the report is paused while three of its slots pass, and resumed.
//
// What is printed is read from the tables, and from a table of the example's own, without any
// unique index, in which each run of a handler leaves a row.
//
//	go run ./examples/cron
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

const schema = `
create schema if not exists rebase_cron;
create table if not exists rebase_cron.ran (job_id bigint not null, schedule text not null, worker text not null)`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begin := start
	if os.Getenv(nameVariable) != "" {
		begin = work
	}
	if err := begin(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cron:", err)
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

// run is the program of the one who looks on.
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
	names := newNames()
	var workers []*process
	for _, name := range []string{"first", "second"} {
		p, err := startWorker(ctx, name, url, names)
		if err != nil {
			return err
		}
		defer p.kill()
		workers = append(workers, p)
	}
	s := &story{pool: pool, queue: queue, out: out, began: time.Now(), names: names}
	err = s.tell(ctx, workers)
	for _, p := range workers {
		err = errors.Join(err, p.stop())
	}
	// What code declares comes back while that code runs; now it doesn't.
	return errors.Join(err, queue.DeleteSchedule(ctx, names.report), queue.DeleteSchedule(ctx, names.nightly))
}
