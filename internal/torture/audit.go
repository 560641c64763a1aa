//go:build unix

// The audit is the history of every row of rebase.jobs, kept by a trigger that the
// harness makes, not by the library: each insert, update and delete leaves a line in
// torture.audit, in the transaction that made it. So it holds what was committed, and
// nothing else, whatever the queue's own history column says.
//
// The lines of one job are in order: its row's lock is held from the line until the commit.

package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// auditSchemaSQL: effects are what CompleteTx commits together with; archived is what
// retention says to have deleted.
const auditSchemaSQL = `
create schema torture;
create table torture.audit (
  seq          bigint generated always as identity,
  at           timestamptz not null default clock_timestamp(),
  xid          bigint not null default pg_current_xact_id()::text::bigint,
  op           text not null,
  id           bigint not null,
  status       text,
  fence        bigint,
  attempts     integer,
  runs         integer,
  crashes      integer,
  setbacks     integer,
  begun        boolean,
  worker       text,
  locked_until timestamptz,
  run_at       timestamptz,
  finished_at  timestamptz,
  error        text,
  -- Of an insert only.
  task         text,
  lane         text,
  key          text,
  max_attempts integer,
  n            bigint,
  does         text,
  slot         timestamptz
);
create table torture.effects (job bigint not null, fence bigint not null, child boolean not null, xid bigint not null default pg_current_xact_id()::text::bigint);
create table torture.archived (job bigint not null, xid bigint not null default pg_current_xact_id()::text::bigint);

create function torture.note() returns trigger
  language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    insert into torture.audit (op, id) values ('D', old.id);
    return null;
  end if;
  insert into torture.audit (op, id, status, fence, attempts, runs, crashes, setbacks, begun, worker, locked_until, run_at, finished_at, error)
  values ('U', new.id, new.status, new.fence, new.attempts, new.runs, new.crashes, new.setbacks, new.started_at is not null,
    new.locked_by, new.locked_until, new.run_at, new.finished_at, left(new.last_error, 120));
  return null;
end $$;

create function torture.note_insert() returns trigger
  language plpgsql as $$
begin
  insert into torture.audit (op, id, status, fence, attempts, runs, crashes, setbacks, begun, worker, locked_until, run_at, finished_at,
    task, lane, key, max_attempts, n, does, slot)
  values ('I', new.id, new.status, new.fence, new.attempts, new.runs, new.crashes, new.setbacks, new.started_at is not null,
    new.locked_by, new.locked_until, new.run_at, new.finished_at,
    new.task, new.lane, new.idempotency_key, new.max_attempts, (new.payload->>'n')::bigint, coalesce(new.payload->>'does', ''), new.slot);
  return null;
end $$;

create trigger torture_note after update or delete on rebase.jobs for each row execute function torture.note();
create trigger torture_insert after insert on rebase.jobs for each row execute function torture.note_insert()`

// prepare makes the queue's tables and the audit's in an empty database.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	if err := rebase.New(pool, nil).Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, auditSchemaSQL); err != nil {
		return fmt.Errorf("the audit's tables: %w", err)
	}
	return nil
}

// A state is a line of the audit: a job's row after one change. Times are µs, 0 for none.
type state struct {
	Seq, At, XID      int64
	Op                string // "I", "U" or "D"
	ID                int64
	Status            string
	Fence             int64
	Attempts, Runs    int
	Crashes, Setbacks int
	Begun             bool // started_at is set
	Worker            string
	LockedUntil       int64
	RunAt, FinishedAt int64
	Error             string
	Task, Lane, Key   string
	MaxAttempts       int
	N                 int64 // 0 for none
	Does              string
	Slot              int64
}

// finished says whether the job has ended.
func (s *state) finished() bool {
	return s.Status == "succeeded" || s.Status == "failed" || s.Status == "cancelled"
}

const loadAuditSQL = `
select seq, (extract(epoch from at) * 1000000)::bigint, xid, op, id, coalesce(status, ''), coalesce(fence, 0), coalesce(attempts, 0), coalesce(runs, 0),
  coalesce(crashes, 0), coalesce(setbacks, 0), coalesce(begun, false), coalesce(worker, ''),
  coalesce((extract(epoch from locked_until) * 1000000)::bigint, 0), coalesce((extract(epoch from run_at) * 1000000)::bigint, 0),
  coalesce((extract(epoch from finished_at) * 1000000)::bigint, 0), coalesce(error, ''), coalesce(task, ''), coalesce(lane, ''), coalesce(key, ''),
  coalesce(max_attempts, 0), coalesce(n, 0), coalesce(does, ''), coalesce((extract(epoch from slot) * 1000000)::bigint, 0)
from torture.audit
order by seq`

func loadAudit(ctx context.Context, tx pgx.Tx) ([]*state, error) {
	rows, err := tx.Query(ctx, loadAuditSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[state])
}
