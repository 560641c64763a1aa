package rebase_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/stretchr/testify/require"
)

// What a worker does with jobs when nothing goes wrong, and what it refuses before it
// starts: registration, options, slots, RunOnce.

// J7, J1: the whole life of a job that goes well, as its row tells it.
func TestAJobThatGoesWellRunsOnceAndItsRowTellsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("greet", nil)
	n := r.once("greet", &rebase.WorkerOptions{Name: "berta"}, func(_ context.Context, job *rebase.Job) error {
		require.Equal(t, id, job.ID)
		require.Equal(t, rebase.StatusRunning, job.Status)
		require.Equal(t, 1, job.Attempts)
		require.Positive(t, job.Fence)
		require.Contains(t, job.LockedBy, "berta-")
		require.NotNil(t, job.LockedUntil)
		return nil
	})
	require.Equal(t, 1, n)
	j := r.job(id)
	require.Equal(t, rebase.StatusSucceeded, j.Status)
	require.Equal(t, 1, j.Attempts)
	require.Equal(t, 1, j.Runs)
	require.Contains(t, j.LockedBy, "berta-", "who did it stays")
	require.Nil(t, j.LockedUntil)
	require.NotNil(t, j.StartedAt)
	require.NotNil(t, j.FinishedAt)
	require.Empty(t, j.LastError)
	require.Nil(t, j.History, "J20: none after a success at the first try")
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.workers"))
}

// J6: what a worker has no handler for stays as it is.
func TestAWorkerLeavesTasksAloneThatItHasNoHandlerFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	theirs, ours := r.enqueue("new-task", nil), r.enqueue("old-task", nil)
	require.Equal(t, 1, r.once("old-task", nil, succeed))
	require.Equal(t, rebase.StatusSucceeded, r.job(ours).Status)
	j := r.job(theirs)
	require.Equal(t, rebase.StatusPending, j.Status)
	require.Zero(t, j.Attempts+j.Runs)
}

func succeed(context.Context, *rebase.Job) error { return nil }

// RunOnce runs also what its handlers enqueue, and counts every attempt.
func TestRunOnceRunsWhatItsHandlersEnqueueAndCountsAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("chain", &rebase.EnqueueOptions{Meta: map[string]string{"left": "aaa"}})
	n := r.once("chain", nil, func(ctx context.Context, job *rebase.Job) error {
		left := job.Meta["left"]
		switch {
		case left == "":
			return nil
		case job.Attempts == 1 && left == "aa":
			return errBoom // one more attempt
		}
		_, err := r.q.Enqueue(ctx, "chain", nil, &rebase.EnqueueOptions{Meta: map[string]string{"left": left[1:]}})
		return err
	})
	require.Equal(t, 5, n)
	require.Equal(t, 4, r.count("status = 'succeeded'"))
}

// RunOnce claims ahead as Run does: a backlog of short jobs takes few statements.
func TestRunOnceClaimsABacklogInBatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 3000
	r.enqueueMany("x", n, nil)
	require.Equal(t, n, r.once("x", nil, succeed))
	require.Equal(t, n, r.count("status = 'succeeded' and attempts = 1"))
	stats, err := r.q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, n, stats.Totals["succeeded"])
	require.Less(t, stats.Totals["claims"], int64(n/4))
}

// RunOnce leaves alone what is not due, and has nothing to do on an empty table.
func TestRunOnceDoesNotWaitForWhatIsNotDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Zero(t, r.once("later", nil, succeed))
	id := r.enqueue("later", &rebase.EnqueueOptions{Delay: time.Hour})
	require.Zero(t, r.once("later", nil, succeed))
	require.Equal(t, rebase.StatusPending, r.job(id).Status)
}

// RunOnce without any handler still reaps (it has something to say about the table).
func TestAWorkerWithoutHandlersRunsAndStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("nobodys", nil)
	n, err := r.worker(nil).RunOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	s := r.start(r.worker(nil))
	r.until(func() bool { return ask[int](r, "select count(*)::int from rebase.workers") == 1 }, "the worker's row is there")
	require.NoError(t, s.stop())
	require.Equal(t, rebase.StatusPending, r.job(id).Status)
}

// J14: the worker's slots and the task's slots both bound what runs at once.
func TestConcurrencyBoundsTheWorkerAndEachTask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all, narrow gauge
	w := r.worker(&rebase.WorkerOptions{Concurrency: 4})
	w.Register("wide", all.handler(nil), nil)
	w.Register("narrow", all.handler(narrow.handler(nil)), &rebase.TaskOptions{Concurrency: 2})
	r.enqueueMany("wide", 150, nil)
	r.enqueueMany("narrow", 150, nil)
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 300, n)
	require.LessOrEqual(t, all.most(), 4)
	require.LessOrEqual(t, narrow.most(), 2)
	require.Equal(t, 300, r.count("status = 'succeeded' and attempts = 1"))
}

// J14: the default is 5 jobs at once; a task's own limit never widens the worker's.
func TestTheDefaultIsFiveJobsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	arrived, release := make(chan struct{}, 20), make(chan struct{})
	w := r.worker(nil)
	w.Register("hold", func(context.Context, *rebase.Job) error {
		arrived <- struct{}{}
		<-release
		return nil
	}, &rebase.TaskOptions{Concurrency: 50})
	r.enqueueMany("hold", 12, nil)
	s := r.start(w)
	for range 5 {
		await(t, arrived)
	}
	require.Equal(t, 5, r.count("status = 'running'"))
	require.Empty(t, arrived)
	close(release)
	r.until(func() bool { return r.count("status = 'succeeded'") == 12 }, "all have run")
	require.NoError(t, s.stop())
}

// A gauge knows how many handlers run at once, and how many at most did.
type gauge struct{ now, max atomic.Int64 }

func (g *gauge) most() int { return int(g.max.Load()) }

func (g *gauge) handler(inner rebase.Handler) rebase.Handler {
	return func(ctx context.Context, job *rebase.Job) error {
		n := g.now.Add(1)
		defer g.now.Add(-1)
		for m := g.max.Load(); n > m && !g.max.CompareAndSwap(m, n); m = g.max.Load() {
		}
		if inner != nil {
			return inner(ctx, job)
		}
		return nil
	}
}

// M2: the first middleware is the outermost, and each sees the job and what the handler
// returned. J13: its context is the job's.
func TestMiddlewareWrapsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	var said []string
	say := func(s string) { mu.Lock(); said = append(said, s); mu.Unlock() }
	layer := func(name string) rebase.Middleware {
		return func(next rebase.Handler) rebase.Handler {
			return func(ctx context.Context, job *rebase.Job) error {
				_, limited := ctx.Deadline()
				say(fmt.Sprintf("%s in %t", name, limited))
				err := next(ctx, job)
				say(fmt.Sprintf("%s out %v", name, err))
				return err
			}
		}
	}
	id := r.enqueue("wrapped", &rebase.EnqueueOptions{MaxAttempts: 1})
	r.once("wrapped", &rebase.WorkerOptions{Middleware: []rebase.Middleware{layer("a"), layer("b")}},
		func(context.Context, *rebase.Job) error { say("handler"); return errBoom })
	require.Equal(t, []string{"a in true", "b in true", "handler", "b out boom", "a out boom"}, said)
	require.Equal(t, rebase.StatusFailed, r.job(id).Status)
}

// J7: a middleware that panics, or that makes no handler at all, is a failure of the job.
func TestAMiddlewareThatPanicsIsAFailureOfTheJob(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]rebase.Middleware{
		"panics": func(rebase.Handler) rebase.Handler { return func(context.Context, *rebase.Job) error { panic("odd") } },
		"nil":    func(rebase.Handler) rebase.Handler { return nil },
	} {
		r := newRig(t)
		id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
		r.once("x", &rebase.WorkerOptions{Middleware: []rebase.Middleware{m}}, succeed)
		require.Equal(t, rebase.StatusFailed, r.job(id).Status, name)
		require.Contains(t, r.job(id).LastError, "panic", name)
	}
}

// Q5, J10: options that can't work are refused at once, with the value in the message.
func TestNewWorkerPanicsOnOptionsThatCannotWork(t *testing.T) {
	t.Parallel()
	q := rebase.New(pgtest.New(t), nil)
	for want, o := range map[string]rebase.WorkerOptions{
		"VisibilityTimeout 2.999s": {VisibilityTimeout: 3*time.Second - time.Millisecond},
		"VisibilityTimeout -1s":    {VisibilityTimeout: -time.Second},
		"VisibilityTimeout 48h":    {VisibilityTimeout: 48 * time.Hour},
		"Concurrency -1":           {Concurrency: -1},
		"Concurrency 10001":        {Concurrency: 10_001},
		"PollInterval -1s":         {PollInterval: -time.Second},
		"ShutdownTimeout -1s":      {ShutdownTimeout: -time.Second},
		"Name":                     {Name: "a\x00b"},
	} {
		requirePanic(t, want, func() { rebase.NewWorker(q, &o) })
	}
	requirePanic(t, "nil queue", func() { rebase.NewWorker(nil, nil) })
	require.NotPanics(t, func() { rebase.NewWorker(q, &rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}) })
}

// Register panics like ServeMux does, and names the task.
func TestRegisterPanicsOnMisuse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Register("taken", succeed, nil)
	typed := func(context.Context, *rebase.Job, int) error { return nil }
	for want, f := range map[string]func(){
		`"taken"`:           func() { w.Register("taken", succeed, nil) },
		`already`:           func() { rebase.Handle(w, "taken", typed, nil) },
		`nil handler`:       func() { w.Register("x", nil, nil) },
		`nil handler for`:   func() { rebase.Handle[int](w, "x", nil, nil) },
		`task ""`:           func() { w.Register("", succeed, nil) },
		`task "a\x00"`:      func() { w.Register("a\x00", succeed, nil) },
		`Concurrency -1`:    func() { w.Register("x", succeed, &rebase.TaskOptions{Concurrency: -1}) },
		`LaneConcurrency -`: func() { w.Register("x", succeed, &rebase.TaskOptions{LaneConcurrency: -2}) },
	} {
		requirePanic(t, want, f)
	}
	_, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	requirePanic(t, `"late"`, func() { w.Register("late", succeed, nil) })
}

func requirePanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		require.Contains(t, fmt.Sprint(recover()), want)
	}()
	f()
}

// J21: a typed handler gets the decoded payload, a raw one the bytes, numbers beyond 2^53
// included (Q31 has the rest).
func TestTypedAndRawHandlersGetThePayload(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type order struct{ ID int64 }
	const typed rebase.Task[order] = "typed"
	_, err := typed.Enqueue(t.Context(), r.q, order{9007199254740993}, nil)
	require.NoError(t, err)
	w := r.worker(nil)
	var got []string
	typed.Handle(w, func(ctx context.Context, job *rebase.Job, p order) error {
		got = append(got, fmt.Sprint(p.ID), strings.ReplaceAll(string(job.Payload), " ", ""))
		return nil
	}, nil)
	_, err = w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"9007199254740993", `{"ID":9007199254740993}`}, got)
}

// J13: the attempt timeout is said in one line at the start.
func TestTheStartLineTellsTheTimeouts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.once("x", nil, succeed)
	require.Len(t, r.log.matching("INFO rebase: worker started", "attempt_timeout=15m0s", "visibility_timeout=5m0s", "concurrency=5"), 1)
}

// J5: two queues, two workers, one table: each job runs exactly once.
func TestTwoWorkersShareTheJobsWithoutOverlap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := newRigOn(t, r.pool)
	ids := r.enqueueMany("shared", 2000, nil)
	var mu sync.Mutex
	seen := map[int64]int{}
	h := func(_ context.Context, job *rebase.Job) error {
		mu.Lock()
		seen[job.ID]++
		mu.Unlock()
		return nil
	}
	r.handle("shared", nil, h)
	other.handle("shared", nil, h)
	r.until(func() bool { return r.count("status = 'succeeded'") == len(ids) }, "all are done")
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, seen, len(ids))
	require.False(t, slices.ContainsFunc(ids, func(id int64) bool { return seen[id] != 1 }))
}
