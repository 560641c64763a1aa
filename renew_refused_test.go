package rebase_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// J10, J24, guarantee 5: a row whose renewal the database refuses costs no other job its lease.

// refuseRenewal makes a trigger do something to renewals where the condition on old holds. It
// returns what ends that.
func (r *rig) refuseRenewal(where, does string) (over func()) {
	r.t.Helper()
	r.exec(`create function refuse_renewal() returns trigger language plpgsql as $$ begin ` + does + `; return new; end $$`)
	r.exec(`create trigger refuse_renewal before update on rebase.jobs for each row
		when (old.status = 'running' and new.status = 'running' and ` + where + `) execute function refuse_renewal()`)
	return func() { r.exec(`drop trigger refuse_renewal on rebase.jobs`) }
}

// holdLock keeps whoever wants the advisory lock 7 waiting.
func (r *rig) holdLock() (release func()) {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	require.NoError(r.t, err)
	_, err = tx.Exec(r.t.Context(), `select pg_advisory_xact_lock(7)`)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return func() { require.NoError(r.t, tx.Rollback(context.Background())) }
}

const (
	raises    = `raise exception 'refused by a trigger'`
	getsStuck = `perform pg_advisory_xact_lock(7)`
)

// A crowd is jobs of one worker that run until each is told to end.
type crowd struct {
	*rig
	w      *rebase.Worker
	ids    []int64
	finish map[int64]chan struct{}
	ended  chan error // why contexts ended
}

// runsCrowd starts a worker with n jobs, which have begun when this returns, and another that
// would take them.
func (r *rig) runsCrowd(n int) *crowd {
	r.t.Helper()
	opts := shortLease
	opts.Concurrency = n
	c := &crowd{rig: r, w: r.worker(&opts), ids: r.enqueueMany("long", n, nil), finish: map[int64]chan struct{}{}, ended: make(chan error, n)}
	for _, id := range c.ids {
		c.finish[id] = make(chan struct{})
	}
	over, begun := make(chan struct{}), make(chan struct{}, 10*n)
	c.w.Register("long", func(ctx context.Context, j *rebase.Job) error {
		begun <- struct{}{}
		select {
		case <-over:
		case <-c.finish[j.ID]:
		case <-ctx.Done():
			c.ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}
		return nil
	}, nil)
	r.start(c.w)
	r.t.Cleanup(func() { close(over) })
	for range n {
		await(r.t, begun)
	}
	newRigOn(r.t, r.pool).handle("other", &shortLease, succeed)
	return c
}

// keep waits until three leases have passed; all of the jobs still run, for the first time.
func (c *crowd) keep() {
	c.t.Helper()
	start := ask[time.Time](c.rig, "select clock_timestamp()")
	c.until(func() bool {
		return len(c.ended) > 0 || ask[bool](c.rig, "select clock_timestamp() > $1::timestamptz + interval '9 s'", start)
	}, "three leases have passed")
	c.allRun()
}

func (c *crowd) allRun() {
	c.t.Helper()
	select {
	case cause := <-c.ended:
		require.NoError(c.t, cause, "a handler was told to stop")
	default:
	}
	require.Equal(c.t, len(c.ids), c.count("status = 'running' and runs = 1"))
	require.Zero(c.t, ask[int](c.rig, "select count(*)::int from rebase.claims where locked_until < clock_timestamp()"), "the ledger is renewed")
}

// J10, J24: a trigger that raises for one row, or waits for what somebody holds, ends no lease: the
// others' rows are renewed, the ledger keeps the one. It is told once, by its id; the worker may go on
// reaping; and when nothing refuses it any more, it is renewed as well.
func TestJ10ARefusedRenewalEndsNoLease(t *testing.T) {
	t.Parallel()
	for name, does := range map[string]string{"raises": raises, "raises as if in an outage": raises + ` using errcode = '08001'`, "waits": getsStuck} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			release := r.holdLock()
			c := r.runsCrowd(7)
			over := r.refuseRenewal("old.id = 3", does)
			c.keep()
			bad := c.ids[2]
			require.Equal(t, 6, r.count("id <> $1 and locked_until > clock_timestamp()", bad), "the others' rows are renewed")
			require.Equal(t, 1, r.count("id = $1 and locked_until < clock_timestamp()", bad))
			require.Len(t, r.log.matching("WARN", "can't be renewed", "job_id=3"), 1)
			require.Len(t, r.log.matching("WARN rebase:"), 1)
			require.Empty(t, r.log.matching("ERROR rebase:"))
			require.False(t, c.w.Trusted().IsZero())
			release()
			over()
			r.until(func() bool { return r.count("id = $1 and locked_until > clock_timestamp()", bad) == 1 }, "it is renewed")
			c.allRun()
		})
	}
}

// J10, J12: where the ledger can't be extended either, because somebody has its row, the worker doesn't
// believe in the lease: the handler is told in time.
func TestJ10ALeaseThatNothingExtendsIsNotBelievedIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "a")
	r.enqueue("a", nil)
	holds, err := s.Claim("a", 1, false, false)
	require.NoError(t, err)
	until := holds[0].LeaseUntil()
	r.refuseRenewal("true", raises)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from rebase.claims for update`)
	require.NoError(t, err)
	for range 2 { // as one of the rows, and as the one that was refused alone
		require.NoError(t, s.Renew())
		require.NoError(t, s.RenewParts())
		require.Equal(t, until, holds[0].LeaseUntil())
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, s.Renew())
	require.Greater(t, holds[0].LeaseUntil(), until)
}

// J10, J24: when each renewal is refused, and each takes its time to be, the ledger keeps all jobs,
// and results have their turns.
func TestJ10WhenNoRowCanBeRenewedResultsGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.holdLock()
	c := r.runsCrowd(40)
	defer r.refuseRenewal("true", getsStuck)()
	c.keep()
	require.Equal(t, 40, r.count("locked_until < clock_timestamp()"))
	began := time.Now()
	for _, id := range c.ids {
		close(c.finish[id])
		r.ends(id, rebase.StatusSucceeded)
	}
	require.Less(t, time.Since(began), 25*time.Second, "none waited for all the others' renewals")
	require.Less(t, len(r.log.matching("WARN rebase:")), 2, "one line a minute")
}

// J10, J24: the cancellation of a job whose renewal is refused is heard with the next renewal of the
// others.
func TestJ10ACancellationIsHeardThoughTheRenewalIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "a")
	ids := r.enqueueMany("a", 2, nil)
	_, err := s.Claim("a", 2, false, false)
	require.NoError(t, err)
	r.refuseRenewal("old.id = 1", raises)
	require.NoError(t, s.Renew())
	require.NoError(t, s.RenewParts())
	require.NoError(t, s.Renew())
	require.Zero(t, s.Lost())
	require.NoError(t, r.q.Cancel(t.Context(), ids[0], "no longer wanted"))
	require.NoError(t, s.Renew())
	require.EqualValues(t, 1, s.Cancelled())
}

// J10: rows of the ledger that can't be extended keep no row of a job from it.
func TestJ10ALedgerThatRefusesStopsNoRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "a")
	r.enqueueMany("a", 3, nil)
	_, err := s.Claim("a", 3, false, false)
	require.NoError(t, err)
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	r.exec(`create trigger refuse before update on rebase.claims for each row execute function refuse()`)
	now := ask[time.Time](r, "select clock_timestamp()")
	require.ErrorContains(t, s.Renew(), "no")
	require.NoError(t, s.RenewParts())
	require.Equal(t, 3, r.count("locked_until > $1::timestamptz + interval '5 min'", now))
}

// J10, N2: one row that is refused takes a round for the ledger and two for each halving, and the
// renewals after it are one round and a question.
func TestJ10ARefusedRenewalIsFoundByHalving(t *testing.T) {
	t.Parallel()
	var trips roundTrips
	r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &trips }))
	s := newStepper(t, r.pool, nil, "a")
	r.enqueueMany("a", 64, nil)
	_, err := s.Claim("a", 64, false, false)
	require.NoError(t, err)
	require.NoError(t, s.Renew())
	r.refuseRenewal("old.id = 40", raises)
	now := ask[time.Time](r, "select clock_timestamp()")
	before := trips.Load()
	require.NoError(t, s.Renew())
	require.Equal(t, 1, ask[int](r, "select count(*)::int from rebase.claims where locked_until > $1::timestamptz + interval '5 min'", now),
		"the ledger comes first")
	require.NoError(t, s.RenewParts())
	// Each refusal costs the connection its descriptions, and so one trip more for what follows it.
	require.LessOrEqual(t, trips.Load()-before, int64(2*(3+1+2*6)))
	require.Equal(t, 63, r.count("locked_until > $1::timestamptz + interval '5 min'", now))
	require.NoError(t, s.Renew())
	before = trips.Load()
	require.NoError(t, s.Renew())
	require.EqualValues(t, 3, trips.Load()-before)
}
