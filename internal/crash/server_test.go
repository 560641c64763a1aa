//go:build unix

package main

// The server goes away: restarted, crashed, gone for longer than a lease, or rid of the
// workers' connections.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// J24, N5: a server that is restarted in the middle of the work, the second time by a
// crash, costs nobody an attempt.
func TestServerRestartsCostNoAttempt(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fast", "immediate"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b, server := newServerBed(t, 5, 1)
			b.start(2)
			made := b.produce(1500)
			// Some handlers are in the middle of a query when it happens.
			b.make(40, Payload{For: 300 * time.Millisecond, Does: doesQuery})
			for _, share := range []int{300, 800} {
				b.await("some work to be done", "select count(*) > $1 from rebase.jobs where finished_at is not null", share)
				require.NoError(t, server.Restart(mode))
			}
			require.NoError(t, <-made)
			b.finish(Expect{Innocent: true})
		})
	}
}

// N5, J12: all connections of all workers ended again and again.
func TestTerminatedBackendsCostNoAttempt(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 1)
	b.start(2)
	made := b.produce(1500)
	for i := range 8 {
		b.await("some work to be done", "select count(*) > $1 from rebase.jobs where finished_at is not null", i*150)
		_, err := b.pool.Exec(b.ctx, `
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and application_name ~ '^p[0-9]+$'`)
		require.NoError(t, err)
	}
	require.NoError(t, <-made)
	b.finish(Expect{Innocent: true})
}

// Q55, J9: the server is down for longer than the lease; max attempts 1, handlers that go
// on meanwhile. Nothing fails, and nothing is run by two at once. The case has four
// processes; here are ten, because when each comes back is drawn by lot, and the first
// must not take the last for dead.
func TestAnOutageLongerThanTheLeaseFailsNothing(t *testing.T) {
	t.Parallel()
	b, server := newServerBed(t, 2, 1)
	b.start(10)
	b.make(12, Payload{For: 2 * time.Second, Does: doesDeaf})
	b.make(4, Payload{For: 4 * time.Second})
	b.make(4, Payload{For: 2 * time.Second, Does: doesQuery})
	b.await("all to be busy", "select count(*) = 20 from crash.runs where ended_at is null")
	b.make(200, Payload{For: time.Millisecond})
	require.NoError(t, server.Stop("fast"))
	b.wait(lease + time.Second)
	require.NoError(t, server.Restart("fast"))
	b.finish(Expect{Innocent: true})
}
