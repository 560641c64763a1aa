package rebase

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// The same verbs for services on database/sql: they enqueue in *their* transaction, with
// the same statements, through one method that every wrapper of *sql.Tx has.

// SQLTx is what EnqueueSQL and CompleteSQL need of a transaction: *sql.Tx has it, and
// so have those of sqlx, bun and others.
type SQLTx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// EnqueueSQL is EnqueueTx for database/sql, through pgx's stdlib driver or another that
// takes $1 as a placeholder.
func (q *Queue) EnqueueSQL(ctx context.Context, tx SQLTx, task string, payload any, opts *EnqueueOptions) (Enqueued, error) {
	rows, err := q.encode([]Item{{task, payload, opts}})
	if err != nil {
		return Enqueued{}, err
	}
	r := &rows[0]
	done := Enqueued{}
	var asked *string
	query, args := r.insert(q.notify)
	found, err := querySQL(ctx, tx, query, args, &done.ID, &asked)
	if err == nil && !found {
		done.Duplicate = true
		_, err = querySQL(ctx, tx, findDuplicateSQL, []any{r.task, r.hash}, &done.ID)
	}
	if err != nil {
		return Enqueued{}, fmt.Errorf("rebase: enqueue: %w", withAdvice(err))
	}
	q.uncommitted(rows, []Enqueued{done})
	return done, nil
}

// findDuplicateSQL is findDuplicatesSQL for one job: database/sql knows no arrays.
const findDuplicateSQL = `
select id
from rebase.jobs
where task operator(pg_catalog.=) $1
and key_hash operator(pg_catalog.=) $2::pg_catalog.bytea
and finished_at is null and key_hash is not null
limit 1`

// CompleteSQL is CompleteTx for database/sql.
func (j *Job) CompleteSQL(ctx context.Context, tx SQLTx) error {
	took, err := j.completing()
	if err != nil {
		return err
	}
	var id int64
	found, err := querySQL(ctx, tx, completeTxSQL, []any{j.ID, j.Fence, took}, &id)
	return j.completed(ctx, err, err == nil && !found)
}

// querySQL reads at most one row, and reports whether there was one.
func querySQL(ctx context.Context, tx SQLTx, query string, args []any, dest ...any) (found bool, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	if found = rows.Next(); found {
		err = rows.Scan(dest...)
	}
	return found, errors.Join(err, rows.Err(), rows.Close())
}
