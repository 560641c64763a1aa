package rebase_test

// N3 and Q40: PgBouncer in transaction mode, and pgx's ways of sending statements. A
// pooler gives each transaction another server connection, so LISTEN is silently useless
// and a session's settings or locks would stay behind for strangers. Everything else must
// work, and the worker says once that it polls.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// pooler starts a PgBouncer before the rig's database and returns its address. Its shell
// ends it when the pipe that it reads is closed, so also when this process is killed.
func (r *rig) pooler() string {
	r.t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil && (os.Getenv("CI") != "" || os.Getenv("REBASE_REQUIRE_PGBOUNCER") != "") {
		require.FailNow(r.t, "PgBouncer is missing: install the package pgbouncer", err.Error())
	}
	if err != nil {
		r.t.Skip("did not run: there is no pgbouncer on this machine")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	port := free.Addr().(*net.TCPAddr).Port
	require.NoError(r.t, free.Close())
	cc := r.pool.Config().ConnConfig
	password := ""
	if cc.Password != "" {
		password = " password=" + cc.Password
	}
	ini := filepath.Join(r.t.TempDir(), "pgbouncer.ini")
	require.NoError(r.t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
%s = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 100
`, cc.Database, cc.Host, cc.Port, cc.User, password, port), 0o644))
	script, args := `"$@" </dev/null & p=$!; read _; kill -9 $p`, []string{binary, "-q", ini}
	if os.Geteuid() == 0 {
		args = []string{binary, "-q", "-u", "postgres", ini} // it refuses to run as root
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Stdout, cmd.Stderr = r.t.Output(), r.t.Output()
	pipe, err := cmd.StdinPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = pipe.Close() // it is what ends the shell; Wait tells how
		_ = cmd.Wait()
	})
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", cc.User, port, cc.Database)
}

// through is a rig whose connections all go through the pooler.
func (r *rig) through(mode pgx.QueryExecMode) *rig {
	r.t.Helper()
	config, err := pgxpool.ParseConfig(r.pooler())
	require.NoError(r.t, err)
	config.ConnConfig.DefaultQueryExecMode = mode
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(r.t.Context(), config)
	require.NoError(r.t, err)
	r.t.Cleanup(pool.Close)
	far := newRigOn(r.t, pool)
	far.until(func() bool { return pool.Ping(r.t.Context()) == nil }, "the pooler is up")
	return far
}

// Q40: the modes that need no prepared statements, which this pooler doesn't know.
func TestQ40BehindATransactionPoolerAllButListenWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			near := newRig(t)
			r := near.through(mode)
			w := r.wholeWorker(&rebase.WorkerOptions{PollInterval: 100 * time.Millisecond})
			r.start(w)
			r.wholeWork()
			r.until(func() bool { return len(r.log.matching("LISTEN does not work")) > 0 }, "it says that it polls")
			r.wholeWork()
			require.Len(t, r.log.matching("WARN"), 1)
			require.Len(t, r.log.matching("WARN", "LISTEN does not work; polling", "transaction pooler"), 1)
			require.Len(t, r.log.matching("ERROR"), 6, "the dead letters")
			near.leavesNothing()
		})
	}
}

// leavesNothing requires that no server connection of the pooler's has kept anything of
// the sessions that used it.
func (r *rig) leavesNothing() {
	r.t.Helper()
	require.Zero(r.t, ask[int](r, `select count(*)::int from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database() and l.locktype = 'advisory'`))
}

// N3: with a direct address for LISTEN a worker behind the pooler is woken.
func TestN3ADirectAddressHearsBehindAPooler(t *testing.T) {
	t.Parallel()
	near := newRig(t)
	r := near.through(pgx.QueryExecModeExec)
	s := r.sleeper(&rebase.WorkerOptions{ListenURL: pgtest.URL(t, near.pool)}, "a")
	require.Equal(t, 1, near.locks())
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
	s.sleeps()
	s.starts(one(t)(near.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
	require.Empty(t, r.log.matching("WARN"))
}

// Q40: every way of pgx's, with a whole worker, straight to the server.
func TestQ40EveryExecModeServesAWholeWorker(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
			w := r.wholeWorker(nil)
			r.start(w)
			r.until(w.Asleep, "the worker is asleep")
			r.wholeWork()
			require.Empty(t, r.log.matching("WARN"))
			require.Len(t, r.log.matching("ERROR"), 3, "the dead letters")
		})
	}
}

// wholeWorker serves one task for each way that an attempt can end.
func (r *rig) wholeWorker(opts *rebase.WorkerOptions) *rebase.Worker {
	w := r.worker(opts)
	first := func(err error) rebase.Handler {
		return func(_ context.Context, job *rebase.Job) error {
			if job.Runs == 1 {
				return err
			}
			return nil
		}
	}
	for task, h := range map[string]rebase.Handler{
		"fine": first(nil), "retried": first(errors.New("boom")), "snoozed": first(rebase.Snooze(time.Millisecond)),
		"dead": first(rebase.Permanent(errBoom)), "cancelled": first(rebase.ErrCancelled),
		"completed": func(ctx context.Context, job *rebase.Job) error {
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
		},
	} {
		w.Register(task, h, nil)
	}
	return w
}

// wholeWork enqueues jobs of each kind in every way and waits until all have ended as
// they should.
func (r *rig) wholeWork() {
	r.t.Helper()
	ctx := r.t.Context()
	want := map[string]rebase.Status{
		"fine": rebase.StatusSucceeded, "retried": rebase.StatusSucceeded, "snoozed": rebase.StatusSucceeded,
		"dead": rebase.StatusFailed, "cancelled": rebase.StatusCancelled, "completed": rebase.StatusSucceeded,
	}
	ids := map[int64]rebase.Status{}
	for task, status := range want {
		options := &rebase.EnqueueOptions{IdempotencyKey: "k", Lane: "l", Meta: map[string]string{"m": "1"}}
		ids[one(r.t.(*testing.T))(r.q.Enqueue(ctx, task, map[string]int{"n": 1}, options))] = status
		require.NoError(r.t, pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			done, err := r.q.EnqueueManyTx(ctx, tx, []rebase.Item{
				{Task: task, Payload: "x", Options: &rebase.EnqueueOptions{Delay: time.Millisecond}},
				{Task: task, Payload: "y", Options: &rebase.EnqueueOptions{IdempotencyKey: "other"}},
			})
			for _, d := range done {
				ids[d.ID] = status
			}
			return err
		}))
	}
	for id, status := range ids {
		r.ends(id, status)
	}
}
