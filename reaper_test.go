package rebase_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J8, J11: the jobs of workers that died come back, and only those. A worker that died is
// one behind a proxy that was cut off for good.

// crash claims jobs of the task with a worker that dies when its handler runs for the
// first time, and lets the leases run out.
func (r *rig) crash(task string, opts *rebase.WorkerOptions, dies func(*rebase.Job) bool) {
	r.t.Helper()
	far, proxy := r.behind()
	o := rebase.WorkerOptions{}
	if opts != nil {
		o = *opts
	}
	o.ShutdownTimeout = 30 * time.Millisecond // nobody waits for the dead
	dead := make(chan struct{}, 1)
	s := far.handle(task, &o, func(ctx context.Context, job *rebase.Job) error {
		if !dies(job) {
			return nil
		}
		kill(proxy)
		select {
		case dead <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	await(r.t, dead)
	s.cancel()
	await(r.t, s.done)
	r.expire()
}

func always(*rebase.Job) bool { return true }

// Q2, J11: the jobs of a dead worker come back with a reason, and run.
func TestTheJobsOfADeadWorkerComeBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	r.crash("x", nil, always)
	r.reap()
	j := r.job(id)
	require.Equal(t, rebase.StatusPending, j.Status)
	require.Equal(t, 1, j.Attempts, "J8: counted at the claim")
	require.Equal(t, time.Second, j.RunAt.Sub(j.UpdatedAt), "with backoff")
	require.Contains(t, j.LastError, "stopped renewing its lease")
	require.Equal(t, "crashed", j.History[0].Outcome)
	r.exec("update rebase.jobs set run_at = now()")
	require.Equal(t, 1, r.once("x", nil, succeed))
	require.Equal(t, rebase.StatusSucceeded, r.job(id).Status)
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
}

// Q4: a crash on the last attempt → failed with a reason, one Error line, its key free.
func TestACrashOnTheLastAttemptIsADeadLetterWithAReason(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1, IdempotencyKey: "k"})
	r.crash("x", nil, always)
	r.reap()
	j := r.job(id)
	require.Equal(t, rebase.StatusFailed, j.Status)
	require.Contains(t, j.LastError, "the process was killed, crashed or cut off")
	require.Len(t, r.log.matching("ERROR", "its worker died with its last attempt"), 1)
	r.enqueue("x", &rebase.EnqueueOptions{IdempotencyKey: "k"})
}

// Q3, Q54, J8: a job that kills its process each time, among many fast ones that were
// claimed ahead: only it fails, with a reason that tells; the others use one attempt.
func TestOnlyTheJobThatKillsItsProcessFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany("x", 300, nil)
	poison := ids[150]
	r.exec("update rebase.jobs set run_at = run_at - interval '1 hour' where id = $1 or id < 100", poison)
	isPoison := func(job *rebase.Job) bool { return job.ID == poison }
	// The first time it stands among those claimed ahead: whether it had begun nobody can
	// tell, so that one may be free. From then on it is claimed alone and each one counts.
	for n := 0; r.job(poison).Status == rebase.StatusPending; n++ {
		require.Less(t, n, 4)
		r.exec("update rebase.jobs set run_at = now() - case when id = $1 then interval '2 hours' else '0' end where crashes <> 0 and status = 'pending'", poison)
		r.crash("x", nil, isPoison)
		r.reap()
	}
	j := r.job(poison)
	require.Equal(t, rebase.StatusFailed, j.Status)
	require.Contains(t, j.LastError, " times in a row")
	r.exec("update rebase.jobs set run_at = now() where crashes <> 0 and status = 'pending'")
	r.handle("x", nil, succeed)
	r.until(func() bool { return r.count("status = 'succeeded'") == 299 }, "all others succeed")
	require.Equal(t, 299, r.count("status = 'succeeded' and attempts <= 2"))
}

// reap takes back expired claims, as a process does that has been able to renew for long enough.
func (r *rig) reap() {
	r.t.Helper()
	reaper := rebase.NewReaper(r.worker(nil))
	defer reaper.Close()
	tokens, err := reaper.Look(r.t.Context(), 365*24*time.Hour)
	require.NoError(r.t, err)
	require.NoError(r.t, reaper.Write(r.t.Context(), tokens))
}

// J8: a job that was once reaped is never claimed ahead again: alone, into a free slot.
func TestAReapedJobIsClaimedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.enqueue("x", nil)
	r.crash("x", nil, always)
	r.reap()
	r.exec("update rebase.jobs set run_at = now()")
	r.enqueueMany("x", 1000, nil)
	var ahead atomic.Int32
	r.handle("x", nil, func(_ context.Context, job *rebase.Job) error {
		if job.ID == bad {
			ahead.Store(int32(1 + r.count("status = 'running' and started_at is null")))
		}
		return nil
	})
	r.until(func() bool { return r.count("status = 'succeeded'") == 1001 }, "all are done")
	require.EqualValues(t, 1, ahead.Load(), "nothing claimed ahead beside it")
}

// Q10, J11: the reaper stalls between its look and its write; meanwhile the job finishes,
// is renewed, or is claimed anew: the row is untouched.
func TestAReaperThatStallsTouchesNoLiveLease(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]string{
		"finished": `update rebase.jobs set status = 'succeeded', fence = -fence, finished_at = now(), locked_until = null`,
		"renewed":  `update rebase.jobs set locked_until = now() + interval '1 minute'`,
		"kept":     `update rebase.claims set locked_until = now() + interval '1 minute'`, // its row refuses renewals
		"again":    `update rebase.jobs set fence = 77, locked_until = now() - interval '1 second'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.enqueue("x", nil)
			r.crash("x", nil, always)
			reaper := rebase.NewReaper(r.worker(nil))
			defer reaper.Close()
			tokens, err := reaper.Look(t.Context(), time.Hour)
			require.NoError(t, err)
			require.Len(t, tokens, 1)
			r.exec(meanwhile)
			before := ask[string](r, "select to_jsonb(j)::text from rebase.jobs j")
			require.NoError(t, reaper.Write(t.Context(), tokens))
			require.Equal(t, before, ask[string](r, "select to_jsonb(j)::text from rebase.jobs j"))
		})
	}
}

// J9: a process that could not renew for long enough reaps nobody.
func TestAReaperWithoutAnUnbrokenPeriodLeavesClaimsAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("x", nil)
	r.crash("x", nil, always)
	reaper := rebase.NewReaper(r.worker(nil))
	defer reaper.Close()
	tokens, err := reaper.Look(t.Context(), 99*time.Second) // the lease is 5 min, its third 100 s
	require.NoError(t, err)
	require.Empty(t, tokens)
}

// Q8: a restarted process with the same name is not taken for its predecessor.
func TestAWorkerOfTheSameNameIsAnotherWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	begun, release := make(chan string, 2), make(chan struct{})
	h := func(_ context.Context, job *rebase.Job) error { begun <- job.LockedBy; <-release; return nil }
	named := rebase.WorkerOptions{Name: "host-1234"}
	r.handle("x", &named, h)
	first := await(t, begun)
	second := newRigOn(t, r.pool)
	second.handle("x", &named, h)
	other := r.enqueue("x", nil)
	r.until(func() bool { return r.count("status = 'running'") == 2 }, "both run")
	require.Equal(t, 1, r.job(id).Runs)
	require.Equal(t, first, r.job(id).LockedBy)
	r.until(func() bool {
		return ask[int](r, "select count(distinct id)::int from rebase.workers where id like 'host-1234-%'") == 2
	}, "there are two")
	close(release)
	r.ends(id, rebase.StatusSucceeded)
	r.ends(other, rebase.StatusSucceeded)
}

// Q53: the database's clock went an hour back: a dead worker's lease doesn't hold an hour longer.
func TestALeaseFromBeforeTheClockWentBackEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	r.crash("x", &shortLease, always)
	r.exec("update rebase.jobs set locked_until = now() + interval '1 hour'")
	r.exec("update rebase.claims set locked_until = now() + interval '1 hour'")
	r.handle("x", &shortLease, succeed)
	require.Equal(t, 2, r.ends(id, rebase.StatusSucceeded).Runs)
}

// Q56: a Retry commits while a purge and a reaper come by: the row lives.
func TestARetryThatIsUnderWayIsNotPurged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	r.once("x", nil, succeed)
	r.exec("update rebase.jobs set finished_at = now() - interval '1 year'")
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "update rebase.jobs set status = 'pending', fence = 0, finished_at = null, run_at = now() + interval '1 hour' where id = $1", id)
	require.NoError(t, err)
	mark := r.enqueue("x", nil)
	r.once("x", nil, succeed)
	r.exec("update rebase.jobs set finished_at = now() - interval '1 year' where id = $1", mark)
	r.handle("x", nil, succeed)
	r.until(func() bool { return r.count("id = $1", mark) == 0 }, "the purge has come by")
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, rebase.StatusPending, r.job(id).Status)
}

// J6: a task that no live worker serves is warned of, once per change.
func TestATaskThatNobodyServesIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("misspelt", nil)
	r.exec("update rebase.jobs set run_at = now() - interval '1 minute'")
	look := rebase.NewReaper(r.worker(nil))
	defer look.Close()
	for range 3 {
		require.NoError(t, look.Unserved(t.Context()))
	}
	require.Len(t, r.log.matching("WARN", "no live worker serves", "task=misspelt"), 1)
	require.Zero(t, r.job(id).Attempts)
	r.handle("misspelt", &rebase.WorkerOptions{ShutdownTimeout: 30 * time.Millisecond}, func(ctx context.Context, _ *rebase.Job) error { <-ctx.Done(); return nil })
	r.until(func() bool { return ask[int](r, "select count(*)::int from rebase.workers") == 1 }, "it is served")
	require.NoError(t, look.Unserved(t.Context()))
	require.Len(t, r.log.matching("INFO", "served again"), 1)
}

// J10: taking back the jobs of many dead workers doesn't keep the reaper's own leases from being
// renewed, and none is forgotten: not behind those whose rows are locked either.
func TestJ10TheReaperTakesTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const claims, each = 300, 2
	r.enqueueMany("dead", claims*each, nil)
	r.exec(`update rebase.jobs j set status = 'running', attempts = 1, runs = 1, fence = 1000000 + (id - 1) / $1, locked_by = 'gone',
		locked_until = now() - interval '1 min', started_at = now() - interval '2 min'`, each)
	r.exec(`insert into rebase.claims (token, locked_until, lease, worker, ids)
		select fence, now() - interval '1 min', interval '3 s', 'gone', array_agg(id) from rebase.jobs group by fence`)
	release := r.hold(1)
	r.exec(`create function slow() returns trigger language plpgsql as $$ begin perform pg_catalog.pg_sleep(0.1); return null; end $$`)
	r.exec(`create trigger slow after update on rebase.jobs for each statement execute function slow()`)
	s := newStepper(t, r.pool, nil, "x")
	turns := 0
	for more := true; more; turns++ {
		var err error
		more, err = s.ReapTurn()
		require.NoError(t, err)
		require.NoError(t, s.Renew(), "between the turns")
	}
	require.Greater(t, turns, 1, "it took turns")
	require.Equal(t, 1, r.count("status = 'running'"))
	release()
	require.NoError(t, s.Reap())
	require.Zero(t, r.count("status = 'running'"))
}

// deadClaims makes n claims of one job each whose worker died; the update of one of these jobs takes
// longer than the reaper's turn and is refused.
func (r *rig) deadClaims(task string, n int) {
	ids := r.enqueueMany(task, n, nil)
	r.exec(`update rebase.jobs j set status = 'running', attempts = 1, runs = 1, fence = 1000000 + id, locked_by = 'gone',
		locked_until = now() - interval '1 min', started_at = now() - interval '2 min'`)
	r.exec(`insert into rebase.claims (token, locked_until, lease, worker, ids)
		select fence, now() - interval '1 min', interval '3 s', 'gone', array_agg(id) from rebase.jobs group by fence`)
	r.exec(fmt.Sprintf(`create function poison() returns trigger language plpgsql as $$ begin
		if new.id = %d and new.crashes > old.crashes then perform pg_catalog.pg_sleep(0.3); raise exception 'no'; end if; return new; end $$`, ids[n/2]))
	r.exec(`create trigger poison before update on rebase.jobs for each row execute function poison()`)
}

// J11: a refusal that takes longer than a turn holds up no other claim's jobs.
func TestJ11ASlowRefusalStopsNoReaper(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadClaims("dead", 5)
	s := newStepper(t, r.pool, nil, "x")
	require.NoError(t, s.Reap())
	require.Equal(t, 1, r.count("status = 'running'"))
}

// J11: nor does it keep RunOnce from its end.
func TestJ11ASlowRefusalKeepsNoRunOnceFromItsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadClaims("x", 5)
	r.once("x", &shortLease, succeed)
	require.Equal(t, 1, r.count("status = 'running'"))
	require.NotEmpty(t, r.log.matching("can't be taken back"))
}

// J11: a lease that was found to end in a far future is looked at again when it is taken back.
func TestJ11ARenewedClaimIsNotTakenBackAsAFarOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("x", nil)
	s := newStepper(t, r.pool, nil, "x")
	_, err := s.Claim("x", 1, false, false)
	require.NoError(t, err)
	require.NoError(t, newStepper(t, r.pool, nil, "x").ReapFar(ask[int64](r, "select token from rebase.claims")))
	require.Equal(t, 1, r.count("status = 'running'"))
}
