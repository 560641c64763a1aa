package rebase_test

// N1: what wakes a worker. Each way of making a job pending, from another process and
// from the worker's own.

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// N1: whatever process commits the job, a sleeping worker starts it at once.
func TestN1AnEnqueueElsewhereWakesASleepingWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a", "b")
	q := r.elsewhere(rebase.Gated)
	ways := map[string]func() int64{
		"Enqueue": func() int64 { return one(t)(q.Enqueue(t.Context(), "a", nil, nil)) },
		"EnqueueTx": func() (id int64) {
			require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
				id = one(t)(q.EnqueueTx(t.Context(), tx, "b", nil, nil))
				return nil
			}))
			return id
		},
		"EnqueueMany": func() int64 {
			done, err := q.EnqueueMany(t.Context(), []rebase.Item{{Task: "b"}, {Task: "unserved"}})
			require.NoError(t, err)
			return done[0].ID
		},
		"rebase.enqueue":      func() int64 { return ask[int64](r, `select rebase.enqueue('a')`) },
		"rebase.enqueue_many": func() int64 { return ask[int64](r, `select id from rebase.enqueue_many('[{"task":"b"}]')`) },
	}
	for name, make := range ways {
		s.sleeps()
		t.Log(name)
		s.starts(make())
	}
}

// one takes the id of what was enqueued.
func one(t *testing.T) func(rebase.Enqueued, error) int64 {
	return func(done rebase.Enqueued, err error) int64 {
		t.Helper()
		require.NoError(t, err)
		require.False(t, done.Duplicate)
		return done.ID
	}
}

// N1: what this process enqueues itself, and a retry that it schedules, wake it without a
// NOTIFY: it has no LISTEN, its queue never notifies, and its next look is an hour away.
func TestN1OwnJobsNeedNoNotify(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.q = r.elsewhere(rebase.Never)
	opts := &rebase.WorkerOptions{PollOnly: true, PollInterval: time.Hour}
	s := r.drowsy(opts, "a")
	idle := func() { t.Helper(); r.until(func() bool { return s.UntilLook() > time.Minute }, "the worker rests") }
	ear := r.ear()

	idle()
	s.starts(r.enqueue("a", nil))

	idle()
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	id := one(t)(r.q.EnqueueTx(t.Context(), tx, "a", nil, nil))
	require.NoError(t, tx.Commit(t.Context()))
	s.starts(id)

	idle()
	id = ask[int64](r, `insert into rebase.jobs (task) values ('a') returning id`)
	r.q.Wake()
	s.starts(id)
	require.Empty(t, ear.heard())
}

// N1: a retry that this process schedules.
func TestN1ARetryNeedsNoNotify(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.q = r.elsewhere(rebase.Never)
	w := r.worker(&rebase.WorkerOptions{PollOnly: true, PollInterval: time.Hour, Backoff: at(300 * time.Millisecond)})
	began := make(chan time.Time, 2)
	w.Register("a", func(_ context.Context, job *rebase.Job) error {
		if began <- time.Now(); job.Attempts == 1 {
			return errBoom
		}
		return nil
	}, nil)
	r.start(w)
	r.until(func() bool { return w.UntilLook() > time.Minute }, "the worker rests")
	r.enqueue("a", nil)
	first := await(t, began)
	second := await(t, began)
	require.Greater(t, second.Sub(first), 250*time.Millisecond)
	require.Less(t, second.Sub(first), soon)
}

// N1: a job that this process has reaped.
func TestN1AReapedJobNeedsNoNotify(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.orphaned("a", 0)
	r.q = r.elsewhere(rebase.Never)
	s := r.drowsy(&rebase.WorkerOptions{PollOnly: true, PollInterval: time.Hour}, "a")
	r.until(func() bool { return s.UntilLook() > time.Minute }, "the worker rests")
	s.ReapNow()
	s.starts(dead)
}

// J11: the heartbeat sees that a claim has expired, so that an idle worker need not ask
// for that alone.
func TestJ11AHeartbeatSeesWhatHasExpired(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	s.Trust()
	id := r.orphaned("a", -time.Second)
	s.RenewNow()
	s.starts(id)
}

// orphaned makes a job that a dead worker had claimed ahead, so that it is due as soon as
// it is reaped.
func (r *rig) orphaned(task string, after time.Duration) int64 {
	r.t.Helper()
	id := ask[int64](r, `insert into rebase.jobs (task, status, fence, attempts, runs, locked_by, locked_until)
		values ($1, 'running', 77, 1, 1, 'gone', now() + $2::interval) returning id`, task, after.String())
	r.exec(`insert into rebase.claims (token, locked_until, lease, worker, ids) values (77, now() + $2::interval, '3 s', 'gone', array[$1::bigint])`, id, after.String())
	return id
}

// N1: by an option every enqueue notifies, or none does; by default only while somebody
// sleeps.
func TestN1TheOptionDecidesWhoNotifies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ear := r.ear()
	enqueue := func(mode rebase.NotifyMode) []string {
		t.Helper()
		one(t)(r.elsewhere(mode).Enqueue(t.Context(), "a", nil, nil))
		return ear.heard()
	}
	require.Equal(t, []string{"a"}, enqueue(rebase.Always))
	require.Empty(t, enqueue(rebase.Gated), "nobody sleeps")
	require.Empty(t, enqueue(rebase.Never))
	s := r.sleeper(nil, "a")
	for range 3 {
		await(t, s.began)
	}
	s.sleeps()
	require.Equal(t, []string{"a"}, enqueue(rebase.Gated), "somebody sleeps")
	await(t, s.began)
	s.sleeps()
	require.Empty(t, enqueue(rebase.Never))
}
