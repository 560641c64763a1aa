package rebase_test

// J26, N2: lanes of which nothing can be claimed now, because their jobs are delayed, wait for a
// retry or run elsewhere, are looked at and left alone, however many they are.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// barren makes so many lanes of a task that have one job each, due in an hour, and returns the
// name of the last.
func (r *rig) barren(task string, lanes int) (last string) {
	r.t.Helper()
	r.exec(`insert into rebase.jobs (task, lane, payload, run_at)
		select $1, 'lane ' || lpad(n::text, 6, '0'), 'null', now() + interval '1 hour' from generate_series(1, $2::int) n`, task, lanes)
	return fmt.Sprintf("lane %06d", lanes)
}

// besideBarren runs a test beside as many such lanes as a claim with little room visits, and an idle
// look, and one fewer, one more, or many more.
func besideBarren(t *testing.T, f func(r *rig, n int, last string)) {
	for _, n := range []int{1, 20, 99, 100, 101, 1000, 10_000, 10_001, 25_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			f(r, n, r.barren("x", n))
		})
	}
}

// J26, N2: a worker falls asleep beside them, and is woken for a job in the last of them.
func TestAWorkerSleepsBesideLanesOfWhichNothingIsDue(t *testing.T) {
	t.Parallel()
	besideBarren(t, func(r *rig, _ int, last string) {
		s := r.drowsy(nil, "x", "y")
		r.until(s.Resting, "the worker rests")
		q := r.elsewhere(rebase.Gated)
		for _, opts := range []*rebase.EnqueueOptions{{Lane: last}, {Lane: "lane"}, {}} {
			done, err := q.Enqueue(r.t.Context(), "x", nil, opts)
			require.NoError(r.t, err)
			require.Equal(r.t, done.ID, await(r.t, s.began))
		}
		r.until(s.Resting, "the worker rests again")
	})
}

// J15: RunOnce runs what is due in the last of them, and ends.
func TestRunOnceEndsBesideLanesOfWhichNothingIsDue(t *testing.T) {
	t.Parallel()
	besideBarren(t, func(r *rig, n int, last string) {
		id := r.enqueue("x", &rebase.EnqueueOptions{Lane: last})
		again := r.enqueue("x", &rebase.EnqueueOptions{Lane: "lane", MaxAttempts: 2}) // the retry is due in a lane that was looked at
		ran := r.once("x", nil, func(_ context.Context, job *rebase.Job) error {
			if job.ID == again {
				return errBoom
			}
			return nil
		})
		require.Equal(r.t, 3, ran)
		require.Equal(r.t, rebase.StatusSucceeded, r.job(id).Status)
		require.Equal(r.t, rebase.StatusFailed, r.job(again).Status)
		require.Equal(r.t, n, r.count("status = 'pending'"))
	})
}

// J26, N1: with a slot for one job only, tasks with many such lanes don't hide what is due in another.
func TestTasksWithLanesOfWhichNothingIsDueHideNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, task := range []string{"a", "b", "c"} {
		r.barren(task, 12_000)
	}
	s := r.drowsy(&rebase.WorkerOptions{Concurrency: 1}, "a", "b", "c", "d")
	r.until(s.Resting, "the worker rests")
	q := r.elsewhere(rebase.Gated)
	for _, task := range []string{"d", "a", "b", "c"} {
		done, err := q.Enqueue(t.Context(), task, nil, &rebase.EnqueueOptions{Lane: "lane 999999"})
		require.NoError(t, err)
		require.Equal(t, done.ID, await(t, s.began), task)
	}
}

// J26, N1: nor do wakes that come so often that no look at all lanes ends between two of them.
func TestFrequentWakesDoNotHideTheLastLanes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	last := r.barren("x", 25_000)
	s := r.drowsy(nil, "x")
	r.until(s.Resting, "the worker rests")
	waking := make(chan struct{})
	go func() {
		defer close(waking)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ; ; <-tick.C {
			select {
			case id := <-s.began:
				s.began <- id
				return
			case <-t.Context().Done():
				return
			default:
				r.q.Wake()
			}
		}
	}()
	r.exec(`insert into rebase.jobs (task, lane, payload) values ('x', $1, 'null')`, last) // which notifies nobody
	await(t, waking)
}

// J8, J11: a reaped job is claimed beside them.
func TestAReapedJobIsClaimedBesideLanesOfWhichNothingIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.barren("x", 25)
	s := r.drowsy(nil, "x", "y")
	r.until(s.Resting, "the worker rests")
	id := r.enqueue("y", &rebase.EnqueueOptions{Delay: time.Hour})
	r.exec("update rebase.jobs set crashes = 1, run_at = now() where id = $1", id) // as the reaper leaves it
	r.q.Wake()
	require.Equal(t, id, await(t, s.began))
}

// J8, J11: a reaped job doesn't wait for the end of a backlog of which nothing is claimed ahead.
func TestAReapedJobDoesNotWaitForTheEndOfABacklog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany("x", 1000, nil)
	reaped := ids[len(ids)-1]
	first, done := make(chan int, 1), make(chan struct{})
	w := r.worker(&rebase.WorkerOptions{Concurrency: 2})
	begun := make(chan struct{}, len(ids))
	w.Register("x", func(ctx context.Context, job *rebase.Job) error {
		begun <- struct{}{}
		if job.ID == reaped {
			first <- len(begun)
			close(done)
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // the backlog takes ten seconds
		}
		return nil
	}, &rebase.TaskOptions{LaneConcurrency: 1000}) // so nothing is claimed ahead
	r.start(w)
	r.until(func() bool { return len(begun) > 10 }, "it works on the backlog") // the first look asks for reaped jobs anyway
	r.exec("update rebase.jobs set crashes = 1 where id = $1", reaped)
	require.Less(t, await(t, first), len(ids)/2, "so many jobs had begun before it")
}

// N1, J3: a job that is due in hundreds of years doesn't hide the one that is due next.
func TestAJobInTheFarFutureHidesNoOther(t *testing.T) {
	t.Parallel()
	for name, lane := range map[string]string{"with a lane": "lane", "without": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.elsewhere(rebase.Gated)
			_, err := q.Enqueue(t.Context(), "far", nil, &rebase.EnqueueOptions{Lane: lane, RunAt: time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC)})
			require.NoError(t, err)
			s := r.drowsy(nil, "near", "far")
			r.until(s.Resting, "the worker rests")
			done, err := q.Enqueue(t.Context(), "near", nil, &rebase.EnqueueOptions{Lane: lane, Delay: time.Second})
			require.NoError(t, err)
			s.startsWithin(done.ID, 10*time.Second) // not by the next look, 30 s after the last
		})
	}
}
