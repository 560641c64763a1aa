//go:build unix

// Many worker processes drain a full table. The table is filled while its tasks are paused; when
// all workers are asleep one is resumed, so that all begin at one moment and neither their start
// nor the enqueuing is in the rate. It runs to the last result in the table, by the
// database's clock.

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A drained is what the draining of one task came to.
type drained struct {
	what                  string
	jobs                  int
	succeeded, once, runs int64         // of the jobs; runs is how often handlers ran
	workers               int           // that ran some
	began                 time.Time     // by the database's clock
	took                  time.Duration // from then to the last result
	machine, processes    string        // processors that were busy, in all and with the server, and with the workers
}

func (d *drained) String() string {
	return fmt.Sprintf("%d %s: %.0f jobs/s in %.2f s by %d workers, %d handlers ran, %d jobs with runs = 1, CPUs busy %s, the workers %s",
		d.jobs, d.what, float64(d.jobs)/d.took.Seconds(), d.took.Seconds(), d.workers, d.runs, d.once, d.machine, d.processes)
}

// check is an error unless every job succeeded and each handler ran once.
func (d *drained) check() error {
	if d.succeeded != int64(d.jobs) || d.runs != int64(d.jobs) {
		return fmt.Errorf("%d %s: %d succeeded, handlers ran %d times", d.jobs, d.what, d.succeeded, d.runs)
	}
	return nil
}

// A workersResult is what part workers came to.
type workersResult struct {
	processes, slots, connections int
	drains                        []*drained
	lost, released, expired       int64
}

func (r *workersResult) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "workers: %d processes × %d slots, %d server connections, leases lost %d, expired %d, given back unbegun %d",
		r.processes, r.slots, r.connections, r.lost, r.expired, r.released)
	for _, d := range r.drains {
		fmt.Fprintf(&s, "; %s", d)
	}
	return s.String()
}

func (r *workersResult) check() error {
	var all []error
	for _, d := range r.drains {
		all = append(all, d.check())
	}
	if r.lost > 0 || r.expired > 0 {
		all = append(all, fmt.Errorf("%d leases were lost, %d expired", r.lost, r.expired))
	}
	return errors.Join(all...)
}

func (b *bench) workers(ctx context.Context) (fmt.Stringer, error) { return b.workersRun(ctx) }

func (b *bench) workersRun(ctx context.Context) (*workersResult, error) {
	if err := b.fillPaused(ctx); err != nil {
		return nil, err
	}
	before, err := b.q.Stats(ctx)
	if err != nil {
		return nil, err
	}
	f, err := b.fleet(ctx, b.processes, workerConfig{Slots: b.slots, Handler: b.handler})
	if err != nil {
		return nil, err
	}
	defer f.close()
	r := &workersResult{processes: b.processes, slots: b.slots}
	if err := b.pool.QueryRow(ctx, connectionsSQL, workerName).Scan(&r.connections); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		task, what string
		jobs       int
	}{{taskNoop, "no-op jobs", b.jobs}, {taskTimed, fmt.Sprintf("jobs of %v", b.handler), b.timed}} {
		result, err := f.drain(ctx, d.task, d.what, d.jobs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.what, err)
		}
		r.drains = append(r.drains, result)
	}
	if _, err := f.end(ctx); err != nil {
		return nil, err
	}
	after, err := b.q.Stats(ctx) // the workers have written their counters at their end
	if err != nil {
		return nil, err
	}
	r.lost = after.Totals["lost"] - before.Totals["lost"]
	r.released = after.Totals["released"] - before.Totals["released"]
	r.expired = after.LeaseExpirations - before.LeaseExpirations
	return r, r.check()
}

// fillPaused empties the table and fills it, with both tasks paused. The statistics are
// those of the full table, as after a while of use.
func (b *bench) fillPaused(ctx context.Context) error {
	if err := b.execAll(ctx, "truncate rebase.jobs, rebase.claims"); err != nil {
		return err
	}
	for task, n := range map[string]int{taskNoop: b.jobs, taskTimed: b.timed} {
		if err := b.q.PauseTask(ctx, task); err != nil {
			return err
		}
		if err := b.fill(ctx, task, n); err != nil {
			return err
		}
	}
	return b.execAll(ctx, "vacuum analyze rebase.jobs", "checkpoint")
}

const (
	// connectionsSQL: the server connections of clients named $1; of all if that is empty.
	connectionsSQL = `
select count(*)
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
and application_name = coalesce(nullif($1, ''), application_name)`

	// drainedSQL relies on jobs_unfinished and jobs_reaped.
	drainedSQL = `
select not exists (select from rebase.jobs where finished_at is null and crashes = 0 and task = $1)
and not exists (select from rebase.jobs where finished_at is null and crashes <> 0 and task = $1)`

	// outcomeSQL: how the jobs of task $1 ended, and how long after $2 the last did.
	outcomeSQL = `
select count(*), count(*) filter (where status = 'succeeded' and attempts = 1), count(*) filter (where runs = 1), count(distinct locked_by),
  (extract(epoch from max(finished_at) - $2::timestamptz) * 1e9)::bigint
from rebase.jobs
where task = $1`
)

// drain resumes a task and waits until all its jobs have ended.
func (f *fleet) drain(ctx context.Context, task, what string, n int) (*drained, error) {
	b := f.bench
	if err := f.await(ctx, "all workers to be asleep", asleepSQL, len(f.procs)); err != nil {
		return nil, err
	}
	before, err := f.reports(ctx)
	if err != nil {
		return nil, err
	}
	d := &drained{what: what}
	if err := b.pool.QueryRow(ctx, "select clock_timestamp()").Scan(&d.began); err != nil {
		return nil, err
	}
	idle, err := b.used(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.q.ResumeTask(ctx, task); err != nil {
		return nil, err
	}
	if err := f.await(ctx, "the table to be empty", drainedSQL, task); err != nil {
		return nil, err
	}
	busy, err := b.used(ctx)
	if err != nil {
		return nil, err
	}
	d.machine = busy.since(idle)
	after, err := f.reports(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.pool.QueryRow(ctx, outcomeSQL, task, d.began).Scan(&d.jobs, &d.succeeded, &d.once, &d.workers, &d.took); err != nil {
		return nil, err
	}
	if d.jobs != n {
		return nil, fmt.Errorf("%d jobs were made, %d are in the table", n, d.jobs)
	}
	d.runs = total(after).Runs - total(before).Runs
	d.processes = processors(total(after).CPU-total(before).CPU, d.took)
	return d, nil
}
