package rebase_test

// The gate: a NOTIFY in every enqueue would serialise the commits of the whole cluster,
// so enqueues pay for one only while somebody who may serve the task sleeps. The tests
// read who holds which advisory locks, and listen to what is really notified.

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// N1: the locks, one for each bucket of its tasks, are held while the worker is asleep and
// gone when it has stopped.
func TestN1ASleeperHoldsTheLocksOfItsTasksAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a", "b", "c")
	want := ask[int](r, `select count(distinct hashtext(t) & 15)::int from unnest('{a,b,c}'::text[]) t`)
	require.Equal(t, want, r.locks())
	require.NoError(t, s.stop())
	r.until(func() bool { return r.locks() == 0 }, "the locks are gone")
}

// N1: with all slots busy a worker can't take a job anyway, so nobody need notify it. It
// holds the locks again when it sleeps again.
func TestN1ABusyWorkerHoldsNoLocks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{Concurrency: 2})
	begun, finish := make(chan int64, 10), make(chan struct{})
	w.Register("a", func(_ context.Context, job *rebase.Job) error {
		begun <- job.ID
		<-finish
		return nil
	}, nil)
	r.start(w)
	t.Cleanup(func() { close(finish) })
	r.until(w.Asleep, "the worker is asleep")
	require.Positive(t, r.locks())

	r.enqueueMany("a", 2, nil)
	await(t, begun)
	await(t, begun)
	r.until(func() bool { return r.locks() == 0 }, "the locks are given up")
	ear := r.ear()
	third := one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil))
	require.Empty(t, ear.heard())

	finish <- struct{}{}
	require.Equal(t, third, await(t, begun), "a freed slot finds it without a NOTIFY")
	finish <- struct{}{}
	finish <- struct{}{}
	r.until(w.Asleep, "the worker is asleep again")
	require.Positive(t, r.locks())
}

// N1: under a flood the worker gives its locks up and looks by itself, so that enqueues
// get fast again; no job is forgotten meanwhile, and afterwards it sleeps again.
func TestN1UnderAFloodNotEveryEnqueueNotifies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	ear := r.ear()
	q := r.elsewhere(rebase.Gated)
	const many, each = 8, 100
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for range each {
				if _, err := q.Enqueue(t.Context(), "a", nil, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	seen := map[int64]bool{}
	for range many * each {
		seen[await(t, s.began)] = true
	}
	require.Len(t, seen, many*each)
	n := len(ear.heard())
	require.Less(t, n, many*each, "the locks were never given up")
	t.Logf("%d of %d enqueues notified", n, many*each)
	s.sleeps()
	require.Equal(t, 1, r.locks())
}

// Q60: a sleeper of another task costs an enqueuer nothing.
func TestQ60ASleeperOfAnotherTaskCostsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := ask[string](r, `select 'b' || n from generate_series(1, 1000) n where hashtext('b' || n) & 15 <> hashtext('a') & 15 limit 1`)
	s := r.sleeper(nil, other)
	ear := r.ear()
	for range 5 {
		one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil))
	}
	require.Empty(t, ear.heard())
	id := one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), other, nil, nil))
	require.Equal(t, []string{other}, ear.heard())
	s.starts(id)
}

// Q60: a task that shares the bucket may cost a NOTIFY, but wakes nobody who doesn't
// serve it.
func TestQ60ANeighbourInTheBucketIsNotWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	neighbour := ask[string](r, `select 'b' || n from generate_series(1, 1000) n where hashtext('b' || n) & 15 = hashtext('a') & 15 limit 1`)
	s := r.sleeper(nil, "a")
	before := s.UntilLook()
	one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), neighbour, nil, nil))
	id := one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil))
	s.starts(id)
	require.Positive(t, before)
}

// Q60: a frozen process can't make everybody pay for ever: the server ends its session
// after 90 s without a word. Its connection is stalled, not closed.
func TestQ60AFrozenSleeperLosesItsLocks(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("takes 90 s: set REBASE_LONG=1")
	}
	r := newRig(t)
	far, proxy := r.behind()
	r.sleeper(&rebase.WorkerOptions{Listen: func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.ConnectConfig(ctx, far.pool.Config().ConnConfig)
	}}, "a")
	require.Equal(t, 1, r.locks())
	proxy.Stall(true)
	frozen := time.Now()
	require.Eventually(t, func() bool { return r.locks() == 0 }, 2*time.Minute, time.Second)
	require.Less(t, time.Since(frozen), 95*time.Second)
	proxy.Stall(false)
}

// Many workers in one database: each wake-up is one job, and one of them starts it.
func TestN1ManySleepersShareOneJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := make(chan int64, 100)
	var all []*rebase.Worker
	for range 4 {
		w := r.worker(nil)
		w.Register("a", func(_ context.Context, job *rebase.Job) error {
			began <- job.ID
			return nil
		}, nil)
		r.start(w)
		all = append(all, w)
	}
	for _, w := range all {
		r.until(w.Asleep, "all sleep")
		w.RenewNow() // it counts its peers
	}
	for range 20 {
		id := one(t)(r.elsewhere(rebase.Gated).Enqueue(t.Context(), "a", nil, nil))
		asked := time.Now()
		require.Equal(t, id, await(t, began))
		require.Less(t, time.Since(asked), soon)
	}
}
