package rebase_test

// What the tests of enqueueing, operating and migrating share: a queue on a database of
// the test's own, with plain SQL beside it. What a test claims about a job is read from
// the table by SQL, so that no function of the library vouches for itself.

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// patience is how long an event is waited for; only failing tests use it up.
const patience = 20 * time.Second

// A desk is where an operator sits.
type desk struct {
	t    *testing.T
	pool *pgxpool.Pool
	q    *rebase.Queue
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	return deskOn(t, pgtest.New(t), nil)
}

// deskOn sits at a pool that is there already. Nil options are quiet ones.
func deskOn(t *testing.T, pool *pgxpool.Pool, opts *rebase.Options) *desk {
	t.Helper()
	if opts == nil {
		opts = new(rebase.Options)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &desk{t: t, pool: pool, q: rebase.New(pool, opts)}
}

// tell returns the one value that a query has.
func tell[T any](d *desk, sql string, args ...any) (v T) {
	d.t.Helper()
	require.NoError(d.t, d.pool.QueryRow(d.t.Context(), sql, args...).Scan(&v), sql)
	return v
}

// list returns the values of a query's one column.
func list[T any](d *desk, sql string, args ...any) []T {
	d.t.Helper()
	rows, err := d.pool.Query(d.t.Context(), sql, args...)
	require.NoError(d.t, err, sql)
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(d.t, err, sql)
	return all
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	_, err := d.pool.Exec(d.t.Context(), sql, args...)
	require.NoError(d.t, err, sql)
}

// enqueue makes a job, or a duplicate.
func (d *desk) enqueue(task string, opts *rebase.EnqueueOptions) rebase.Enqueued {
	d.t.Helper()
	done, err := d.q.Enqueue(d.t.Context(), task, map[string]int{"n": 1}, opts)
	require.NoError(d.t, err)
	return done
}

// begin starts a transaction that ends with the test, if not before.
func (d *desk) begin(options pgx.TxOptions) pgx.Tx {
	d.t.Helper()
	tx, err := d.pool.BeginTx(d.t.Context(), options)
	require.NoError(d.t, err)
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = tx.Rollback(ctx) // an error says that it has ended
	})
	return tx
}

// claimed makes a pending job look claimed by a worker that is alive.
func (d *desk) claimed(id int64) {
	d.t.Helper()
	d.exec(`with c as (
		update rebase.jobs set status = 'running', fence = 1000 + id, attempts = attempts + 1, runs = runs + 1, locked_by = 'w',
			locked_until = now() + interval '1 hour', started_at = now()
		where id = $1 returning id, fence)
		insert into rebase.claims (token, locked_until, lease, worker, ids)
		select fence, now() + interval '1 hour', interval '1 hour', 'w', array[id] from c`, id)
}

// ended makes a job look ended, in the given state.
func (d *desk) ended(id int64, status rebase.Status) {
	d.t.Helper()
	d.exec(`update rebase.jobs set status = $2, dead = $2 = 'failed', fence = 0, attempts = 2, runs = 2, locked_by = 'w', locked_until = null, started_at = now(),
		finished_at = now(), last_error = 'because', history = '[{"attempt": 1, "run": 1, "outcome": "failed", "error": "because"}]' where id = $1`, id, status)
}

func (d *desk) status(id int64) rebase.Status {
	d.t.Helper()
	return tell[rebase.Status](d, `select status from rebase.jobs where id = $1`, id)
}

// jobs counts the rows of the table.
func (d *desk) jobs() int {
	d.t.Helper()
	return tell[int](d, `select count(*) from rebase.jobs`)
}

// waits blocks until so many sessions of this database wait for a lock.
func (d *desk) waits(n int) {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		return n == tell[int](d, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	}, patience, 5*time.Millisecond, "nobody waits for a lock")
}

// drain runs what is due with the handlers given by task, and returns the number of
// attempts.
func (d *desk) drain(handlers map[string]rebase.Handler) int {
	d.t.Helper()
	w := rebase.NewWorker(d.q, &rebase.WorkerOptions{Backoff: func(int) time.Duration { return time.Hour }})
	for task, h := range handlers {
		w.Register(task, h, nil)
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	n, err := w.RunOnce(ctx)
	require.NoError(d.t, err)
	require.NoError(d.t, ctx.Err(), "what is due was not done in time")
	return n
}
