package rebase_test

// M1: how the queue is doing. Each field is compared with a state made by SQL; what makes
// a queue sick from outside is made for real: a held snapshot, a transaction that idles, a
// lock that somebody waits for.

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

func (d *desk) stats() *rebase.Stats {
	d.t.Helper()
	s, err := d.q.Stats(d.t.Context())
	require.NoError(d.t, err)
	return s
}

// M1: the counts of a task.
func TestM1StatsCountsTheLiveJobsOfEachTask(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, run_at, attempts, crashes, status, dead, fence, started_at, finished_at) values
		('a', now() - interval '1 min', 0, 0, 'pending', false, 0, null, null),
		('a', now() - interval '2 min', 2, 0, 'pending', false, 0, null, null),
		('a', now() - interval '3 min', 1, 1, 'pending', false, 0, null, null),
		('a', now() + interval '1 min', 0, 0, 'pending', false, 0, null, null),
		('a', now() + interval '1 min', 1, 0, 'pending', false, 0, null, null),
		('a', now() - interval '9 min', 1, 0, 'running', false, 1, now(), null),
		('a', now() - interval '9 min', 1, 0, 'running', false, 2, null, null),
		('a', now(), 3, 0, 'failed', true, 0, now(), now()),
		('a', now(), 1, 0, 'succeeded', false, 0, now(), now()),
		('b', now() - interval '1 min', 0, 0, 'pending', false, 0, null, null),
		('c', now() - interval '1 min', 1, 2, 'pending', false, 0, null, null),
		('d', now(), 3, 0, 'failed', true, 0, now(), now()),
		('e', now(), 1, 0, 'cancelled', false, 0, now(), now())`)
	d.exec(`insert into rebase.workers (id, host, tasks, concurrency, lease, limits, seen_at) values
		('w1', 'h', '{a,b}', 5, '5 min', '{"a": {"slots": 2}}', now()),
		('w2', 'h', '{a}', 3, '5 min', '{"a": {"slots": 9}}', now() - interval '89 s'),
		('short', 'h', '{b}', 3, '9 s', '{}', now() - interval '10 s'),
		('dead', 'h', '{b,c}', 3, '5 min', '{}', now() - interval '91 s')`)
	require.NoError(t, d.q.PauseTask(t.Context(), "b"))
	s := d.stats()
	require.Len(t, s.Tasks, 4, "a task with nothing but successes and cancellations has nothing to tell")
	a := s.Tasks[0]
	require.InDelta(t, 3*time.Minute, a.OldestReady, float64(30*time.Second), "of pending ones, reaped ones too")
	a.OldestReady = 0
	require.Equal(t, rebase.TaskStats{Task: "a", Ready: 3, Scheduled: 2, Running: 1, ClaimedAhead: 1, Retrying: 3,
		Attempts: map[int]int{0: 2, 1: 4, 2: 1}, DeadLetters: 1, Workers: 2, Slots: 5}, a)
	require.Equal(t, []any{"b", 1, true, 1, 5}, []any{s.Tasks[1].Task, s.Tasks[1].Ready, s.Tasks[1].Paused, s.Tasks[1].Workers, s.Tasks[1].Slots})
	require.Equal(t, []any{"c", 1, 0, 0}, []any{s.Tasks[2].Task, s.Tasks[2].Ready, s.Tasks[2].Workers, s.Tasks[2].Slots})
	require.Equal(t, []any{"d", 0, 1}, []any{s.Tasks[3].Task, s.Tasks[3].Ready, s.Tasks[3].DeadLetters})
	require.Equal(t, 2, s.DeadLetters)
	require.Equal(t, []string{"c"}, s.Unserved())
	require.Len(t, s.Workers, 2)
	require.WithinDuration(t, tell[time.Time](d, `select now()`), s.At, 30*time.Second)
}

// M1: counters of live workers and of those that are gone, and what is of this moment only.
func TestM1StatsAddsUpCountersThatOutliveWorkers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.workers (id, host, tasks, concurrency, lease, counters) values
		('w1', 'h1', '{a}', 5, '5 min', '{"succeeded": 3, "abandoned": 2}'),
		('w2', 'h2', '{a}', 5, '5 min', '{"succeeded": 4, "failed": 1, "abandoned": 1}')`)
	d.exec(`insert into rebase.counters (hour, name, value) values
		(date_trunc('hour', now(), 'UTC') - interval '5 hours', 'succeeded', 100),
		(date_trunc('hour', now(), 'UTC') - interval '5 hours', 'lease_expired', 50),
		(date_trunc('hour', now(), 'UTC') - interval '1 hour', 'lease_expired', 5),
		(date_trunc('hour', now(), 'UTC'), 'lease_expired', 2)`)
	d.exec(`insert into rebase.schedules (id, task, cron, zone, missed) values ('s1', 'a', '* * * * *', 'UTC', 3), ('s2', 'a', '* * * * *', 'UTC', 4)`)
	s := d.stats()
	require.Equal(t, map[string]int64{"succeeded": 107, "failed": 1, "lease_expired": 57}, s.Totals)
	require.EqualValues(t, 7, s.LeaseExpirations, "of this hour and the one before")
	require.EqualValues(t, 7, s.MissedSlots)
	require.Equal(t, 3, s.AbandonedHandlers)
	require.Equal(t, []string{"h1", "h2"}, []string{s.Workers[0].Host, s.Workers[1].Host})
	require.Equal(t, []string{"a"}, s.Workers[0].Tasks)
	require.EqualValues(t, 3, s.Workers[0].Counters["succeeded"])
	require.Less(t, s.NotificationQueue, 1.0)
	require.Nil(t, newDesk(t).stats().Tasks, "an empty queue")
}

// M1: a worker that died counts as before, until it is forgotten and after: rates are taken from
// the totals, which must not fall.
func TestM1StatsTotalsDoNotFallWhenAWorkerDies(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.counters (hour, name, value) values (date_trunc('hour', now(), 'UTC'), 'succeeded', 100)`)
	d.exec(`insert into rebase.workers (id, host, tasks, concurrency, lease, counters) values
		('w1', 'h1', '{a}', 5, '5 min', '{"succeeded": 3, "abandoned": 2}'),
		('w2', 'h2', '{a}', 5, '5 min', '{"succeeded": 4, "abandoned": 1}')`)
	for _, silence := range []string{"0 s", "91 s", "2 hours"} {
		d.exec(`update rebase.workers set seen_at = now() - $1::interval where id = 'w2'`, silence)
		require.Equal(t, map[string]int64{"succeeded": 107}, d.stats().Totals, "w2 has been silent for %s", silence)
	}
	require.Equal(t, 2, d.stats().AbandonedHandlers, "those of the dead one ended with it")
}

// M1: a lease that has really expired is counted, once its job was taken back.
func TestM1StatsKnowsExpiredLeases(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.enqueue("t", nil).ID
	d.claimed(id)
	d.exec(`update rebase.jobs set locked_until = now() - interval '1 s'`)
	d.exec(`update rebase.claims set locked_until = now() - interval '1 s', lease = '1 s'`)
	d.drain(map[string]rebase.Handler{"other": succeed})
	require.EqualValues(t, 1, d.stats().LeaseExpirations)
}

// M1: more jobs than are counted, by a task's share of the cap. The oldest ready one is known all the same, also when the
// lanes before its own hold nothing that is due.
func TestM1StatsBeyondTheCapStillKnowsTheOldestReadyJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const share = rebase.StatsCap / 3 // three tasks share it
	d.exec(`insert into rebase.jobs (task, lane, run_at) select 't', 'a', now() + interval '1 day' from generate_series(1, $1::int + 5)`, share)
	d.exec(`insert into rebase.jobs (task, lane, run_at) values ('t', 'z', now() - interval '1 hour'), ('t', 'y', now() - interval '1 min')`)
	d.exec(`insert into rebase.jobs (task, crashes, run_at) select 'u', i % 2, now() + interval '1 day' from generate_series(1, $1::int) i`, share)
	d.exec(`insert into rebase.jobs (task, crashes, run_at) select 'v', i % 2, now() + interval '1 day' from generate_series(1, $1::int + 100) i`, share)
	s := d.stats()
	require.Len(t, s.Tasks, 3)
	require.True(t, s.Tasks[2].Capped)
	require.Equal(t, share+1, s.Tasks[2].Scheduled)
	require.True(t, s.Tasks[0].Capped)
	require.GreaterOrEqual(t, s.Tasks[0].Scheduled+s.Tasks[0].Ready, share)
	require.InDelta(t, time.Hour, s.Tasks[0].OldestReady, float64(time.Minute))
	require.Equal(t, []string{"t"}, s.Unserved())
	require.False(t, s.Tasks[1].Capped, "exactly as many as are counted, reaped ones among them")
	require.Equal(t, share, s.Tasks[1].Scheduled)
	d.exec(`update rebase.jobs set run_at = '0001-01-01 00:00Z' where lane = 'z'`)
	require.Equal(t, time.Duration(math.MaxInt64/1000)*time.Microsecond, d.stats().Tasks[0].OldestReady, "no Duration holds more")
}

// M1: the same of reaped jobs, in a lane behind others; and a task that has nothing but one of
// them is known beside a task with many.
func TestM1StatsBeyondTheCapStillKnowsTheOldestReapedJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, lane, run_at, crashes) select 'a', 'a', now() - interval '1 min', 1 from generate_series(1, $1::int + 1000)`, rebase.StatsCap)
	d.exec(`insert into rebase.jobs (task, lane, run_at, crashes) values ('a', 'z', now() - interval '1 hour', 1), ('z', '', now() - interval '2 hours', 1)`)
	oldest := func() time.Duration {
		s := d.stats()
		require.Equal(t, []string{"a", "z"}, s.Unserved())
		require.InDelta(t, 2*time.Hour, s.Tasks[1].OldestReady, float64(time.Minute))
		return s.Tasks[0].OldestReady
	}
	require.InDelta(t, time.Hour, oldest(), float64(time.Minute))
	d.exec(`insert into rebase.jobs (task, run_at) values ('a', now() - interval '3 hours')`)
	require.InDelta(t, 3*time.Hour, oldest(), float64(time.Minute), "one that was never reaped, behind them")
}

// M1: a session that waits for a lock on the queue's tables is counted; those of other
// databases, whose tables may have the same numbers, are not.
func TestM1StatsCountsWaitsForLocks(t *testing.T) {
	t.Parallel()
	d, other := newDesk(t), newDesk(t)
	id := d.enqueue("t", nil).ID
	require.Zero(t, d.stats().LockWaits)
	tx := d.begin(pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), `select from rebase.jobs where id = $1 for update`, id)
	require.NoError(t, err)
	waiting := d.begin(pgx.TxOptions{})
	done := make(chan error, 1)
	go func() {
		_, err := waiting.Exec(t.Context(), `update rebase.jobs set meta = null where id = $1`, id)
		done <- err
	}()
	d.waits(1)
	require.Equal(t, 1, d.stats().LockWaits)
	require.Zero(t, other.stats().LockWaits)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, await(t, done))
	require.Zero(t, d.stats().LockWaits)
}

// M1: who keeps dead rows from being removed: a snapshot, and as well a transaction that
// has written and now idles, which has none.
func TestM1StatsNamesTheSessionThatHoldsTheHorizon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		iso pgx.TxIsoLevel
		sql string
	}{
		"a snapshot":                   {pgx.RepeatableRead, `select 1`},
		"an idle writer without one":   {pgx.ReadCommitted, `create temporary table x ()`},
		"of which a savepoint is left": {pgx.ReadCommitted, `savepoint s; create temporary table x (); release s`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, other := newDesk(t), newDesk(t)
			tx := d.begin(pgx.TxOptions{IsoLevel: c.iso})
			_, err := tx.Exec(t.Context(), `set application_name = 'the culprit'; `+c.sql, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			for range 3 {
				d.enqueue("t", nil)
			}
			h := d.stats().Horizon
			require.NotNil(t, h)
			require.Equal(t, []any{"session", "the culprit", int(tx.Conn().PgConn().PID())}, []any{h.Kind, h.Holder, h.PID})
			require.GreaterOrEqual(t, h.XIDs, int64(3))
			require.WithinDuration(t, time.Now(), h.Since, time.Minute)
			if o := other.stats().Horizon; o != nil {
				require.NotEqual(t, "the culprit", o.Holder, "it is nothing to another database")
			}
			require.NoError(t, tx.Rollback(t.Context()))
			if h := d.stats().Horizon; h != nil {
				require.NotEqual(t, "the culprit", h.Holder)
			}
		})
	}
}

// M1: Stats of a database that is away is an error that can be told apart.
func TestM1StatsReturnsTheErrorOfItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := newDesk(t).q.Stats(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "rebase: stats:", fmt.Sprint(err))
}

// M1: a lock met in the middle of the reading makes no figure count twice.
func TestM1ALockInTheMiddleOfStatsDoublesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("x", nil)
	r.exec(`insert into rebase.workers (id, host, tasks, concurrency, lease, counters) values ('w', 'h', '{x}', 5, '5 min', '{"abandoned": 1}')`)
	_, err := r.q.Stats(t.Context()) // its statements are described
	require.NoError(t, err)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "lock table rebase.schedules in access exclusive mode")
	require.NoError(t, err)
	read := make(chan *rebase.Stats, 1)
	go func() {
		s, err := r.q.Stats(context.Background())
		for err != nil { // the lock was held for longer than Stats is patient
			s, err = r.q.Stats(context.Background())
		}
		read <- s
	}()
	pause(300 * time.Millisecond) // longer than lock_timeout
	require.NoError(t, tx.Rollback(t.Context()))
	s := await(t, read)
	require.NotNil(t, s)
	require.Equal(t, []int{1, 1, 1}, []int{len(s.Tasks), len(s.Workers), s.AbandonedHandlers})
}
