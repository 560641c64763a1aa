//go:build unix

package main

// Processes that are killed, and jobs that kill them.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Q2, J8, J11: kills at random; nothing is lost, nothing failed, and what ran twice had
// lost its lease.
func TestKilledProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 3)
	b.start(2)
	plan := Plan{Jobs: 1500, Kills: 4, Workers: 2, MaxAttempts: 3, Longest: 100 * time.Millisecond}
	made := make(chan error, 1)
	go func() { made <- plan.produce(b.ctx, b.maker, 7) }()
	require.NoError(t, plan.kill(b.ctx, b.fleet, b.rand))
	require.NoError(t, <-made)
	report := b.finish(Expect{})
	require.Equal(t, plan.Kills, report.Kills)
	require.Equal(t, plan.Jobs, report.Jobs)
	require.NotZero(t, report.Reaped, "no kill hit a job")
}

// Q2, J10: a long and a short job of a process that was killed both run again within one
// visibility timeout and a reaper's period, without a hand.
func TestJobsOfAKilledProcessComeBackInTime(t *testing.T) {
	t.Parallel()
	b := newBed(t, 2, 3)
	victim := b.start(1)[0]
	b.make(2, Payload{For: 2 * time.Second})
	b.await("both to run", runningOn, victim.Name, 2)
	b.start(1) // it can reap long before the lease ends
	require.NoError(t, victim.Kill())
	b.await("both to run again", "select count(*) = 2 from crash.runs where run = 2")
	var late time.Duration
	err := b.pool.QueryRow(b.ctx, `
select max((h->>'ended_at')::timestamptz - s.at)
from crash.signals s, rebase.jobs j, jsonb_array_elements(j.history) h
where h->>'outcome' = 'crashed'`).Scan(&late)
	require.NoError(t, err)
	require.LessOrEqual(t, late, lease+lease/4+time.Second, "a second is for a busy machine")
	b.finish(Expect{})
}

// Q4, J11: killed during its last attempt, a job is a dead letter with a reason, and its
// key is free.
func TestAKillDuringTheLastAttemptMakesADeadLetter(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1, 1)
	b.maker.options.IdempotencyKey = "key"
	victim := b.start(1)[0]
	dead := b.make(1, Payload{For: time.Hour})
	b.await("it to run", runningOn, victim.Name, 1)
	require.NoError(t, victim.Kill())
	b.expire()
	b.start(1)
	b.await("the dead letter", "select status = 'failed' and last_error <> '' from rebase.jobs where id = $1", dead[0])
	b.make(1, Payload{})
	b.finish(Expect{Fails: dead})
}

// Q8: a process that is started anew with the name of its predecessor is not taken for it:
// it doesn't renew its leases, and its jobs come back.
func TestARestartedProcessIsNotItsPredecessor(t *testing.T) {
	t.Parallel()
	b := newBed(t, 2, 3)
	victim := b.start(1)[0]
	b.make(2, Payload{For: time.Second})
	b.await("both to run", runningOn, victim.Name, 2)
	require.NoError(t, victim.Kill())
	heir, err := b.fleet.StartAs(victim.Name)
	require.NoError(t, err)
	report := b.finish(Expect{})
	require.Equal(t, 2, report.Reaped)
	require.Equal(t, 2, report.Reruns)
	require.Equal(t, victim.Name, heir.Name)
}

// Q10, J11: what a reaper sees that stalls between its look and its write: the ledger says
// that a lease has ended, and the row, renewed meanwhile, that it has not. The row decides.
func TestTheReaperGoesByTheRowsOwnLease(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 1)
	b.start(2)
	b.wait(lease/3 + lease/3 + 1500*time.Millisecond) // until they reap at all
	b.make(10, Payload{For: 3 * time.Second})
	b.await("all to run", "select count(*) = 10 from crash.runs where ended_at is null")
	b.await("the end of all, with a ledger that lies", `
with lie as (update rebase.claims set locked_until = now() - interval '1 second')
select not exists (select from rebase.jobs where finished_at is null)`)
	b.finish(Expect{Once: true, Innocent: true})
}

// J8, Q2: jobs that were once reaped go one at a time, but at the pace of the work: each ends
// and the next begins, without a look in between that waits.
func TestReapedJobsFollowEachOtherAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 3)
	b.make(200, Payload{For: time.Millisecond})
	_, err := b.pool.Exec(b.ctx, "update rebase.jobs set crashes = 1")
	require.NoError(t, err)
	b.start(2)
	b.finish(Expect{Once: true})
	var took time.Duration
	require.NoError(t, b.pool.QueryRow(b.ctx, "select max(started_at) - min(started_at) from crash.runs").Scan(&took))
	require.Less(t, took, 8*time.Second, "200 jobs of a millisecond")
}

// Q54, Q3, J8: a poison job that kills its process is first in line before 1,000 jobs that
// are claimed ahead in batches; it dies after its attempts, and nothing else does.
func TestOnlyThePoisonFails(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 3)
	poison := b.make(1, Payload{Does: doesPoison})
	b.make(1000, Payload{For: time.Millisecond})
	deaths := 0
	b.replace()
	for !b.failed(poison[0]) {
		if len(b.fleet.Living()) < 2 {
			require.Less(t, deaths, 6, "the poison goes on killing")
			b.replace()
		}
		if n := b.bury(); n > 0 {
			deaths += n
			b.expire()
		}
		// The backoff is not what this is about.
		_, err := b.pool.Exec(b.ctx, "update rebase.jobs set run_at = now() where crashes <> 0 and status = 'pending' and run_at > now()")
		require.NoError(t, err)
		b.wait(50 * time.Millisecond)
	}
	b.bury()
	if len(b.fleet.Living()) == 0 {
		b.replace()
	}
	b.finish(Expect{Fails: poison})
}

// failed says whether the job is a dead letter.
func (b *bed) failed(id int64) (yes bool) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.ctx, "select status = 'failed' from rebase.jobs where id = $1", id).Scan(&yes))
	return yes
}

// bury notes the processes that have ended by a signal of their own, and returns how many
// there were.
func (b *bed) bury() (n int) {
	for _, p := range b.fleet.procs {
		if !p.Alive() && !p.buried {
			p.buried = true
			n++
			_, err := b.pool.Exec(b.ctx, "insert into crash.signals (process, signal, at) select $1, 'KILL', max(started_at) from crash.runs where process = $1 and ended_at is null", p.Name)
			require.NoError(b, err)
		}
	}
	return n
}

// expire lets the leases of the dead run out, instead of waiting for that.
func (b *bed) expire() {
	b.Helper()
	for _, p := range b.fleet.procs {
		if p.Alive() {
			continue
		}
		_, err := b.pool.Exec(b.ctx, `
with c as (update rebase.claims set locked_until = now() - interval '1 second' where worker like $1)
update rebase.jobs set locked_until = now() - interval '1 second' where status = 'running' and locked_by like $1`, p.Name+"-%")
		require.NoError(b, err)
	}
}
