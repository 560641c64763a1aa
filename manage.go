package rebase

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What operators do to single jobs and to tasks: look, cancel, retry, delete, pause.
// See list.go for many at once. Each is one short transaction on the pool. It waits for a
// row lock for 200 ms, which is less than deadlock_timeout, so that nobody is a deadlock's victim
// for it, and five times: a busy worker may hold the row for a moment.

// lockTries is how often an operation is tried that met a lock.
const lockTries = 5

// round runs statements as one transaction on the pool, with the settings that make the
// session independent of the user's, except that the planner is free.
func (q *Queue) round(ctx context.Context, statements ...statement) error {
	for tries := 1; ; tries++ {
		if err := q.tryRound(ctx, statements); !isLockTimeout(err) || tries == lockTries {
			return err
		}
	}
}

func (q *Queue) tryRound(ctx context.Context, statements []statement) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // which closes it if it is in a transaction still
	b := roundBatch(operatorSettingsSQL, "60000", statements)
	if c := conn.Conn(); describes(c.Config().DefaultQueryExecMode) {
		return withAdvice(roundInSteps(ctx, c, b))
	}
	return withAdvice(conn.SendBatch(ctx, b).Close())
}

// jobSQL reads one row by its primary key.
const jobSQL = `select ` + jobColumns + ` from rebase.jobs j where j.id = $1`

// Job returns the job as it is now. It returns ErrNotFound if there is none.
func (q *Queue) Job(ctx context.Context, id int64) (*Job, error) {
	var job *Job
	err := q.round(ctx, statement{jobSQL, []any{id}, func(rows pgx.Rows) error {
		if rows.Next() {
			job = new(Job)
			if err := viewJob(rows, 0, job); err != nil {
				return err
			}
		}
		return rows.Err()
	}})
	if err != nil {
		return nil, fmt.Errorf("rebase: job %d: %w", id, err)
	}
	if job == nil {
		return nil, fmt.Errorf("rebase: job %d: %w", id, ErrNotFound)
	}
	return job, nil
}

// cancelSQL takes the job from whoever has it. It is a function of the schema, because
// it also runs in transactions of the caller's.
const cancelSQL = `select found, done from rebase.cancel($1, $2, $3::pg_catalog.int4)`

// Cancel ends a job that has not ended: a pending one at once; of a running one the row
// is cancelled at once, and its handler's context ends with ErrCancelled as soon as its
// worker hears of it, at the latest with its next renewal. What that handler still
// returns is dropped. reason, if not "", becomes the job's LastError.
//
// Cancelling a cancelled job is not an error. A job that has succeeded or failed gets a
// *StateError, an unknown one ErrNotFound. A Retry right after the Cancel of a running
// job may overlap with the handler that is about to stop.
func (q *Queue) Cancel(ctx context.Context, id int64, reason string) error {
	result := new(stateResult)
	err := q.round(ctx, statement{cancelSQL, []any{id, storable(reason, 4000), int32(q.notify)}, result.read})
	if err != nil {
		return fmt.Errorf("rebase: cancel: job %d: %w", id, err)
	}
	if err := result.check(id, "cancel"); err != nil {
		return err
	}
	q.eachEngine(func(e *engine) { e.cancelled(id) })
	return nil
}

// CancelTx is Cancel in the caller's transaction: when that commits the job is
// cancelled. It waits for a lock on the job's row as long as the transaction allows.
func (q *Queue) CancelTx(ctx context.Context, tx pgx.Tx, id int64, reason string) error {
	result := new(stateResult)
	rows, err := tx.Query(ctx, cancelSQL, id, storable(reason, 4000), int32(q.notify))
	if err == nil {
		err = result.read(rows)
	}
	if err != nil {
		return fmt.Errorf("rebase: cancel: job %d: %w", id, withAdvice(err))
	}
	return result.check(id, "cancel")
}

// A stateResult is what a statement found and whether it changed it.
type stateResult struct {
	status Status
	done   bool
}

func (r *stateResult) check(id int64, operation string) error {
	switch {
	case r.done, operation == "cancel" && r.status == StatusCancelled:
		return nil
	case r.status == "":
		return fmt.Errorf("rebase: %s: job %d: %w", operation, id, ErrNotFound)
	}
	return &StateError{ID: id, Status: r.status, Operation: operation}
}

func (r *stateResult) read(rows pgx.Rows) error {
	_, err := pgx.ForEachRow(rows, []any{&r.status, &r.done}, func() error { return nil })
	return err
}

// retrySQL begins anew: no attempt used, no crash remembered; runs and history stay. $3: only a
// dead letter. The lock may be had only after a change, of a version that the statement's snapshot
// doesn't know; so the update goes by id and not by ctid.
const retrySQL = `
with old as (
  select j.id, j.status, j.finished_at, j.dead
  from rebase.jobs j
  where j.id = $1::bigint
  for no key update
), w as (
  update rebase.jobs j
  set status = 'pending', dead = false, fence = 0, attempts = 0, crashes = 0, setbacks = 0, run_at = now(), finished_at = null,
    started_at = null, locked_until = null, updated_at = now()
  from old
  where j.id = old.id and old.finished_at is not null and (old.dead or not $3::boolean)
  returning j.id, j.task
)
select o.status, o.done
from (
  select old.status, w.id is not null as done, rebase.wake(w.task, case when w.id is null then 2 else $2::int end) as asked
  from old left join w on true
) o`

// Retry makes a finished job pending again, due at once: a dead letter after its cause was
// mended, or one that is to run once more. It keeps its id; its attempts start again at 0,
// Runs and History go on.
//
// It returns a *StateError if the job has not finished, a *KeyTakenError if a newer job
// has its idempotency key, and ErrNotFound if there is none.
func (q *Queue) Retry(ctx context.Context, id int64) error { return q.retry(ctx, id, false) }

func (q *Queue) retry(ctx context.Context, id int64, onlyDead bool) error {
	result := new(stateResult)
	err := q.round(ctx, statement{retrySQL, []any{id, int32(q.notify), onlyDead}, result.read})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "23505" {
		return q.keyTaken(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("rebase: retry: job %d: %w", id, err)
	}
	if err := result.check(id, "retry"); err != nil {
		return err
	}
	q.eachEngine(func(e *engine) { e.wake("") })
	return nil
}

// holderSQL relies on jobs_key.
const holderSQL = `
select k.id
from rebase.jobs j
join rebase.jobs k on k.task = j.task and k.key_hash = j.key_hash
where j.id = $1 and k.finished_at is null and k.key_hash is not null`

func (q *Queue) keyTaken(ctx context.Context, id int64) error {
	taken := new(KeyTakenError)
	err := q.round(ctx, statement{holderSQL, []any{id}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&taken.ID}, func() error { return nil })
		return err
	}})
	if err != nil {
		return fmt.Errorf("rebase: retry: job %d: its key is taken: %w", id, err)
	}
	return taken
}

const deleteSQL = `
with old as (
  select j.id, j.status, j.finished_at
  from rebase.jobs j
  where j.id = $1::bigint
  for update
), w as (
  delete from rebase.jobs j
  using old
  where j.id = old.id and old.status <> 'running'
  returning j.id
)
select old.status, w.id is not null
from old left join w on true`

// Delete removes a job that is not running. It returns a *StateError if it is running
// (cancel it first) and ErrNotFound if there is none.
func (q *Queue) Delete(ctx context.Context, id int64) error {
	result := new(stateResult)
	if err := q.round(ctx, statement{deleteSQL, []any{id}, result.read}); err != nil {
		return fmt.Errorf("rebase: delete: job %d: %w", id, err)
	}
	return result.check(id, "delete")
}

const (
	pauseSQL     = `insert into rebase.paused (task) values ($1) on conflict (task) do nothing`
	resumeSQL    = `delete from rebase.paused where task = $1`
	resumeAskSQL = `select rebase.wake($1::text, $2::int)`
)

// PauseTask stops the claiming of a task's jobs, in every process, until ResumeTask. Those
// that run already run on; enqueues go on. Pausing twice is pausing once.
func (q *Queue) PauseTask(ctx context.Context, task string) error {
	if reason := checkTask(task); reason != "" {
		return &PayloadError{Task: storable(task, 100), Field: "task", Reason: reason, call: "pause"}
	}
	if err := q.round(ctx, statement{sql: pauseSQL, args: []any{task}}); err != nil {
		return fmt.Errorf("rebase: pause task %q: %w", task, err)
	}
	return nil
}

// ResumeTask ends a pause; sleeping workers are woken.
func (q *Queue) ResumeTask(ctx context.Context, task string) error {
	if reason := checkTask(task); reason != "" {
		return &PayloadError{Task: storable(task, 100), Field: "task", Reason: reason, call: "resume"}
	}
	err := q.round(ctx, statement{sql: resumeSQL, args: []any{task}}, statement{sql: resumeAskSQL, args: []any{task, int32(q.notify)}})
	if err != nil {
		return fmt.Errorf("rebase: resume task %q: %w", task, err)
	}
	q.eachEngine(func(e *engine) { e.wake(task) })
	return nil
}
