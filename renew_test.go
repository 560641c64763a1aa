package rebase_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// J10, J16: what a renewal must not wait for, beside the rows of jobs.

// A longRun is a job whose handler returns when the test ends, or its context does.
type longRun struct {
	r     *rig
	w     *rebase.Worker
	id    int64
	ended chan error
}

// runsLong starts a worker with one, which has begun when this returns.
func (r *rig) runsLong() *longRun {
	l := &longRun{r: r, w: r.worker(&shortLease), id: r.enqueue("long", nil), ended: make(chan error, 100)}
	begun, finish := make(chan struct{}, 100), make(chan struct{})
	l.w.Register("long", func(ctx context.Context, _ *rebase.Job) error {
		begun <- struct{}{}
		select {
		case <-finish:
			return nil
		case <-ctx.Done():
			l.ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}
	}, nil)
	r.start(l.w)
	r.t.Cleanup(func() { close(finish) })
	await(r.t, begun)
	return l
}

// keepsItsJob waits until the lease reaches so far beyond now that it has been renewed after
// the lease that is held now, by a handler that was never told to stop.
func (l *longRun) keepsItsJob() {
	l.r.t.Helper()
	now := ask[time.Time](l.r, "select clock_timestamp()")
	l.r.until(func() bool {
		return len(l.ended) > 0 || l.r.count("id = $1 and locked_until > $2::timestamptz + interval '7 s'", l.id, now) == 1
	}, "two leases have passed")
	select {
	case cause := <-l.ended:
		require.NoError(l.r.t, cause, "the handler was told to stop")
	default:
	}
	require.Equal(l.r.t, 1, l.r.job(l.id).Runs)
	require.Zero(l.r.t, ask[int](l.r, "select count(*)::int from rebase.claims where locked_until < clock_timestamp()"), "the ledger is renewed too")
}

// J10, J16: whatever a transaction that stays open holds of the worker's row, or of the whole
// table, the renewals of its jobs don't wait for it; the heartbeat goes on when it has ended.
func TestJ10ALockedRowOfTheWorkersStopsNoRenewal(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]string{
		"locked":  "select from rebase.workers for update",
		"updated": "update rebase.workers set host = 'x'",
		"deleted": "delete from rebase.workers",
		"table":   "lock table rebase.workers in access exclusive mode",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.runsLong()
			r.until(func() bool { return ask[int](r, "select count(*)::int from rebase.workers") == 1 }, "the first heartbeat")
			tx, err := r.pool.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = tx.Exec(t.Context(), lock)
			require.NoError(t, err)
			l.keepsItsJob()
			said := 0 // a row is passed over; of what can't be, one line tells
			if name == "table" {
				said = 1
			}
			require.Len(t, r.log.matching("WARN", "renewals go on"), said)
			require.NoError(t, tx.Commit(t.Context()))
			now := ask[time.Time](r, "select clock_timestamp()")
			r.until(func() bool {
				return ask[int](r, "select count(*)::int from rebase.workers where seen_at > $1::timestamptz", now) == 1
			}, "the next heartbeat")
		})
	}
}

// J10, N4: a commit with a NOTIFY that waits for a standby keeps all other NOTIFYs of the cluster
// waiting, and so the pings. Renewals go on, and heartbeats; the trust in one's renewals stays, also
// in a worker that has nothing to renew. It is told once, and pings go on when it is over.
func TestJ10ANotifyThatCannotCommitStopsNoRenewal(t *testing.T) {
	t.Parallel()
	r := unsynced(t)
	idle := newRigOn(t, r.pool)
	l := r.runsLong()
	w := idle.worker(&shortLease)
	w.Register("other", succeed, nil)
	idle.start(w)
	r.until(func() bool { return l.w.Listening() && w.Listening() && !w.Trusted().IsZero() }, "both hear notifications")

	release := r.holdNotifies()
	l.keepsItsJob()
	for _, r := range []*rig{r, idle} {
		r.until(func() bool { return len(r.log.matching("WARN", "renewals go on")) > 0 }, "it is said that pings don't go through")
	}
	require.True(t, !l.w.Trusted().IsZero() && !w.Trusted().IsZero(), "both may reap")
	now := ask[time.Time](r, "select clock_timestamp()")
	r.until(func() bool {
		return ask[int](r, "select count(*)::int from rebase.workers where seen_at > $1::timestamptz", now) == 2
	}, "both are seen to be alive")

	ctx, cancel := context.WithTimeout(t.Context(), soonEnough)
	defer cancel()
	ear := r.ear()
	release()
	for heard := map[string]bool{}; len(heard) < 2; { // two pings, one each or both of one worker
		n, err := ear.conn.WaitForNotification(ctx)
		require.NoError(t, err)
		if strings.HasPrefix(n.Payload, "p:") {
			heard[n.Payload] = true
		}
	}
	require.True(t, l.w.Listening() && w.Listening(), "both have gone on listening")
	for _, r := range []*rig{r, idle} {
		require.Empty(t, r.log.matching("ERROR rebase:"))
		require.Len(t, r.log.matching("WARN", "renewals go on"), 1)
	}
}

// N3: a worker that starts while nobody can NOTIFY polls; it hears soon after that is over, long
// before its next renewal would be due.
func TestN3AWorkerThatCannotPingAtItsStartHearsSoonAfter(t *testing.T) {
	t.Parallel()
	r := unsynced(t)
	release := r.holdNotifies()
	w := r.worker(nil) // which renews every 30 s
	w.Register("a", succeed, nil)
	r.start(w)
	r.until(func() bool { return len(r.log.matching("WARN", "renewals go on")) == 1 }, "the first ping was refused")
	require.False(t, w.Listening())
	r.ends(r.enqueue("a", nil), rebase.StatusSucceeded)
	release()
	freed := time.Now()
	r.until(w.Listening, "notifications arrive")
	require.Less(t, time.Since(freed), 20*time.Second)
	require.Empty(t, r.log.matching("ERROR rebase:"))
}

// N2: with nothing to renew, heartbeat and renewal are one round trip; with a job they are two.
func TestN2ARenewalOfNothingIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	var trips roundTrips
	pool := pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &trips })
	s := newStepper(t, pool, nil, "a")
	renews := func() int64 {
		require.NoError(t, s.Renew()) // a connection's first takes one more, to describe the statements
		before := trips.Load()
		require.NoError(t, s.Renew())
		return trips.Load() - before
	}
	require.EqualValues(t, 1, renews())
	enqueueMany(t, pool, "a", 1, nil)
	holds, err := s.Claim("a", 1, false, false)
	require.NoError(t, err)
	require.Len(t, holds, 1)
	require.EqualValues(t, 2, renews())
}

// roundTrips counts the batches that are sent.
type roundTrips struct{ atomic.Int64 }

func (r *roundTrips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	r.Add(1)
	return ctx
}
func (*roundTrips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*roundTrips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*roundTrips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*roundTrips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// unsynced is a rig on a server of its own, which has no standby: what commits there waits for one
// only if it asks to.
func unsynced(t *testing.T) *rig {
	t.Helper()
	server := pgtest.Server(t, pgserver.Config{Settings: map[string]string{"synchronous_standby_names": "nobody", "synchronous_commit": "local"}})
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	r := newRigOn(t, pool)
	require.NoError(t, r.q.Migrate(t.Context()))
	return r
}

// holdNotifies keeps everybody's NOTIFY waiting until the returned function is called: a commit
// has the lock of the whole cluster, and waits for a standby that there is not.
func (r *rig) holdNotifies() (release func()) {
	r.t.Helper()
	conn, err := pgx.ConnectConfig(r.t.Context(), r.pool.Config().ConnConfig)
	require.NoError(r.t, err)
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "set synchronous_commit = on; begin; create temp table held (); notify somebody_elses; commit")
		done <- err
	}()
	pid := conn.PgConn().PID()
	r.until(func() bool {
		return ask[int](r, "select count(*)::int from pg_stat_activity where pid = $1 and wait_event = 'SyncRep'", pid) == 1
	}, "the commit waits for its standby")
	release = sync.OnceFunc(func() {
		r.exec("select pg_cancel_backend($1)", pid) // the wait ends, the commit stands
		require.NoError(r.t, await(r.t, done))
		require.NoError(r.t, conn.Close(context.Background()))
	})
	r.t.Cleanup(release)
	return release
}

// J9: while somebody has the table of jobs for itself nobody can renew. A worker without jobs notices
// that, too, and gives the others time before it takes anything back.
func TestJ9AWorkerWithoutJobsNoticesThatNobodyCanRenew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&shortLease)
	w.Register("a", succeed, nil)
	r.start(w)
	trusts := func() bool { return !w.Trusted().IsZero() }
	r.until(trusts, "its renewals go through")
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "lock table rebase.jobs in access exclusive mode")
	require.NoError(t, err)
	r.until(func() bool { return !trusts() }, "it notices that they don't")
	freed := time.Now()
	require.NoError(t, tx.Commit(t.Context()))
	r.until(trusts, "they do again")
	require.True(t, w.Trusted().After(freed), "its time of trust begins anew, though not with the renewal that waited")
}

// J8: a job that was given back, the reply lost, is not told as a lost lease by the renewal that
// comes before the answer.
func TestJ8AReleaseWhoseReplyWasLostIsNoLostLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "x")
	r.enqueue("x", nil)
	_, err := s.Claim("x", 1, true, false)
	require.NoError(t, err)
	s.Release()
	require.NoError(t, s.RecordUnheard())
	require.Equal(t, 1, r.count("status = 'pending' and attempts = 0"))
	require.NoError(t, s.Renew())
	require.NoError(t, s.Record())
	require.Zero(t, s.Lost())
}
