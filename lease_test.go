package rebase_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J10, J12, J24: who holds a job, for how long, and what an attempt may write that no longer does.

// shortLease is the shortest that there is.
var shortLease = rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}

// Q1, J10: a handler that runs for three visibility timeouts keeps its job, although
// another worker would take it.
func TestASlowHandlerOnALiveWorkerKeepsItsJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	begun := make(chan struct{})
	r.handle("x", &shortLease, func(ctx context.Context, _ *rebase.Job) error {
		close(begun)
		select {
		case <-time.After(3 * shortLease.VisibilityTimeout):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	await(t, begun)
	newRigOn(t, r.pool).handle("x", &shortLease, succeed)
	j := r.ends(id, rebase.StatusSucceeded)
	require.Equal(t, 1, j.Runs)
	require.GreaterOrEqual(t, j.FinishedAt.Sub(*j.StartedAt), 3*shortLease.VisibilityTimeout)
}

// Q6, J12: an attempt that lost its claim writes nothing, whatever it returns; the same
// worker holds the new claim, with the same attempt number. Logged once.
func TestAStaleAttemptWritesNothing(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{
		"success": nil, "failure": errBoom, "permanent": rebase.Permanent(errBoom), "snooze": rebase.Snooze(time.Hour), "cancelled": rebase.ErrCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
			second, finish := make(chan int, 1), make(chan struct{})
			s := r.handle("x", nil, func(_ context.Context, job *rebase.Job) error {
				if job.Runs == 1 {
					r.lose(id)
					r.q.Wake()
					require.Equal(t, 1, await(t, second), "the same number")
					return result
				}
				second <- job.Attempts
				<-finish
				return nil
			})
			r.until(func() bool { return len(r.log.matching("WARN", "lease lost")) == 1 }, "the loss is logged")
			r.until(func() bool { return r.count("status = 'running' and runs = 2 and history is null") == 1 }, "the second run stands untouched")
			close(finish)
			j := r.ends(id, rebase.StatusSucceeded)
			require.NoError(t, s.stop())
			require.Equal(t, 2, j.Runs)
			require.Empty(t, j.LastError)
			require.Len(t, r.log.matching("lease"), 1)
		})
	}
}

// J12: a handler whose job was taken is told at the next heartbeat.
func TestAHandlerThatLostItsJobIsToldAtTheNextHeartbeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	cause := make(chan error, 1)
	w := r.worker(&shortLease)
	w.Register("x", func(ctx context.Context, job *rebase.Job) error {
		if job.Runs == 2 {
			return nil
		}
		r.lose(id)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	}, &rebase.TaskOptions{Concurrency: 1})
	r.start(w)
	require.ErrorIs(t, await(t, cause), rebase.ErrLeaseLost)
	require.Equal(t, 2, r.ends(id, rebase.StatusSucceeded).Runs)
}

// Q7, J12: the heartbeats hang: the handler's context ends before the lease can have.
func TestWhenHeartbeatsHangTheHandlerIsToldBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	id := r.enqueue("x", nil)
	begun, told := make(chan struct{}), make(chan error, 1)
	far.handle("x", &shortLease, func(ctx context.Context, job *rebase.Job) error {
		if job.Runs > 1 {
			return nil
		}
		close(begun)
		<-ctx.Done()
		if r.count("id = $1 and locked_until > clock_timestamp()", id) == 0 {
			told <- errBoom
		}
		told <- context.Cause(ctx)
		return context.Cause(ctx)
	})
	await(t, begun)
	proxy.BlackHole(true)
	require.ErrorIs(t, await(t, told), rebase.ErrLeaseLost)
	proxy.BlackHole(false)
	proxy.Cut()
	// J9: the attempt that the local deadline cancelled is given back.
	j := r.ends(id, rebase.StatusSucceeded)
	require.Equal(t, 1, j.Attempts)
	require.Equal(t, 2, j.Runs)
}

// Q13: a black hole on all connections: every call has a deadline; the worker recovers.
func TestAWorkerRecoversFromABlackHole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	first := r.enqueue("x", nil)
	far.handle("x", &shortLease, succeed)
	r.ends(first, rebase.StatusSucceeded)
	proxy.BlackHole(true)
	second := r.enqueue("x", nil)
	r.until(func() bool { return len(far.log.matching("WARN", "can't be reached")) > 0 }, "it has noticed")
	proxy.BlackHole(false) // what was in the hole stays lost
	cut := time.Now()
	r.ends(second, rebase.StatusSucceeded)
	require.Less(t, time.Since(cut), 15*time.Second, "long before the next look of an idle worker")
	require.LessOrEqual(t, len(far.log.matching("WARN", "can't be reached")), 2, "a line for each change, not for each try")
}

// Q12: the reply to a claim is lost after the server has committed it: the rows come
// back soon, and no attempt is used.
func TestAClaimWhoseReplyWasLostIsGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behindWith(execMode)
	var lost atomic.Bool
	proxy.DropReplies(func(b []byte) bool {
		return bytes.Contains(b, []byte("insert into rebase.claims")) && lost.CompareAndSwap(false, true)
	})
	ids := r.enqueueMany("x", 5, nil)
	far.handle("x", nil, succeed)
	r.until(func() bool { return r.count("status = 'succeeded'") == len(ids) }, "all have run, long before the lease of 5 min has ended")
	require.True(t, lost.Load())
	require.Equal(t, len(ids), r.count("attempts = 1 and runs between 1 and 2"))
	require.Positive(t, r.count("runs = 2"), "the lost claim had been committed")
}

// J12: while it can't be given back, because the table refuses or somebody is in the way, the results
// of other jobs are recorded all the same.
func TestAClaimThatCannotBeGivenBackHoldsUpNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuse("status = 'pending'")
	far, proxy := r.behindWith(execMode)
	var lost atomic.Bool
	proxy.DropReplies(func(b []byte) bool {
		return bytes.Contains(b, []byte("insert into rebase.claims")) && lost.CompareAndSwap(false, true)
	})
	stuck := r.enqueue("x", nil)
	far.handle("x", nil, succeed)
	r.until(func() bool { return len(far.log.matching("WARN", "can't be given back", "refused by a trigger")) == 1 }, "it was tried in vain")
	for range 3 {
		r.ends(r.enqueue("x", nil), rebase.StatusSucceeded)
	}
	require.Equal(t, rebase.StatusRunning, r.job(stuck).Status)
	require.Empty(t, far.log.matching("a statement of the worker failed"))
	require.Len(t, far.log.matching("can't be given back"), 1, "said once")
	r.exec("drop trigger refuse on rebase.jobs")
	r.ends(stuck, rebase.StatusSucceeded)
}

// execMode sends every statement's text, so that a proxy can tell them apart.
func execMode(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }

// Q51, J24: results are sent again after a lost reply: recorded once, one history entry,
// no talk of a lost lease.
func TestResultsWhoseReplyWasLostAreRecordedOnce(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"set status = 'succeeded'", "jsonb_build_object('attempt'"} {
		r := newRig(t)
		far, proxy := r.behindWith(execMode)
		var lost atomic.Bool
		proxy.DropReplies(func(b []byte) bool { return bytes.Contains(b, []byte(statement)) && lost.CompareAndSwap(false, true) })
		id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
		s := far.handle("x", nil, func(context.Context, *rebase.Job) error {
			if strings.Contains(statement, "jsonb") {
				return errBoom
			}
			return nil
		})
		r.until(func() bool { return r.count("finished_at is not null") == 1 && lost.Load() }, "it is recorded")
		require.NoError(t, s.stop())
		j := r.job(id)
		require.Equal(t, 1, j.Runs)
		require.LessOrEqual(t, len(j.History), 1)
		require.Empty(t, far.log.matching("lease lost"))
	}
}

// J24: the database is away when handlers finish: the results are kept and written when it is back.
func TestResultsAreKeptWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	ids := r.enqueueMany("x", 5, &rebase.EnqueueOptions{MaxAttempts: 1})
	var begun sync.WaitGroup
	begun.Add(len(ids))
	away := make(chan struct{})
	far.handle("x", nil, func(context.Context, *rebase.Job) error { begun.Done(); <-away; return nil })
	begun.Wait()
	kill(proxy)
	close(away)
	r.until(func() bool { return len(far.log.matching("WARN", "can't be reached")) > 0 }, "it has noticed")
	require.Equal(t, len(ids), r.count("status = 'running'"))
	proxy.Refuse(false)
	r.until(func() bool { return r.count("status = 'succeeded' and runs = 1 and attempts = 1") == len(ids) }, "all are recorded")
}

// Q55, J9: away for longer than the lease, four workers, max attempts 1, handlers that
// go on and handlers that obey: nothing fails, nothing is run by two at once.
func TestAnOutageLongerThanTheLeaseCostsNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	const n = 16
	ids := r.enqueueMany("x", n, &rebase.EnqueueOptions{MaxAttempts: 1})
	var now [n + 1]atomic.Int32
	var twice atomic.Bool
	begun, back := make(chan struct{}, 10*n), make(chan struct{})
	for i := range 4 {
		other := newRigOn(t, far.pool)
		o := shortLease
		o.VisibilityTimeout = 6 * time.Second // a machine that is busy connects slowly, and so renews late
		o.Concurrency = n / 4
		other.handle("x", &o, func(ctx context.Context, job *rebase.Job) error {
			if now[job.ID].Add(1) > 1 {
				twice.Store(true)
			}
			defer now[job.ID].Add(-1)
			begun <- struct{}{}
			if i%2 == 0 { // obeys
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-back:
					return nil
				}
			}
			<-back
			return nil
		})
	}
	for range ids {
		await(t, begun)
	}
	kill(proxy)
	r.until(func() bool {
		return r.count("status = 'running' and locked_until < clock_timestamp() - interval '1 second'") == n
	}, "all leases have run out")
	proxy.Refuse(false)
	r.until(func() bool { return r.count("locked_until < clock_timestamp()") == 0 }, "everything is held or given back")
	close(back)
	r.until(func() bool { return r.count("status = 'succeeded'") == n }, "all succeed")
	require.False(t, twice.Load())
	require.Equal(t, n, r.count("attempts = 1 and last_error is null"))
}

// Q11: results can't be written for three visibility timeouts: the jobs that wait to be
// recorded keep their leases, and nothing runs twice. J24: the others go on.
func TestResultsThatCannotBeWrittenKeepTheirLeases(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuse("status = 'succeeded' and new.task = 'stuck'")
	r.enqueueMany("stuck", 3, nil)
	w := r.worker(&shortLease)
	w.Register("stuck", succeed, nil)
	w.Register("free", succeed, nil)
	r.start(w)
	newRigOn(t, r.pool).handle("stuck", &shortLease, succeed)
	began := ask[time.Time](r, "select clock_timestamp()")
	free := r.enqueueMany("free", 200, nil)
	r.until(func() bool { return r.count("task = 'free' and status = 'succeeded'") == len(free) }, "the rest are recorded")
	r.until(func() bool {
		return r.count("status = 'running' and locked_until > $1::timestamptz + interval '10 seconds'", began) == 3
	}, "three timeouts have passed")
	r.exec("drop trigger refuse on rebase.jobs")
	r.until(func() bool { return r.count("task = 'stuck' and status = 'succeeded' and runs = 1") == 3 }, "they are recorded")
}

// J24: one row that a trigger of the user's refuses never blocks the rest of its batch,
// and is written when the table takes it.
func TestOneBadRowDoesNotBlockTheBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany("x", 300, nil)
	r.refuse("status = 'failed' and new.id = 150")
	r.handle("x", nil, func(_ context.Context, job *rebase.Job) error {
		if job.ID == ids[149] {
			return rebase.Permanent(errBoom)
		}
		return nil
	})
	r.until(func() bool { return r.count("status = 'succeeded'") == 299 }, "the rest are recorded")
	r.until(func() bool { return len(r.log.matching("ERROR", "can't be recorded", "job_id=150 ")) > 0 }, "it is logged")
	more := r.enqueue("x", nil)
	r.ends(more, rebase.StatusSucceeded)
	r.exec("drop trigger refuse on rebase.jobs")
	r.ends(ids[149], rebase.StatusFailed)
}
