package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// The witness looks only at tables: those of the example, which the queue knows nothing
// of, and the queue's own.

type witness struct {
	pool   *pgxpool.Pool
	out    io.Writer
	began  time.Time
	victim string
	jobs   []int64
}

func (w *witness) say(format string, args ...any) {
	fmt.Fprintf(w.out, "%6.3f s  "+format+"\n", append([]any{time.Since(w.began).Seconds()}, args...)...)
}

// follow enqueues the jobs, kills the victim amid its own, and follows these to their end.
func (w *witness) follow(ctx context.Context, queue *rebase.Queue, victim, survivor *process) error {
	w.jobs = []int64{}
	for _, p := range []*process{victim, survivor} {
		if err := w.until(ctx, `select exists (select from rebase.workers where starts_with(id, $2)) or $1::bigint[] is null`, p.name); err != nil {
			return err
		}
	}
	w.say("two workers are ready: %s, %s", victim.name, survivor.name)
	if err := w.enqueue(ctx, queue); err != nil {
		return err
	}
	w.say("%d jobs are enqueued", len(w.jobs))
	if err := w.strike(ctx, victim); err != nil {
		return err
	}
	if err := w.until(ctx, `
		select not exists (select from rebase.jobs where id = any($1) and status = 'running' and starts_with(locked_by, $2))`, w.victim); err != nil {
		return err
	}
	w.say("their leases have ended, and the survivor has taken them back")
	if err := w.until(ctx, `
		select not exists (select from rebase.jobs where id = any($1) and finished_at is null and $2 <> '')`, w.victim); err != nil {
		return err
	}
	w.say("all jobs have ended")
	return w.account(ctx)
}

func (w *witness) enqueue(ctx context.Context, queue *rebase.Queue) error {
	var items []rebase.Item
	for i := range numJobs {
		items = append(items, Crunch.Item(i, nil))
	}
	done, err := queue.EnqueueMany(ctx, items)
	for _, d := range done {
		w.jobs = append(w.jobs, d.ID)
	}
	return err
}

// strike kills the victim when it has ended some jobs and is in the middle of others.
func (w *witness) strike(ctx context.Context, victim *process) error {
	err := w.until(ctx, `
		select not exists (select from rebase.jobs where id = any($1) and finished_at is null)
		or exists (select from rebase_crash.recorded where job_id = any($1) and worker = $2)
		and exists (select from rebase.jobs where id = any($1) and status = 'running' and starts_with(locked_by, $2)
			and started_at between clock_timestamp() - interval '150 ms' and clock_timestamp() - interval '50 ms')`, w.victim)
	if err != nil {
		return err
	}
	victim.kill()
	var left []int64
	err = w.pool.QueryRow(ctx, `
		select coalesce(array_agg(id order by id), '{}')
		from rebase.jobs
		where id = any($1) and status = 'running' and starts_with(locked_by, $2)`, w.jobs, w.victim).Scan(&left)
	if err != nil {
		return err
	}
	if len(left) == 0 {
		return errors.New("the victim had no job when it was killed: this machine was too busy to show anything, try again")
	}
	w.say("the victim got SIGKILL; its jobs %v are still marked as running", left)
	return nil
}

// until asks a question about the jobs ($1) and a worker ($2) until its answer is true.
func (w *witness) until(ctx context.Context, question, worker string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var yes bool
		if err := w.pool.QueryRow(ctx, question, w.jobs, worker).Scan(&yes); err != nil || yes {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// account compares the tables. It returns an error if a job is missing or there twice.
func (w *witness) account(ctx context.Context) error {
	var succeeded, twice, recorded, distinct int
	err := w.pool.QueryRow(ctx, `
		select
			(select count(*) from rebase.jobs where id = any($1) and status = 'succeeded'),
			(select count(*) from (select from rebase_crash.begun where job_id = any($1) group by job_id having count(*) > 1) x),
			(select count(*) from rebase_crash.recorded where job_id = any($1)),
			(select count(distinct job_id) from rebase_crash.recorded where job_id = any($1))`,
		w.jobs).Scan(&succeeded, &twice, &recorded, &distinct)
	if err != nil {
		return err
	}
	fmt.Fprintf(w.out, "\nenqueued %d, succeeded %d, begun more than once %d, recorded %d for %d different jobs\n",
		len(w.jobs), succeeded, twice, recorded, distinct)
	if succeeded != len(w.jobs) || recorded != len(w.jobs) || distinct != len(w.jobs) {
		return errors.New("the tables don't agree: something was lost or recorded twice")
	}
	fmt.Fprintln(w.out, "nothing was lost, and nothing was recorded twice")
	return nil
}
