//go:build unix

// The checker holds the queue's tables against the record. It trusts the record: what a
// handler noted has happened. The queue's own story (status, fence, history) must explain
// all of it. This file loads both sides; rules.go has the promises.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// Expect is what a run may do beyond the rule that every job succeeds.
type Expect struct {
	// Fails are the jobs that must end as dead letters.
	Fails []int64
	// Once: no job may have been run twice.
	Once bool
	// Innocent: no attempt may have been used but by what handlers returned.
	Innocent bool
}

// A Report is what a run came to.
type Report struct {
	Seed       uint64
	Jobs       int // committed
	RolledBack int
	Runs       int // of handlers
	Kills      int
	Reaped     int           // entries "crashed" in the jobs' histories
	Reruns     int           // runs that were not the first of their job
	MaxRuns    int           // of one job
	Attempts   int           // most that a job used
	Still      time.Duration // longest time in which no run began
	Took       time.Duration
	Violations []string
}

func (r *Report) String() string {
	return fmt.Sprintf("seed %d: jobs %d, rolled back %d, runs %d, kills %d, reaped %d, reruns %d, most runs of a job %d, most attempts %d, longest standstill %.1f s, violations %d, %.1f s",
		r.Seed, r.Jobs, r.RolledBack, r.Runs, r.Kills, r.Reaped, r.Reruns, r.MaxRuns, r.Attempts, r.Still.Seconds(), len(r.Violations), r.Took.Seconds())
}

// Shown are the first violations, and how many more there are.
func (r *Report) Shown() []string {
	const most = 20
	if len(r.Violations) <= most {
		return r.Violations
	}
	return append(slices.Clone(r.Violations[:most]), fmt.Sprintf("and %d more", len(r.Violations)-most))
}

// A jobRow is a job as the queue tells it.
type jobRow struct {
	ID                    int64
	N                     int64
	Does                  string
	Status                string
	Fence                 int64
	Attempts, MaxAttempts int
	Runs                  int
	LastError             string
	History               []rebase.Attempt
}

// A runRow is one run of a handler as the record tells it.
type runRow struct {
	Job, Fence   int64
	Run, Attempt int
	N            int64
	Process      string
	Started      time.Time
	Ended        *time.Time
	Error, Cause *string
}

// entry is what the job's history says of a run; nil for nothing.
func (j *jobRow) entry(run int) *rebase.Attempt {
	for i := range j.History {
		if j.History[i].Run == run {
			return &j.History[i]
		}
	}
	return nil
}

// A checker is both sides in memory.
type checker struct {
	expect   Expect
	jobs     map[int64]*jobRow
	runs     map[int64][]*runRow // by job, in the order of the job's own count
	enqueued map[int64]string    // outcome by n
	made     map[int64]int64     // committed jobs: n by id
	effects  map[int64][]int64   // fences by job
	taken    map[string]time.Time
	claims   int
	report   *Report
}

// Check compares the tables with the record, when all is done.
func Check(ctx context.Context, pool *pgxpool.Pool, expect Expect) (*Report, error) {
	c := &checker{
		expect: expect, report: &Report{},
		jobs: map[int64]*jobRow{}, runs: map[int64][]*runRow{}, enqueued: map[int64]string{}, made: map[int64]int64{},
		effects: map[int64][]int64{}, taken: map[string]time.Time{},
	}
	// One snapshot: a straggler must not look like a contradiction.
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		for _, load := range []func(context.Context, pgx.Tx) error{c.loadJobs, c.loadRuns, c.loadEnqueued, c.loadRest} {
			if err := load(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	c.judge()
	return c.report, nil
}

func (c *checker) loadJobs(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
select id, (payload->>'n')::bigint, coalesce(payload->>'does', ''), status, fence, attempts, max_attempts, runs,
  coalesce(last_error, ''), coalesce(history, '[]')::text
from rebase.jobs`)
	if err != nil {
		return err
	}
	var j jobRow
	var history string
	into := []any{&j.ID, &j.N, &j.Does, &j.Status, &j.Fence, &j.Attempts, &j.MaxAttempts, &j.Runs, &j.LastError, &history}
	_, err = pgx.ForEachRow(rows, into, func() error {
		row := j
		c.jobs[j.ID] = &row
		return json.Unmarshal([]byte(history), &row.History)
	})
	return err
}

func (c *checker) loadRuns(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
select job, fence, run, attempt, n, process, started_at, ended_at, error, cause
from crash.runs
order by job, run, started_at`)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[runRow])
	for _, r := range all {
		c.runs[r.Job] = append(c.runs[r.Job], r)
	}
	return err
}

func (c *checker) loadEnqueued(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, "select n, coalesce(job, 0), outcome from crash.enqueued")
	if err != nil {
		return err
	}
	var n, job int64
	var outcome string
	_, err = pgx.ForEachRow(rows, []any{&n, &job, &outcome}, func() error {
		c.enqueued[n] = outcome
		if outcome == "committed" {
			c.made[job] = n
		}
		return nil
	})
	return err
}

// loadRest reads when which process was first taken from its jobs, the effects of
// CompleteTx, and what is left of the ledger.
func (c *checker) loadRest(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, "select process, min(at), count(*) filter (where signal = 'KILL') from crash.signals group by process")
	if err != nil {
		return err
	}
	var process string
	var at time.Time
	var kills int
	_, err = pgx.ForEachRow(rows, []any{&process, &at, &kills}, func() error {
		c.taken[process] = at
		c.report.Kills += kills
		return nil
	})
	if err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, "select job, fence from crash.effects"); err != nil {
		return err
	}
	var job, fence int64
	_, err = pgx.ForEachRow(rows, []any{&job, &fence}, func() error {
		c.effects[job] = append(c.effects[job], fence)
		return nil
	})
	if err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, "select count(*) from rebase.claims").Scan(&c.claims); err != nil {
		return err
	}
	return tx.QueryRow(ctx, `
select coalesce(max(gap), '0')
from (select started_at - lag(started_at) over (order by started_at) as gap from crash.runs) g`).Scan(&c.report.Still)
}

// wrong notes a broken promise.
func (c *checker) wrong(format string, args ...any) {
	c.report.Violations = append(c.report.Violations, fmt.Sprintf(format, args...))
}

// process is a worker's process: the name before the random part of its id.
func process(worker string) string {
	name, _, _ := strings.Cut(worker, "-")
	return name
}
