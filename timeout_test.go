package rebase_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J13: the deadline of an attempt.

// J13: the attempt fails at its deadline and is tried again; the context ends with the
// cause ErrTimeout, which is a context.DeadlineExceeded too, and knew its deadline.
func TestAnAttemptThatTimesOutFailsAndIsRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 2})
	causes := make(chan error, 2)
	n := r.once("x", &rebase.WorkerOptions{Timeout: 60 * time.Millisecond}, func(ctx context.Context, _ *rebase.Job) error {
		if _, ok := ctx.Deadline(); !ok {
			return rebase.Permanent(errors.New("no deadline"))
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil // too late
	})
	require.Equal(t, 2, n)
	for range 2 {
		cause := await(t, causes)
		require.ErrorIs(t, cause, rebase.ErrTimeout)
		require.ErrorIs(t, cause, context.DeadlineExceeded)
	}
	j := r.job(id)
	require.Equal(t, rebase.StatusFailed, j.Status)
	require.Equal(t, "attempt timed out after 60ms", j.LastError)
	require.Len(t, r.log.matching("WARN", "attempt timed out", fmt.Sprintf("job_id=%d ", id)), 2)
}

// J13: the slot is free at once although the handler ignores its context; what it
// returns at last is dropped.
func TestAHandlerThatIgnoresItsTimeoutLosesItsSlotAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release, returned := make(chan struct{}), make(chan struct{})
	w := r.worker(&rebase.WorkerOptions{Concurrency: 1})
	w.Register("deaf", func(context.Context, *rebase.Job) error {
		defer close(returned)
		<-release
		return nil
	}, &rebase.TaskOptions{Timeout: 100 * time.Millisecond})
	w.Register("next", succeed, nil)
	deaf := r.enqueue("deaf", &rebase.EnqueueOptions{MaxAttempts: 1})
	s := r.start(w)
	r.ends(deaf, rebase.StatusFailed)
	next := r.enqueue("next", nil)
	r.ends(next, rebase.StatusSucceeded)
	close(release)
	await(t, returned)
	require.NoError(t, s.stop())
	require.Equal(t, rebase.StatusFailed, r.job(deaf).Status)
	require.Equal(t, 1, r.job(deaf).Runs)
}

// J13, J15: the failure of an attempt that has timed out is recorded although the worker is told
// to end, or RunOnce is done, just when its slot is free and its backoff still being asked.
func TestATimeoutIsRecordedAlthoughTheWorkerEndsAtThatMoment(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(ctx context.Context, w *rebase.Worker) error{
		"Run":     func(ctx context.Context, w *rebase.Worker) error { return w.Run(ctx) },
		"RunOnce": func(_ context.Context, w *rebase.Worker) error { _, err := w.RunOnce(context.Background()); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.enqueue("x", nil)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			w := r.worker(&rebase.WorkerOptions{Timeout: 50 * time.Millisecond, Backoff: func(int) time.Duration {
				cancel()
				select {
				case err := <-ended: // too early
					ended <- err
				case <-time.After(300 * time.Millisecond):
				}
				return time.Hour
			}})
			w.Register("x", untilDone, nil)
			go func() { ended <- run(ctx, w) }()
			require.NoError(t, await(t, ended))
			job := r.job(id)
			require.Equal(t, rebase.StatusPending, job.Status)
			require.Equal(t, "attempt timed out after 50ms", job.LastError)
			require.Equal(t, 1, job.Attempts)
		})
	}
}

// J13, J15: handlers that were given up return while the worker takes its leave. For the race
// detector: nobody waits for them.
func TestAbandonedHandlersReturnWhileTheWorkerStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var begun, hanging sync.WaitGroup
	release := make(chan struct{})
	w := r.worker(&rebase.WorkerOptions{Concurrency: 50, Timeout: 500 * time.Millisecond})
	w.Register("deaf", func(context.Context, *rebase.Job) error {
		begun.Done()
		defer hanging.Done()
		<-release
		return nil
	}, nil)
	begun.Add(50)
	hanging.Add(50)
	r.enqueueMany("deaf", 50, &rebase.EnqueueOptions{MaxAttempts: 1})
	s := r.start(w)
	begun.Wait()
	r.until(func() bool { return r.count("status = 'failed'") == 50 }, "all have timed out")
	s.cancel()
	close(release)
	hanging.Wait()
	await(t, s.done)
	require.NoError(t, s.err)
}

// J13: per worker and per task, and it can be switched off.
func TestTheTimeoutIsTheTasksElseTheWorkers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := map[string]time.Duration{}
	h := func(ctx context.Context, job *rebase.Job) error {
		got[job.Task] = 0
		if d, ok := ctx.Deadline(); ok {
			got[job.Task] = time.Until(d).Round(time.Minute)
		}
		return nil
	}
	w := r.worker(&rebase.WorkerOptions{Timeout: time.Hour, Concurrency: 1})
	w.Register("worker", h, nil)
	w.Register("task", h, &rebase.TaskOptions{Timeout: 2 * time.Hour})
	w.Register("off", h, &rebase.TaskOptions{Timeout: -1})
	for _, task := range []string{"worker", "task", "off"} {
		r.enqueue(task, nil)
	}
	_, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]time.Duration{"worker": time.Hour, "task": 2 * time.Hour, "off": 0}, got)
}

// J18, Q42: a running job that is cancelled: its context ends with ErrCancelled, soon,
// and nothing overwrites the cancel.
func TestACancelledJobsHandlerIsToldAndItsResultDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	begun, cause := make(chan struct{}), make(chan error, 1)
	s := r.handle("x", nil, func(ctx context.Context, _ *rebase.Job) error {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	})
	await(t, begun)
	require.NoError(t, r.q.Cancel(t.Context(), id, "not wanted"))
	require.ErrorIs(t, await(t, cause), rebase.ErrCancelled)
	require.NoError(t, s.stop())
	j := r.job(id)
	require.Equal(t, rebase.StatusCancelled, j.Status)
	require.Equal(t, "not wanted", j.LastError)
}

// Q42: cancel races with finish: one of them wins, and both sides know which.
func TestCancelAgainstFinishHasOneWinner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cancels := make(chan int64, 100)
	w := r.worker(nil)
	w.Register("x", func(_ context.Context, job *rebase.Job) error { cancels <- job.ID; return nil }, nil)
	ids := r.enqueueMany("x", 100, nil)
	s := r.start(w)
	won := map[int64]bool{}
	for range ids {
		id := await(t, cancels)
		err := r.q.Cancel(t.Context(), id, "race")
		if _, ok := errors.AsType[*rebase.StateError](err); !ok {
			require.NoError(t, err)
			won[id] = true
		}
	}
	r.until(func() bool { return r.count("finished_at is null") == 0 }, "all have ended")
	require.NoError(t, s.stop())
	for _, id := range ids {
		want := rebase.StatusSucceeded
		if won[id] {
			want = rebase.StatusCancelled
		}
		require.Equal(t, want, r.job(id).Status)
	}
}
