package rebase_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/stretchr/testify/require"
)

// A worker on small pools, under hostile settings, and with its backends killed.

// Q38: pools of 1 and of 2, handlers that enqueue on them, all slots busy → no deadlock,
// and the leases are renewed.
func TestHandlersMayUseATinyPool(t *testing.T) {
	t.Parallel()
	for _, size := range []int32{1, 2} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) { c.MaxConns = size }))
			r.enqueueMany("x", 100, nil)
			w := r.worker(&rebase.WorkerOptions{Concurrency: 20, VisibilityTimeout: 3 * time.Second})
			w.Register("x", func(ctx context.Context, _ *rebase.Job) error {
				_, err := r.q.Enqueue(ctx, "y", nil, nil)
				return err
			}, nil)
			held := make(chan struct{})
			w.Register("hold", func(context.Context, *rebase.Job) error { <-held; return nil }, nil)
			w.Register("y", succeed, nil)
			id := r.enqueue("hold", nil)
			r.start(w)
			r.until(func() bool { return r.count("status = 'succeeded'") == 200 }, "all are done")
			conn, err := r.pool.Acquire(t.Context()) // and with none left
			require.NoError(t, err)
			first := r.lease(conn, id)
			for r.lease(conn, id).Equal(first) {
				require.NoError(t, t.Context().Err())
			}
			conn.Release()
			close(held)
			require.Equal(t, 1, r.ends(id, rebase.StatusSucceeded).Runs)
		})
	}
}

// lease waits a moment on the server and tells when the job's lease ends.
func (r *rig) lease(conn *pgxpool.Conn, id int64) (until time.Time) {
	err := conn.QueryRow(r.t.Context(), "select locked_until from rebase.jobs, pg_sleep(0.05) where id = $1", id).Scan(&until)
	require.NoError(r.t, err)
	return until
}

// Q39: a role with statement_timeout and idle_in_transaction_session_timeout of 1 s.
func TestAWorkerWorksUnderShortTimeoutsOfItsRole(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["statement_timeout"] = "1000"
		c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "1000"
	}))
	s := r.handle("x", nil, func(ctx context.Context, job *rebase.Job) error {
		select {
		case <-time.After(2500 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	id := r.enqueue("x", nil)
	require.Equal(t, 1, r.ends(id, rebase.StatusSucceeded).Runs)
	require.NoError(t, s.stop())
	require.Empty(t, r.log.matching("WARN"))
	require.Empty(t, r.log.matching("ERROR"))
}

// N5, J24: every backend is killed again and again: the worker goes on by itself, and
// each job is recorded once.
func TestAWorkerSurvivesThatItsBackendsAreKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, _ := r.behind()
	ids := r.enqueueMany("x", 3000, &rebase.EnqueueOptions{MaxAttempts: 1})
	far.handle("x", nil, succeed)
	kills := 0
	r.until(func() bool {
		if kills++; kills%20 == 0 && kills <= 200 {
			r.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and client_addr is not null")
		}
		return r.count("status = 'succeeded'") == len(ids)
	}, "all are done")
	require.Zero(t, r.count("attempts <> 1"))
}
