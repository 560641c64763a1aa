package rebase_test

// Every statement that makes a row pending asks the gate, not only inserts; and whoever
// falls asleep looks after it has taken its locks, so that nothing falls between.

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// Q63: Retry, Redrive and a resumed task wake a worker in another process.
func TestQ63OperatorsWakeASleeperElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("a", nil)
	r.once("a", nil, func(context.Context, *rebase.Job) error { return rebase.Permanent(errBoom) })
	s := r.sleeper(nil, "a")
	q := r.elsewhere(rebase.Gated)

	require.NoError(t, q.Retry(t.Context(), id))
	s.starts(id)
	r.ends(id, rebase.StatusSucceeded)

	dead := r.enqueue("dead", nil)
	r.once("dead", nil, func(context.Context, *rebase.Job) error { return rebase.Permanent(errBoom) })
	r.exec(`update rebase.jobs set task = 'a' where id = $1`, dead)
	s.sleeps()
	n, err := q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	s.starts(dead)

	require.NoError(t, q.PauseTask(t.Context(), "a"))
	paused := one(t)(q.Enqueue(t.Context(), "a", nil, nil))
	s.sleeps()
	require.NoError(t, q.ResumeTask(t.Context(), "a"))
	s.starts(paused)
}

// Q63: what a worker gives back at its shutdown, another one that sleeps starts at once.
func TestQ63AGiveBackAtShutdownWakesASleeperElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, entered := r.worker(&rebase.WorkerOptions{ShutdownTimeout: 3 * time.Second}), make(chan int64, 1)
	first.Register("a", func(ctx context.Context, job *rebase.Job) error {
		entered <- job.ID
		<-ctx.Done()
		return context.Cause(ctx)
	}, nil)
	running := r.start(first)
	id := r.enqueue("a", nil)
	require.Equal(t, id, await(t, entered))
	second := &rig{t: t, pool: r.pool, q: r.elsewhere(rebase.Gated), log: r.log}
	s := second.sleeper(nil, "a")
	require.NoError(t, running.stop())
	s.starts(id)
	require.Equal(t, 1, r.ends(id, rebase.StatusSucceeded).Attempts)
}

// Q63: the reaper is a process that doesn't serve the task.
func TestQ63AReapElsewhereWakesASleeper(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(&rebase.WorkerOptions{VisibilityTimeout: time.Hour}, "a")
	id := r.orphaned("a", -time.Second)
	second := &rig{t: t, pool: r.pool, q: r.elsewhere(rebase.Gated), log: r.log}
	reaper := second.sleeper(nil, "b")
	reaper.ReapNow()
	s.starts(id)
}

// Q63: a failure whose retry is due at once, in a process that stops right after it.
func TestQ63AFailureElsewhereWakesASleeper(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	second := &rig{t: t, pool: r.pool, q: r.elsewhere(rebase.Gated), log: r.log}
	id := r.enqueue("b", nil)
	failing, begun, fail := second.worker(nil), make(chan struct{}), make(chan struct{})
	failing.Register("b", func(context.Context, *rebase.Job) error {
		close(begun)
		<-fail
		return errBoom
	}, nil)
	running := second.start(failing)
	await(t, begun)
	r.exec(`update rebase.jobs set task = 'a' where id = $1`, id) // a task that only the sleeper serves
	close(fail)
	s.starts(id)
	require.NoError(t, running.stop())
}

// J18: a cancelled job's handler hears of it by NOTIFY, long before the next renewal.
func TestN1ACancelElsewhereReachesARunningHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w, begun, ended := r.worker(nil), make(chan int64, 1), make(chan error, 1)
	w.Register("a", func(ctx context.Context, job *rebase.Job) error {
		begun <- job.ID
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}, nil)
	r.start(w)
	r.until(w.Asleep, "the worker hears")
	id := r.enqueue("a", nil)
	require.Equal(t, id, await(t, begun))
	asked := time.Now()
	require.NoError(t, r.elsewhere(rebase.Gated).Cancel(t.Context(), id, "no longer wanted"))
	require.ErrorIs(t, await(t, ended), rebase.ErrCancelled)
	require.Less(t, time.Since(asked), soon)
}

// Q41: A enqueues and rolls back; B's job, committed right after it, is started at once.
func TestQ41ARollbackDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	q := r.elsewhere(rebase.Gated)
	for range rounds(10, 100) {
		a, err := r.pool.Begin(t.Context())
		require.NoError(t, err)
		one(t)(q.EnqueueTx(t.Context(), a, "a", nil, nil))
		var id int64
		require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(b pgx.Tx) error {
			id = one(t)(q.EnqueueTx(t.Context(), b, "a", nil, nil))
			return a.Rollback(t.Context())
		}))
		s.starts(id)
	}
}

// Q37: a job that is committed after the first look of a worker that starts, and before
// its LISTEN has taken effect, is found as soon as it hears.
func TestQ37AJobBetweenTheLookAndListenIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := make(chan struct{})
	s := r.drowsy(&rebase.WorkerOptions{PollInterval: time.Hour, Listen: func(ctx context.Context) (*pgx.Conn, error) {
		select {
		case <-open:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return pgx.ConnectConfig(ctx, r.pool.Config().ConnConfig)
	}}, "a")
	r.until(func() bool { return s.UntilLook() > time.Minute }, "it has looked and found nothing")
	id := one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil))
	require.Empty(t, s.began)
	close(open)
	s.starts(id)
}

// A wake-up that comes while a look is under way stands for a job that the look may not
// see; when the look has found nothing it is followed by another at once. So for each
// kind of wake-up.
func TestN1AWakeUpDuringALookIsNotForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, wake := range map[string]func(*rebase.Planner){
		"a retry is due soon, or one of many sleepers was notified": func(p *rebase.Planner) { p.By(5 * time.Millisecond) },
		"this process enqueues in a transaction":                    func(p *rebase.Planner) { p.Expect("a") },
	} {
		for _, asleep := range []bool{false, true} {
			w := r.worker(&rebase.WorkerOptions{PollOnly: true, PollInterval: time.Hour})
			w.Register("a", func(context.Context, *rebase.Job) error { return nil }, nil)
			p := rebase.NewPlanner(w)
			if asleep {
				p.Sleep(10)
			}
			require.True(t, p.Look())
			wake(p)
			p.FoundNothing()
			require.Less(t, p.Wait(), time.Second, "%s, asleep: %v", name, asleep)
		}
	}
}

// The locks of a connection that has ended are gone, also when its successor hears already
// by the time the claimer learns that it got them.
func TestN1LocksEndWithTheirConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Register("a", func(context.Context, *rebase.Job) error { return nil }, nil)
	require.False(t, rebase.NewPlanner(w).Reconnect())
}

// A worker that is about to fall asleep on a connection that hangs does its work first.
func TestN1AHangingConnectionDelaysNoWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Register("a", func(context.Context, *rebase.Job) error { return nil }, nil)
	waited, wants := rebase.NewPlanner(w).Interrupt("a")
	require.Less(t, waited, 4*time.Second)
	require.False(t, wants, "locks that come later must be given up")
}

// What the claimer wanted of a connection that broke doesn't keep the next one from
// proving itself.
func TestN4AnOrderToALostConnectionIsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := make(chan struct{})
	s := r.drowsy(&rebase.WorkerOptions{Listen: func(ctx context.Context) (*pgx.Conn, error) {
		<-open
		return pgx.ConnectConfig(ctx, r.pool.Config().ConnConfig)
	}}, "a")
	r.until(func() bool { return s.UntilLook() > 0 }, "the worker runs")
	s.Order()
	close(open)
	s.sleeps()
	require.Empty(t, r.log.matching("LISTEN does not work"))
}
