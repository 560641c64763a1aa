package rebase

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Completion in the handler's own transaction: the job's end and its effect are one
// commit. The update matches id and fence, so an attempt that has lost its claim gets
// ErrLeaseLost and can roll its effect back. What the handler returns afterwards only
// matters if the transaction was not committed; the row tells, by its fence.

// completeTxSQL runs in the caller's transaction, whose start may be long ago: hence
// statement_timestamp(), and names with their schema.
const completeTxSQL = `
update rebase.jobs
set status = 'succeeded',
  fence = pg_catalog.int8um(fence),
  finished_at = pg_catalog.statement_timestamp(),
  updated_at = pg_catalog.statement_timestamp(),
  started_at = coalesce(started_at, pg_catalog.timestamptz_mi_interval(pg_catalog.statement_timestamp(), $3::pg_catalog.interval)),
  locked_until = null,
  crashes = 0,
  setbacks = 0,
  history = case
    when history is null then null
    else pg_catalog.jsonb_concat(
      case when pg_catalog.jsonb_array_length(history) operator(pg_catalog.>=) 20 then history operator(pg_catalog.-) 0 else history end,
      pg_catalog.jsonb_build_object('attempt', attempts, 'run', runs,
        'started_at', coalesce(started_at, pg_catalog.timestamptz_mi_interval(pg_catalog.statement_timestamp(), $3::pg_catalog.interval)),
        'ended_at', pg_catalog.statement_timestamp(), 'worker', locked_by, 'outcome', 'succeeded', 'error', ''))
  end
where id operator(pg_catalog.=) $1 and fence operator(pg_catalog.=) $2
returning id`

// CompleteTx ends the job as succeeded in the handler's own transaction, so that its
// effect in the database happens exactly once. Call it last, just before the commit: from
// then on the transaction holds the job's row.
//
// Committed, the job has succeeded whatever the handler returns. If the transaction is
// not committed, an error of the handler is an ordinary failure, and nil is the failure
// "the transaction of CompleteTx was not committed". Return soon after a rollback: as the
// transaction may be open and hold the row, the handler's context is not ended any more when the
// database is out of reach for longer than the lease.
//
// The transaction is to be READ COMMITTED, PostgreSQL's default. In a stricter one that began
// before the job's lease was last renewed it fails with SQLSTATE 40001: renewals write the row.
//
// It returns ErrLeaseLost if the attempt no longer holds the job: roll back then.
func (j *Job) CompleteTx(ctx context.Context, tx pgx.Tx) error {
	took, err := j.completing()
	if err != nil {
		return err
	}
	var id int64
	err = tx.QueryRow(ctx, completeTxSQL, j.ID, j.Fence, took).Scan(&id)
	return j.completed(ctx, err, errors.Is(err, pgx.ErrNoRows))
}

// completing marks the attempt before the statement is sent: if its reply is lost, the
// row must be asked. It returns how long the attempt has run: the row of a job that was
// claimed ahead may not know.
func (j *Job) completing() (took string, err error) {
	a := j.attempt
	if a == nil {
		return "", errors.New("rebase: CompleteTx: the job was not given to a handler by a worker")
	}
	a.engine.mu.Lock()
	defer a.engine.mu.Unlock()
	if a.abandoned || a.state != stateRunning {
		return "", ErrLeaseLost
	}
	a.completing = true
	return interval(time.Since(a.began)), nil
}

func (j *Job) completed(ctx context.Context, err error, lost bool) error {
	if lost { // or it was completed in this transaction before, which may be rolled back: the row tells
		return ErrLeaseLost
	}
	if err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost) {
		return fmt.Errorf("rebase: CompleteTx: %w: %w", ErrLeaseLost, err) // that is why ctx has ended
	}
	if err != nil {
		return fmt.Errorf("rebase: CompleteTx: %w", err)
	}
	return nil
}
