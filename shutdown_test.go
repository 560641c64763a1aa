package rebase_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J15: the end of a Run. Nothing more is claimed, what was not begun goes back at once,
// handlers get their time, and what is left behind is named. And Run itself, called at odd moments.

// Q9, J15: claimed ahead and not begun → pending again at once, no attempt used.
func TestShutdownGivesBackWhatWasNotBegun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueMany("x", 4000, nil)
	blocked := make(chan struct{})
	var once sync.Once
	w := r.worker(&rebase.WorkerOptions{Concurrency: 2})
	n := 0
	w.Register("x", func(ctx context.Context, _ *rebase.Job) error {
		if n++; n > 500 { // fast at first, so that much is claimed ahead
			once.Do(func() { close(blocked) })
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}, &rebase.TaskOptions{Concurrency: 1})
	s := r.start(w)
	await(t, blocked)
	s.cancel()
	r.until(func() bool { return r.count("status = 'running'") == 1 }, "only the begun one is running")
	require.Zero(t, r.count("status = 'pending' and attempts > 0"))
	require.Positive(t, r.count("status = 'pending' and runs > 0"), "some had been claimed ahead")
	require.NoError(t, s.stop())
	require.Zero(t, r.count("status = 'running'"))
	require.Zero(t, r.count("status = 'pending' and attempts > 0"))
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
}

// J15: handlers have two thirds of the time; then ErrShutdown. In the last third nil has
// succeeded, an error puts the job back without using an attempt.
func TestShutdownEndsHandlersAfterTwoThirds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{ShutdownTimeout: 3 * time.Second})
	begun := make(chan struct{}, 3)
	var ended time.Time
	w.Register("good", func(ctx context.Context, _ *rebase.Job) error {
		begun <- struct{}{}
		<-ctx.Done()
		ended = time.Now()
		return nil
	}, nil)
	w.Register("bad", func(ctx context.Context, _ *rebase.Job) error {
		begun <- struct{}{}
		<-ctx.Done()
		return errors.Join(errBoom, context.Cause(ctx))
	}, nil)
	w.Register("slow", func(ctx context.Context, _ *rebase.Job) error {
		begun <- struct{}{}
		select { // ends by itself, in time
		case <-time.After(500 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, nil)
	good, bad, slow := r.enqueue("good", nil), r.enqueue("bad", &rebase.EnqueueOptions{MaxAttempts: 1}), r.enqueue("slow", nil)
	s := r.start(w)
	for range 3 {
		await(t, begun)
	}
	asked := time.Now()
	require.NoError(t, s.stop(), "a clean drain")
	require.GreaterOrEqual(t, ended.Sub(asked), 1900*time.Millisecond)
	require.Less(t, ended.Sub(asked), 3*time.Second)
	require.Equal(t, rebase.StatusSucceeded, r.job(good).Status)
	require.Equal(t, rebase.StatusSucceeded, r.job(slow).Status)
	j := r.job(bad)
	require.Equal(t, rebase.StatusPending, j.Status)
	require.Zero(t, j.Attempts)
	require.Equal(t, 1, j.Runs)
	require.Equal(t, "released", j.History[0].Outcome)
}

// Q14: a handler that ignores its context → Run returns in time and names it; its job
// keeps its claim.
func TestShutdownNamesTheHandlersThatDoNotReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	begun, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	id := r.enqueue("deaf", nil)
	s := r.handle("deaf", &rebase.WorkerOptions{ShutdownTimeout: 300 * time.Millisecond}, func(context.Context, *rebase.Job) error {
		close(begun)
		<-release
		return nil
	})
	await(t, begun)
	asked := time.Now()
	left, ok := errors.AsType[*rebase.ShutdownError](s.stop())
	require.True(t, ok)
	require.Less(t, time.Since(asked), 3*time.Second)
	require.Equal(t, []int64{id}, left.Running)
	require.Empty(t, left.Unrecorded)
	require.ErrorContains(t, left, "still running: jobs 1")
	require.Equal(t, rebase.StatusRunning, r.job(id).Status)
}

// J15, J24: results that can't be written before the time is up are named apart; a row
// that refuses is asked now and then, not in a loop without a pause.
func TestShutdownNamesTheResultsThatItCouldNotWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuse("status = 'succeeded'")
	id := r.enqueue("x", nil)
	ran := make(chan struct{})
	s := r.handle("x", &rebase.WorkerOptions{ShutdownTimeout: 1500 * time.Millisecond}, func(context.Context, *rebase.Job) error { close(ran); return nil })
	await(t, ran)
	left, ok := errors.AsType[*rebase.ShutdownError](s.stop())
	require.True(t, ok)
	require.Equal(t, []int64{id}, left.Unrecorded)
	require.Empty(t, left.Running)
	require.LessOrEqual(t, len(r.log.matching("ERROR", "can't be recorded")), 4)
}

// refuse makes the table refuse updates to rows that match.
func (r *rig) refuse(where string) {
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused by a trigger'; end $$`)
	r.exec(`create trigger refuse before update on rebase.jobs for each row when (new.` + where + `) execute function refuse()`)
}

// RunOnce tells of a result that can't be written, instead of waiting for ever.
func TestRunOnceReturnsTheErrorOfAResultThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuse("status = 'succeeded'")
	r.enqueue("x", nil)
	w := r.worker(&rebase.WorkerOptions{ShutdownTimeout: 300 * time.Millisecond})
	w.Register("x", succeed, nil)
	n, err := w.RunOnce(t.Context())
	require.ErrorContains(t, err, "refused by a trigger")
	require.Equal(t, 1, n)
}

// RunOnce returns an error when the database goes away, Run waits.
func TestRunOnceReturnsTheErrorWhenTheDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	r.enqueue("x", nil)
	w := far.worker(&rebase.WorkerOptions{ShutdownTimeout: 300 * time.Millisecond})
	w.Register("x", func(context.Context, *rebase.Job) error { kill(proxy); return nil }, nil)
	_, err := w.RunOnce(t.Context())
	require.ErrorContains(t, err, "RunOnce")
	_, err = w.RunOnce(t.Context())
	require.Error(t, err, "away at the start")
}

// Q15: Run twice at once is refused; again after the end is fine.
func TestRunTwiceAtOnceIsRefusedAndAgainIsFine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	w := r.worker(nil)
	w.Register("x", succeed, nil)
	s := r.start(w)
	r.ends(id, rebase.StatusSucceeded)
	require.ErrorContains(t, w.Run(t.Context()), "already running")
	_, err := w.RunOnce(t.Context())
	require.ErrorContains(t, err, "already running")
	require.NoError(t, s.stop())
	id = r.enqueue("x", nil)
	s = r.start(w)
	r.ends(id, rebase.StatusSucceeded)
	require.NoError(t, s.stop())
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

// Q15: cancelled before it began: nil, and nothing was claimed.
func TestRunCancelledBeforeItBegan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := r.worker(nil)
	w.Register("x", succeed, nil)
	require.NoError(t, w.Run(ctx))
	_, err := w.RunOnce(ctx)
	require.NoError(t, err)
	require.Zero(t, r.job(id).Runs)
}

// Q15: cancelled while it connects, to a server that never answers, and while it
// reconnects: no hang.
func TestRunCancelledWhileConnectingOrReconnecting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	proxy.BlackHole(true)
	s := far.handle("x", nil, succeed)
	r.until(func() bool { return proxy.Accepted() > 0 }, "it tries to connect")
	require.NoError(t, s.stop())

	proxy.BlackHole(false)
	proxy.Cut()
	s = far.handle("x", &rebase.WorkerOptions{ShutdownTimeout: time.Second}, succeed)
	id := r.enqueue("x", nil)
	r.ends(id, rebase.StatusSucceeded)
	r.until(func() bool { return ask[int](r, `select count(*)::int from rebase.claims`) == 0 }, "the worker knows")
	kill(proxy)
	r.until(func() bool { return len(far.log.matching("WARN", "can't be reached")) > 0 }, "it has noticed")
	require.NoError(t, s.stop())
}

// A wrong schema is told at once, by Run and by RunOnce.
func TestRunReturnsASchemaErrorAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("drop schema rebase cascade")
	_, ok := errors.AsType[*rebase.SchemaError](r.worker(nil).Run(t.Context()))
	require.True(t, ok)
	_, err := r.worker(nil).RunOnce(t.Context())
	_, ok = errors.AsType[*rebase.SchemaError](err)
	require.True(t, ok)
}

// Q59: Run's context ends while a claim is on the wire, 200 times → no row is left
// running that nobody knows.
func TestAShutdownAtAnyMomentLeavesNoRowRunning(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behindWith(func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec })
	proxy.Delay(time.Millisecond)
	const rounds = 200
	r.enqueueMany("x", 5000, nil)
	least := 15 * time.Millisecond // to connect and claim
	for i := range rounds {
		w := far.worker(&rebase.WorkerOptions{PollOnly: true, PollInterval: time.Millisecond})
		w.Register("x", succeed, nil)
		ctx, cancel := context.WithTimeout(t.Context(), least+rand.N(2*least))
		err := w.Run(ctx)
		cancel()
		if i%20 == 19 && r.count("status = 'succeeded'") == 0 {
			least *= 2 // a busy machine has not come to a claim yet
		}
		require.NoError(t, err, i)
		require.Zero(t, r.count("status = 'running'"), i)
		require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"), i)
	}
	require.Zero(t, r.count("status = 'pending' and attempts > 0"))
	require.Positive(t, r.count("status = 'succeeded'"))
}
