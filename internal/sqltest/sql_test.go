package sqltest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The same promises over *sql.Tx and over sqlx: J23.
func each(t *testing.T, f func(t *testing.T, pool *pgxpool.Pool, q *rebase.Queue, begin func() (tx rebase.SQLTx, commit, rollback func() error))) {
	for _, name := range []string{"database/sql", "sqlx"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			db := stdlib.OpenDBFromPool(pool)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			f(t, pool, rebase.New(pool, &rebase.Options{Logger: pgtest.Logger(t)}), func() (rebase.SQLTx, func() error, func() error) {
				if name == "sqlx" {
					tx, err := sqlx.NewDb(db, "pgx").BeginTxx(t.Context(), nil)
					require.NoError(t, err)
					return tx, tx.Commit, tx.Rollback
				}
				tx, err := db.BeginTx(t.Context(), nil)
				require.NoError(t, err)
				return tx, tx.Commit, tx.Rollback
			})
		})
	}
}

func count(t *testing.T, pool *pgxpool.Pool, where string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from rebase.jobs where "+where).Scan(&n))
	return n
}

func TestEnqueueSQLIsPartOfTheTransaction(t *testing.T) { // J2, J23
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, q *rebase.Queue, begin func() (rebase.SQLTx, func() error, func() error)) {
		tx, _, rollback := begin()
		_, err := q.EnqueueSQL(t.Context(), tx, "a", map[string]int{"n": 1}, nil)
		require.NoError(t, err)
		require.NoError(t, rollback())
		require.Zero(t, count(t, pool, "true"))

		tx, commit, _ := begin()
		made, err := q.EnqueueSQL(t.Context(), tx, "a", map[string]int{"n": 1}, &rebase.EnqueueOptions{Lane: "l", Meta: map[string]string{"k": "v"}, MaxAttempts: 7})
		require.NoError(t, err)
		require.NoError(t, commit())
		job, err := q.Job(t.Context(), made.ID)
		require.NoError(t, err)
		require.JSONEq(t, `{"n":1}`, string(job.Payload))
		require.Equal(t, "l", job.Lane)
		require.Equal(t, 7, job.MaxAttempts)
		require.Equal(t, map[string]string{"k": "v"}, job.Meta)
	})
}

func TestEnqueueSQLTellsDuplicates(t *testing.T) { // J4, J23
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, q *rebase.Queue, begin func() (rebase.SQLTx, func() error, func() error)) {
		tx, commit, _ := begin()
		opts := &rebase.EnqueueOptions{IdempotencyKey: "k"}
		one, err := q.EnqueueSQL(t.Context(), tx, "a", 1, opts)
		require.NoError(t, err)
		two, err := q.EnqueueSQL(t.Context(), tx, "a", 2, opts)
		require.NoError(t, err)
		require.NoError(t, commit())
		require.Equal(t, rebase.Enqueued{ID: one.ID, Duplicate: true}, two)
		require.Equal(t, 1, count(t, pool, "true"))
	})
}

func TestEnqueueSQLRefusesBeforeAnySQL(t *testing.T) { // J21, J23
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, q *rebase.Queue, begin func() (rebase.SQLTx, func() error, func() error)) {
		tx, commit, _ := begin()
		_, err := q.EnqueueSQL(t.Context(), tx, "a", "\x00", nil)
		_, ok := errors.AsType[*rebase.PayloadError](err)
		require.True(t, ok, "%v", err)
		_, err = q.EnqueueSQL(t.Context(), tx, "a", "fine", nil)
		require.NoError(t, err)
		require.NoError(t, commit())
		require.Equal(t, 1, count(t, pool, "true"))
	})
}

func TestCompleteSQLIsOneCommitWithTheEffect(t *testing.T) { // J16, J23
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, q *rebase.Queue, begin func() (rebase.SQLTx, func() error, func() error)) {
		_, err := pool.Exec(t.Context(), "create table effect (id bigint)")
		require.NoError(t, err)
		effect := func(ctx context.Context, tx rebase.SQLTx, id int64) error {
			rows, err := tx.QueryContext(ctx, "insert into effect values ($1) returning id", id)
			if err != nil {
				return err
			}
			return rows.Close()
		}
		w := rebase.NewWorker(q, nil)
		w.Register("commit", func(ctx context.Context, job *rebase.Job) error {
			tx, commit, _ := begin()
			if err := errors.Join(effect(ctx, tx, job.ID), job.CompleteSQL(ctx, tx)); err != nil {
				return err
			}
			return commit()
		}, nil)
		w.Register("rollback", func(ctx context.Context, job *rebase.Job) error {
			tx, _, rollback := begin()
			return errors.Join(effect(ctx, tx, job.ID), job.CompleteSQL(ctx, tx), rollback())
		}, nil)
		committed, err := q.Enqueue(t.Context(), "commit", nil, nil)
		require.NoError(t, err)
		rolledBack, err := q.Enqueue(t.Context(), "rollback", nil, &rebase.EnqueueOptions{MaxAttempts: 1})
		require.NoError(t, err)
		_, err = w.RunOnce(t.Context())
		require.NoError(t, err)

		job, err := q.Job(t.Context(), committed.ID)
		require.NoError(t, err)
		require.Equal(t, rebase.StatusSucceeded, job.Status)
		job, err = q.Job(t.Context(), rolledBack.ID)
		require.NoError(t, err)
		require.Equal(t, rebase.StatusFailed, job.Status)
		require.Contains(t, job.LastError, "the transaction of CompleteTx was not committed")
		var ids []int64
		require.NoError(t, pool.QueryRow(t.Context(), "select array_agg(id) from effect").Scan(&ids))
		require.Equal(t, []int64{committed.ID}, ids)
	})
}

// *sql.Tx has what SQLTx asks for.
var _ rebase.SQLTx = (*sql.Tx)(nil)
