package rebase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Many jobs at once: listing them page by page, and redriving dead letters. Which rows a
// filter can mean decides which index is walked; each walk goes on by key where the last
// page ended, so that a page costs the same wherever it is, and no connection is held
// between pages.

// A Filter selects jobs. Every zero field selects all.
type Filter struct {
	Status         Status
	Task           string
	Lane           string
	IdempotencyKey string
	// ErrorContains is a text in LastError, in the same case.
	ErrorContains string
	// Meta are entries that the job's Meta must have.
	Meta                          map[string]string
	CreatedAfter, CreatedBefore   time.Time
	FinishedAfter, FinishedBefore time.Time
	// Limit ends the listing after so many jobs; zero is no end.
	Limit int
}

// filterSQL is what all listings share. The planner sees the values, so a condition on
// nothing costs nothing.
const filterSQL = `
and ($1::text = '' or j.status = $1::text)
and ($2::text = '' or j.task = $2::text)
and ($3::text = '' or j.lane = $3::text)
and ($4::bytea is null or j.key_hash = $4::bytea)
and ($5::text = '' or position($5::text in j.last_error) > 0)
and ($6::jsonb is null or j.meta @> $6::jsonb)
and ($7::timestamptz is null or j.created_at >= $7::timestamptz)
and ($8::timestamptz is null or j.created_at < $8::timestamptz)
and ($9::timestamptz is null or j.finished_at >= $9::timestamptz)
and ($10::timestamptz is null or j.finished_at < $10::timestamptz)
`

// A walk is one index in its order. Each page begins behind the job $11 to $14: its time,
// id, task and lane.
type walk struct{ sql string }

var (
	// walkAll is by the primary key.
	walkAll = walk{`select ` + jobColumns + ` from rebase.jobs j where j.id > $12::bigint` + filterSQL + `
and ($11::timestamptz is null or true) and ($13::text is null or true) and ($14::text is null or true)
order by j.id limit $15`}

	// walkDead relies on jobs_dead.
	walkDead = walk{`select ` + jobColumns + ` from rebase.jobs j where j.dead and (j.finished_at, j.id) > ($11::timestamptz, $12::bigint)` + filterSQL + `
and ($13::text is null or true) and ($14::text is null or true)
order by j.finished_at, j.id limit $15`}

	// walkFinished relies on jobs_finished_at.
	walkFinished = walk{`select ` + jobColumns + ` from rebase.jobs j where j.finished_at is not null and not j.dead and (j.finished_at, j.id) > ($11::timestamptz, $12::bigint)` + filterSQL + `
and ($13::text is null or true) and ($14::text is null or true)
order by j.finished_at, j.id limit $15`}

	// walkUnfinished relies on jobs_unfinished, walkReaped on jobs_reaped.
	walkUnfinished = walk{`select ` + jobColumns + ` from rebase.jobs j where j.finished_at is null and j.crashes = 0
and (j.task, j.lane, j.run_at, j.id) > ($13::text collate "C", $14::text collate "C", $11::timestamptz, $12::bigint)` + filterSQL + `
order by j.task, j.lane, j.run_at, j.id limit $15`}
	walkReaped = walk{`select ` + jobColumns + ` from rebase.jobs j where j.finished_at is null and j.crashes <> 0
and (j.task, j.lane, j.run_at, j.id) > ($13::text collate "C", $14::text collate "C", $11::timestamptz, $12::bigint)` + filterSQL + `
order by j.task, j.lane, j.run_at, j.id limit $15`}
)

// walks are those that together meet every job the filter can mean.
func (f *Filter) walks() ([]walk, error) {
	switch f.Status {
	case "":
		if !f.FinishedAfter.IsZero() || !f.FinishedBefore.IsZero() {
			return []walk{walkFinished, walkDead}, nil
		}
		return []walk{walkAll}, nil
	case StatusFailed:
		return []walk{walkDead}, nil
	case StatusSucceeded, StatusCancelled:
		return []walk{walkFinished}, nil
	case StatusPending, StatusRunning:
		return []walk{walkUnfinished, walkReaped}, nil
	}
	return nil, fmt.Errorf("rebase: filter: unknown status %q", storable(string(f.Status), 40))
}

// args are the parameters $1 to $10.
func (f *Filter) args() ([]any, error) {
	for field, s := range map[string]string{"Task": f.Task, "Lane": f.Lane, "IdempotencyKey": f.IdempotencyKey, "ErrorContains": f.ErrorContains} {
		if reason := checkText(s, 1<<20); reason != "" {
			return nil, fmt.Errorf("rebase: filter: %s: %s", field, reason)
		}
	}
	meta, reason := encodeMeta(f.Meta)
	if reason != "" {
		return nil, fmt.Errorf("rebase: filter: Meta: %s", reason)
	}
	var hash []byte
	if f.IdempotencyKey != "" {
		hash = keyHash(f.IdempotencyKey)
	}
	from := f.FinishedAfter
	return []any{string(f.Status), f.Task, f.Lane, hash, f.ErrorContains, textOrNil(meta),
		timeOrNil(f.CreatedAfter), timeOrNil(f.CreatedBefore), timeOrNil(from), timeOrNil(f.FinishedBefore)}, nil
}

func textOrNil(raw json.RawMessage) *string {
	if raw == nil {
		return nil
	}
	return new(string(raw))
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

// listPage is how many jobs are read at a time.
const listPage = 200

// Jobs lists the jobs that the filter selects, page by page: those of a finished status in
// the order in which they ended (and dead letters after the others, if both are selected by
// their end), unfinished ones by task, lane and run time, all together by id. It goes on until the end, the filter's limit, or a break; an error
// ends it.
//
// It is no snapshot: a job that changes while it goes on may be missed or seen twice, and
// one that is made or ends meanwhile may be among them. A loop that itself brings about more
// of what it lists needs an end: CreatedBefore, FinishedBefore or Limit.
func (q *Queue) Jobs(ctx context.Context, f Filter) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		walks, err := f.walks()
		args, argsErr := f.args()
		if err = errors.Join(err, argsErr); err != nil {
			yield(nil, err)
			return
		}
		left := f.Limit
		for _, w := range walks {
			after := &Job{RunAt: lowest, FinishedAt: new(lowest)}
			for after != nil {
				size := listPage
				if f.Limit > 0 {
					size = min(size, left)
				}
				if size == 0 {
					return
				}
				page, err := q.page(ctx, w, args, after, size)
				if err != nil {
					yield(nil, fmt.Errorf("rebase: jobs: %w", err))
					return
				}
				for _, j := range page {
					if !yield(j, nil) {
						return
					}
				}
				left -= len(page)
				after = nil
				if len(page) == size {
					after = page[len(page)-1]
				}
			}
		}
	}
}

func (q *Queue) page(ctx context.Context, w walk, args []any, after *Job, size int) (page []*Job, err error) {
	at := after.RunAt
	if after.FinishedAt != nil {
		at = *after.FinishedAt
	}
	all := append(args[:len(args):len(args)], at, after.ID, after.Task, after.Lane, size)
	err = q.round(ctx, statement{w.sql, all, func(rows pgx.Rows) error {
		for rows.Next() {
			j := new(Job)
			if err := viewJob(rows, 0, j); err != nil {
				return err
			}
			page = append(page, j)
		}
		return rows.Err()
	}})
	return page, err
}

// redriveSQL makes the dead letters $1 pending again, those that are still dead. Relies on
// the primary key; by id, see retrySQL.
const redriveSQL = `
with u as materialized (
  select x.id
  from unnest($1::bigint[]) i (id)
  cross join lateral (
    select p.id
    from rebase.jobs p
    where p.id = i.id and p.dead
    for no key update skip locked
  ) x
), w as (
  update rebase.jobs j
  set status = 'pending', dead = false, fence = 0, attempts = 0, crashes = 0, setbacks = 0, run_at = now(), finished_at = null,
    started_at = null, locked_until = null, updated_at = now()
  from u
  where j.id = u.id
  returning j.task
), asked as materialized (
  select rebase.wake(t.task, $2::int) as answer
  from (select w.task from w group by w.task) t
)
select count(*), (select count(asked.answer) from asked) from w`

// clockSQL is the end of a redrive: what fails later is not part of it.
const clockSQL = `select clock_timestamp()`

// Redrive makes dead letters pending again, at most limit of those that the filter selects
// (zero or less: all), as Retry does with one, and returns how many. The filter's Status
// must be empty or "failed"; with another it returns an error. It takes what had failed when
// it began: one that fails again meanwhile stays dead. A job whose idempotency key was taken by a newer one is
// left where it is, and so is one whose row or key another transaction has locked. When an
// error ends it, what was done stays done.
func (q *Queue) Redrive(ctx context.Context, f Filter, limit int) (n int, err error) {
	if f.Status != "" && f.Status != StatusFailed {
		return 0, fmt.Errorf("rebase: redrive: only failed jobs can be redriven, not %s ones", storable(string(f.Status), 40))
	}
	f.Status = StatusFailed
	now, err := q.clock(ctx)
	if err != nil {
		return 0, fmt.Errorf("rebase: redrive: %w", err)
	}
	if f.FinishedBefore.IsZero() || f.FinishedBefore.After(now) {
		f.FinishedBefore = now // or it would meet again, later in its walk, what it made pending
	}
	var plain []int64
	flush := func() error {
		m, err := q.redrive(ctx, plain)
		n, plain = n+m, plain[:0]
		return err
	}
	for job, err := range q.Jobs(ctx, f) {
		if err != nil {
			return n, err
		}
		if limit > 0 && n+len(plain) >= limit {
			break
		}
		if job.IdempotencyKey == "" {
			if plain = append(plain, job.ID); len(plain) == listPage {
				if err := flush(); err != nil {
					return n, err
				}
			}
			continue
		}
		ok, err := q.redriveKeyed(ctx, job.ID)
		if err != nil {
			return n, err
		}
		if ok {
			n++
		}
	}
	return n, flush()
}

// clock reads the server's.
func (q *Queue) clock(ctx context.Context) (now time.Time, err error) {
	err = q.round(ctx, statement{clockSQL, nil, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&now}, func() error { return nil })
		return err
	}})
	return now, err
}

func (q *Queue) redrive(ctx context.Context, ids []int64) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	var asked int64
	err = q.round(ctx, statement{redriveSQL, []any{ids, int32(q.notify)}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&n, &asked}, func() error { return nil })
		return err
	}})
	if err != nil {
		return 0, fmt.Errorf("rebase: redrive: %w", err)
	}
	q.eachEngine(func(e *engine) { e.wake("") })
	return n, nil
}

// redriveKeyed goes one by one: another may have the key, also another of those redriven. Like
// the others it must be dead still: it may have been retried since it was listed, and succeeded.
func (q *Queue) redriveKeyed(ctx context.Context, id int64) (bool, error) {
	err := q.retry(ctx, id, true)
	if err == nil {
		return true, nil
	}
	_, taken := errors.AsType[*KeyTakenError](err)
	_, state := errors.AsType[*StateError](err)
	pgErr, _ := errors.AsType[*pgconn.PgError](err)
	locked := pgErr != nil && (pgErr.Code == "55P03" || pgErr.Code == "40P01") // lock_not_available, deadlock_detected
	if taken || state || locked || errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return false, err
}
