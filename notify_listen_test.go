package rebase_test

// N3 and N4: the LISTEN connection. Which one it is, how it proves that it is of use, and
// what happens when it isn't, or no longer.

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// named is the pool's address with an application name.
func (r *rig) named(name string) string {
	u, err := url.Parse(r.pool.Config().ConnString())
	require.NoError(r.t, err)
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// holders are the application names of those who hold sleep locks here.
const holdersSQL = `select coalesce(string_agg(a.application_name, ','), '') from pg_stat_activity a
where a.datname = current_database() and a.pid in (select l.pid from pg_locks l where l.locktype = 'advisory' and l.classid = 7236 and l.mode = 'ShareLock')`

// N3: a Listen func, else a URL, else DATABASE_DIRECT_URL, else the pool's own address. A URL
// may have a pool's parameters, which aren't the server's.
func TestN3WhereToListen(t *testing.T) {
	r := newRig(t)
	dial := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, r.named("func")) }
	t.Setenv("DATABASE_DIRECT_URL", r.named("environment")+"&pool_min_conns=1")
	for want, opts := range map[string]*rebase.WorkerOptions{
		"func":        {Listen: dial, ListenURL: r.named("option")},
		"option":      {ListenURL: r.named("option") + "&pool_max_conns=4"},
		"environment": {},
	} {
		s := r.sleeper(opts, "a")
		require.Equal(t, want, ask[string](r, holdersSQL))
		require.NoError(t, s.stop())
		r.until(func() bool { return r.locks() == 0 }, "its connection is gone")
	}
}

// N3: a worker makes three connections, each as the pool would: through BeforeConnect,
// which may fetch a password, and AfterConnect, which may set a role. None is the pool's.
func TestN3ConnectionsAreMadeAsThePoolsAre(t *testing.T) {
	t.Parallel()
	var before, after atomic.Int32
	r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { before.Add(1); return nil }
		c.AfterConnect = func(context.Context, *pgx.Conn) error { after.Add(1); return nil }
	}))
	require.NoError(t, r.pool.Ping(t.Context()))
	held, err := r.pool.Acquire(t.Context()) // all that the pool has
	require.NoError(t, err)
	b, a := before.Load(), after.Load()
	s := r.sleeper(nil, "a")
	require.Equal(t, b+3, before.Load())
	require.Equal(t, a+3, after.Load())
	held.Release()
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
}

// N3: a pool that does something of its own with notifications keeps no worker from
// hearing them.
func TestN3APoolsOwnNotificationHandlerIsNotInTheWay(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	}))
	s := r.sleeper(nil, "a")
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
}

// N3: a connection of the user's that keeps them to itself is of no use, and no harm.
func TestN3AListenFuncThatKeepsNotificationsToItselfIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	config := r.pool.Config().ConnConfig
	config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	s := r.drowsy(&rebase.WorkerOptions{PollInterval: 100 * time.Millisecond, Listen: func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.ConnectConfig(ctx, config)
	}}, "a")
	r.until(func() bool { return len(r.log.matching("WARN", "LISTEN does not work")) == 1 }, "it is said")
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
}

// N4: the listener is never in a transaction.
func TestN4ASleeperIsInNoTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sleeper(&rebase.WorkerOptions{ListenURL: r.named("ear")}, "a")
	require.Equal(t, "idle", ask[string](r, `select state from pg_stat_activity where application_name = 'ear' and datname = current_database() and xact_start is null`))
}

// N3: a connection to another database hears nothing, as one through a transaction
// pooler. That is said once; the jobs are found by looking.
func TestN3AUselessListenIsNoticedAndSaidOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := pgtest.Empty(t)
	s := r.drowsy(&rebase.WorkerOptions{PollInterval: 100 * time.Millisecond, ListenURL: pgtest.URL(t, other)}, "a")
	r.until(func() bool { return len(r.log.matching("LISTEN does not work")) == 1 }, "it is said")
	require.Len(t, r.log.matching("WARN", "polling", "no notification arrives", "ListenURL"), 1)
	for range 3 {
		s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
	}
	require.Zero(t, r.locks(), "a worker that hears nothing makes nobody notify it")
	require.Len(t, r.log.matching("LISTEN does not work"), 1)
}

// N4: while the connection is refused the worker polls; each change is said once.
func TestN4ARefusedListenIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var refused atomic.Bool
	var tries atomic.Int32
	refused.Store(true)
	s := r.drowsy(&rebase.WorkerOptions{PollInterval: 100 * time.Millisecond, Listen: func(ctx context.Context) (*pgx.Conn, error) {
		if tries.Add(1); refused.Load() {
			return nil, errors.New("refused")
		}
		return pgx.Connect(ctx, r.named("ear"))
	}}, "a")
	r.until(func() bool { return len(r.log.matching("WARN", "LISTEN does not work", "refused")) == 1 }, "it is said")
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
	before := tries.Load()
	r.until(func() bool { return tries.Load() >= before+2 }, "it is tried again")
	refused.Store(false)
	s.sleeps()
	require.Len(t, r.log.matching("LISTEN does not work"), 1)
	require.Len(t, r.log.matching("LISTEN works again"), 1)
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
}

// Q36: a half-open connection, where packets vanish, is noticed by a ping that doesn't
// come back. Meanwhile the worker looks by itself, and when the network is back it hears.
// So also when renewals, which send the pings, are more frequent than the patience is long.
func TestQ36AHalfOpenListenIsNoticed(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{5 * time.Minute, 3 * time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			t.Parallel()
			halfOpen(t, lease)
		})
	}
}

func halfOpen(t *testing.T, lease time.Duration) {
	r := newRig(t)
	far, proxy := r.behind()
	s := r.sleeper(&rebase.WorkerOptions{VisibilityTimeout: lease, PollInterval: 100 * time.Millisecond, Listen: func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.ConnectConfig(ctx, far.pool.Config().ConnConfig)
	}}, "a")
	proxy.BlackHole(true)
	s.RenewNow() // the ping goes out by another connection
	since := time.Now()
	r.until(func() bool { return !s.Listening() }, "it is noticed")
	require.Less(t, time.Since(since), 15*time.Second+soon)
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
	proxy.BlackHole(false)
	s.sleeps()
	s.starts(one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil)))
	require.LessOrEqual(t, len(r.log.matching("LISTEN does not work")), 1)
}

// Q35: the connection is killed again and again; there is one at a time, and a job is
// never later than the poll.
func TestQ35AKilledListenComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	s := r.sleeper(&rebase.WorkerOptions{PollInterval: time.Second, Listen: func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.ConnectConfig(ctx, far.pool.Config().ConnConfig)
	}}, "a")
	q := r.elsewhere(rebase.Gated)
	const kills = 50
	for range kills {
		killed := ask[int](r, `select count(pg_terminate_backend(l.pid))::int from pg_locks l join pg_database d on d.oid = l.database
			where d.datname = current_database() and l.locktype = 'advisory' and l.classid = 7236 and l.mode = 'ShareLock'`)
		require.Equal(t, 1, killed)
		s.starts(one(t)(q.Enqueue(t.Context(), "a", nil, nil)))
		s.sleeps()
	}
	require.GreaterOrEqual(t, proxy.Accepted(), kills+1)
	r.until(func() bool { return proxy.Conns() == 1 }, "one connection is left")
	require.Empty(t, r.log.matching("WARN"), "it came back each time before that was worth a line")
}

// N3, N4: all workers of a database hear each other's pings. Those of others are no answer to one's
// own, nor do they put it in doubt: with two workers both keep their LISTEN connections.
func TestN4PingsOfOthersMeanNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	require.False(t, s.PingOpen())
	r.exec(`select pg_notify('rebase_jobs', 'p:0123456789abcdef')`)
	s.starts(one(t)(r.elsewhere(rebase.Always).Enqueue(t.Context(), "a", nil, nil))) // notifications come in order
	require.False(t, s.PingOpen(), "its last ping has been answered")
}

// N4: as long as other workers' pings come they prove enough, and a worker sends none of its own:
// each would be heard by all.
func TestN4PingsOfOthersAreProofEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	const other = "p:0123456789abcdef"
	conn, err := r.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), "listen rebase_jobs")
	require.NoError(t, err)
	pings := func() (n int) {
		seen := ask[time.Time](r, `select seen_at from rebase.workers`)
		s.RenewNow()
		r.until(func() bool { return ask[time.Time](r, `select seen_at from rebase.workers`).After(seen) }, "it has renewed")
		r.exec(`notify rebase_jobs, 'end'`) // notifications come in order
		for {
			got, err := conn.Conn().WaitForNotification(t.Context())
			require.NoError(t, err)
			switch {
			case got.Payload == "end":
				return n
			case strings.HasPrefix(got.Payload, "p:") && got.Payload != other:
				n++
			}
		}
	}
	require.Equal(t, 1, pings())
	r.until(func() bool { return !s.PingOpen() }, "that has been answered")
	r.exec(`select pg_notify('rebase_jobs', $1)`, other)
	s.starts(one(t)(r.elsewhere(rebase.Always).Enqueue(t.Context(), "a", nil, nil))) // notifications come in order
	s.sleeps()
	require.Equal(t, 0, pings())
}
