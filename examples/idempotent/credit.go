package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// An effect in the database, committed together with the job's end.

const schema = `
create schema if not exists rebase_idempotent;
create table if not exists rebase_idempotent.accounts (
  id bigint generated always as identity primary key,
  cents bigint not null default 0
)`

// Credit is what is to be added to an account.
type Credit struct {
	Account int64 `json:"account"`
	Cents   int64 `json:"cents"`
}

// AddCredit adds to a balance, which is anything but idempotent by itself.
const AddCredit rebase.Task[Credit] = "idempotent-credit"

var errFirstTry = errors.New("something after it failed")

func crediter(pool *pgxpool.Pool, say func(string, ...any)) func(context.Context, *rebase.Job, Credit) error {
	return func(ctx context.Context, job *rebase.Job, c Credit) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `update rebase_idempotent.accounts set cents = cents + $2 where id = $1`, c.Account, c.Cents)
			if err != nil {
				return err
			}
			if job.Attempts == 1 {
				return errFirstTry // rolls back
			}
			// Last, just before the commit: from here on the transaction holds the job's row.
			// ErrLeaseLost, if another worker has the job by now, rolls back as well.
			return job.CompleteTx(ctx, tx)
		})
		if err != nil {
			say("job %d, attempt %d: rolled back: %v", job.ID, job.Attempts, err)
			return err
		}
		// The job has ended with the commit. An error returned now, or a crash, is too late
		// to change that.
		say("job %d, attempt %d: credit and job committed, and then: an error that comes too late", job.ID, job.Attempts)
		return errors.New("too late")
	}
}
