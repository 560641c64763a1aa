package rebase_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J27: whose turn it is. And J24's kin on the claim side: what is in the way of one job
// is in the way of no other.

// Q19: ten thousand jobs of one task don't starve three of another.
func TestManyJobsOfOneTaskDoNotStarveAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 10 {
		r.enqueueMany("a", 1000, nil)
	}
	ids := r.enqueueMany("b", 3, nil)
	var done, before atomic.Int64
	w := r.worker(nil)
	w.Register("a", func(context.Context, *rebase.Job) error { pause(time.Millisecond); done.Add(1); return nil }, nil) // no time at all would be claimed ahead by thousands on a busy machine
	w.Register("b", func(context.Context, *rebase.Job) error { before.Store(max(before.Load(), done.Load())); return nil }, nil)
	r.start(w)
	for _, id := range ids {
		r.ends(id, rebase.StatusSucceeded)
	}
	require.Less(t, before.Load(), int64(5000))
}

// J27: two tasks whose long jobs take every slot don't keep a third one out: each slot
// that falls free goes to the task whose turn it is.
func TestLongJobsOfTwoTasksDoNotKeepAThirdOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one := make(chan struct{})
	w := r.worker(&rebase.WorkerOptions{Concurrency: 4, ShutdownTimeout: 300 * time.Millisecond})
	long := func(ctx context.Context, _ *rebase.Job) error {
		select {
		case <-one:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	w.Register("a", long, nil)
	w.Register("b", long, nil)
	w.Register("c", succeed, nil)
	r.enqueueMany("a", 50, nil)
	r.enqueueMany("b", 50, nil)
	r.start(w)
	r.until(func() bool { return r.count("status = 'running'") == 4 }, "all slots are taken")
	ids := r.enqueueMany("c", 2, nil)
	for range 6 { // one slot at a time
		select {
		case one <- struct{}{}:
		case <-time.After(soonEnough):
			require.Fail(t, "no long job runs")
		}
	}
	for _, id := range ids {
		r.ends(id, rebase.StatusSucceeded)
	}
}

// With one slot, and with tasks in lanes beside it, an idle worker sleeps: it does not
// ask the server again and again; and it still serves every task.
func TestAWorkerWithOneSlotSleepsWhenIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{Concurrency: 1})
	tasks := []string{"a", "b", "c", "plain"}
	for _, task := range tasks {
		w.Register(task, succeed, nil)
	}
	for _, task := range tasks[:3] { // lanes that have work, but not yet
		r.enqueue(task, &rebase.EnqueueOptions{Lane: "l1", Delay: time.Hour})
		r.enqueue(task, &rebase.EnqueueOptions{Lane: "l2", Delay: time.Hour})
	}
	r.start(w)
	r.until(func() bool {
		return ask[int](r, "select count(*)::int from pg_locks where locktype = 'advisory' and classid = 7236") > 0
	}, "it sleeps")
	for _, task := range append(tasks, tasks...) {
		id := r.enqueue(task, &rebase.EnqueueOptions{Lane: map[bool]string{false: "l1"}[task == "plain"]})
		r.ends(id, rebase.StatusSucceeded)
		r.until(func() bool {
			return ask[int](r, "select count(*)::int from pg_locks where locktype = 'advisory' and classid = 7236") > 0
		}, "it sleeps again")
	}
}

// Q20: one row locked by somebody's transaction: the rest flow, and it runs when it is free.
func TestALockedRowIsPassedBy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany("x", 50, nil)
	release := r.hold(ids[0])
	r.handle("x", nil, succeed)
	r.until(func() bool { return r.count("status = 'succeeded'") == 49 }, "the rest have run")
	release()
	r.ends(ids[0], rebase.StatusSucceeded)
}

// A row that is locked while its result is to be written is written when it is free.
func TestAResultWaitsForALockedRowAndStopsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany("x", 5, nil)
	var release func()
	locked := make(chan struct{})
	r.handle("x", nil, func(_ context.Context, job *rebase.Job) error {
		if job.ID == ids[0] {
			release = r.hold(job.ID)
			close(locked)
		}
		return nil
	})
	await(t, locked)
	r.until(func() bool { return r.count("status = 'succeeded'") == 4 }, "the others are recorded")
	require.Equal(t, rebase.StatusRunning, r.job(ids[0]).Status)
	release()
	r.ends(ids[0], rebase.StatusSucceeded)
	require.Empty(t, r.log.matching("lease lost"))
}

// Q57: values that can't be read are refused by the table, or put aside and logged: the
// batch goes on.
func TestUnreadableRowsAreRefusedOrPutAside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany("x", 20, nil)
	for _, v := range []string{"infinity", "-infinity"} {
		_, err := r.pool.Exec(t.Context(), "update rebase.jobs set run_at = $1::text::timestamptz", v)
		require.ErrorContains(t, err, "jobs_run_at")
	}
	aside := 0
	for i, set := range []string{
		`meta = '[1]'`, `meta = '{"a": 1}'`, `history = '{"a": 1}'`, `history = '7'`, `history = '[7]'`, `created_at = 'infinity'`,
		`slot = now(), slot_zone = 'No/Where'`,
	} {
		if _, err := r.pool.Exec(t.Context(), "update rebase.jobs set "+set+" where id = $1", ids[2*i]); err == nil {
			aside++
		}
	}
	r.handle("x", nil, succeed)
	r.until(func() bool { return r.count("status = 'succeeded'") == 20-aside }, "the rest have run")
	r.until(func() bool {
		return r.count("status = 'pending' and attempts = 0 and run_at > now() + interval '30 seconds'") == aside
	}, "they are put aside")
	require.Len(t, r.log.matching("ERROR", "a row can't be read and is put aside"), aside)
}
