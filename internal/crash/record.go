//go:build unix

// The record is what the checker believes instead of the queue: tables of their own,
// written over connections of their own, each row committed by itself. A handler notes
// that it has begun before it does anything, and that it is done before it returns, so
// what was really running at any time can be told from crash.runs by the server's clock.
// A note is sent again until the server has confirmed it: a record with gaps proves
// nothing.

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// recordSchemaSQL: signals are what was done to a process; "done" says when it was certain.
const recordSchemaSQL = `
create schema crash;
create table crash.runs (
  job        bigint,
  fence      bigint,
  run        integer not null,
  attempt    integer not null,
  n          bigint not null,
  process    text not null,
  started_at timestamptz not null default clock_timestamp(),
  ended_at   timestamptz,
  error      text,
  cause      text,
  primary key (job, fence)
);
create table crash.enqueued (
  n       bigint primary key,
  job     bigint,
  outcome text not null check (outcome in ('committed', 'rolled back', 'unknown'))
);
create table crash.effects (job bigint not null, fence bigint not null);
create table crash.signals (
  process text not null,
  signal  text not null,
  at      timestamptz not null default clock_timestamp()
)`

const (
	noteBeginSQL = `
insert into crash.runs (job, fence, run, attempt, n, process)
values ($1, $2, $3, $4, $5, $6)
on conflict do nothing`

	noteEndSQL = `
update crash.runs
set ended_at = clock_timestamp(), error = $3, cause = $4
where job = $1 and fence = $2 and ended_at is null`

	noteSignalSQL = `insert into crash.signals (process, signal) values ($1, $2)`

	noteEnqueuedSQL = `
insert into crash.enqueued (n, job, outcome)
select u.n, u.job, $3
from unnest($1::bigint[], $2::bigint[]) u (n, job)
on conflict do nothing`
)

// A record writes notes.
type record struct {
	pool    *pgxpool.Pool
	process string
}

// note sends a statement until it is confirmed. It doesn't end with any handler's
// context: what has happened has happened.
func (r *record) note(sql string, args ...any) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err := r.pool.Exec(ctx, sql, args...)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond) // the server is away; it will come back
	}
}

func (r *record) begin(job *rebase.Job, n int64) {
	r.note(noteBeginSQL, job.ID, job.Fence, job.Runs, job.Attempts, n, r.process)
}

func (r *record) end(ctx context.Context, job *rebase.Job, err error) {
	var text, cause *string
	if err != nil {
		text = new(err.Error())
	}
	if c := context.Cause(ctx); c != nil {
		cause = new(c.Error())
	}
	r.note(noteEndSQL, job.ID, job.Fence, text, cause)
}

// prepare makes the queue's tables and the record's in an empty database.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	if err := rebase.New(pool, nil).Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, recordSchemaSQL); err != nil {
		return fmt.Errorf("the record's tables: %w", err)
	}
	return nil
}
