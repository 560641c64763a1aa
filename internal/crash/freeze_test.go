//go:build unix

package main

// Processes that are frozen for longer than their lease and then go on as if nothing had
// happened.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Q6, J12: what a frozen process still does with its jobs after they were taken from it
// does not count; the attempt that holds the claim decides.
func TestAFrozenProcessCannotRecord(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 3)
	procs := b.start(2)
	b.make(8, Payload{For: 1500 * time.Millisecond, Does: doesDeaf})
	b.make(2, Payload{For: 1500 * time.Millisecond, Does: doesComplete})
	b.await("both to be busy", "select count(*) = 10 from crash.runs where ended_at is null")
	require.NoError(t, procs[0].Freeze())
	b.await("its jobs to be taken", "select count(*) >= 1 from crash.runs r where run = 2")
	require.NoError(t, procs[0].Thaw())
	b.make(20, Payload{For: time.Millisecond})
	report := b.finish(Expect{})
	require.NotZero(t, report.Reaped)
	require.NotZero(t, report.Reruns)
}

// J9, J11: all processes frozen at once (a suspended machine, a paused container host) and
// thawed at once: whoever wakes first must not take the others for dead.
func TestAllFrozenAtOnceNobodyIsReaped(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 1)
	procs := b.start(4)
	b.make(20, Payload{For: 1500 * time.Millisecond, Does: doesDeaf})
	b.await("all to be busy", "select count(*) = 20 from crash.runs where ended_at is null")
	for _, p := range procs {
		require.NoError(t, p.Freeze())
	}
	b.await("all leases to have run out", "select max(locked_until) < now() - interval '100 ms' from rebase.claims")
	require.NoError(t, procs[0].Thaw()) // renews first, before the others
	b.await("the first to have renewed", "select seen_at > now() - interval '1 s' from rebase.workers where id like $1", procs[0].Name+"-%")
	for _, p := range procs[1:] {
		require.NoError(t, p.Thaw())
	}
	b.finish(Expect{Innocent: true, Once: true})
}
