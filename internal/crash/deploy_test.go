//go:build unix

package main

// What is harmless in every day's life: rolling deploys, and rows that somebody has locked.

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Q9, J15: ten rolling deploys by SIGTERM during the work: every process ends cleanly, no
// attempt is used, no job runs twice.
func TestTenRollingDeploysRunNothingTwice(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 1)
	procs := b.start(2)
	made := b.produce(3000)
	for i := range 10 {
		b.await("some work to be done", "select count(*) > $1 from rebase.jobs where finished_at is not null", i*250)
		next := b.replace()
		code, err := procs[0].Terminate(b.ctx)
		require.NoError(t, err)
		require.Zero(t, code, procs[0].Name)
		require.NoError(t, next.AwaitUp(b.ctx))
		procs = append(procs[1:], next)
	}
	require.NoError(t, <-made)
	b.finish(Expect{Once: true, Innocent: true})
}

// Q49, J16: a transaction of CompleteTx and a session with the row locked, both open for
// three visibility timeouts, on two of six running jobs: the other four are renewed and
// recorded, none is reaped, and the two stay with their own attempts.
func TestALockedRowStopsNobodyElse(t *testing.T) {
	t.Parallel()
	b := newBed(t, 6, 1)
	holder := b.start(2)[0]
	const open = 3*lease + 500*time.Millisecond
	b.make(1, Payload{For: open, Does: doesComplete})
	others := b.make(4, Payload{For: 5 * time.Second})
	locked := b.make(1, Payload{For: 4 * time.Second})
	b.await("all to run", "select count(*) = 6 from crash.runs where ended_at is null")
	err := pgx.BeginFunc(b.ctx, b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(b.ctx, "select from rebase.jobs where id = $1 for update", locked[0]); err != nil {
			return err
		}
		b.await("the others to be recorded", "select count(*) = 4 from rebase.jobs where id = any($1) and status = 'succeeded'", others)
		b.await("three leases to pass", "select now() > started_at + $2 from crash.runs where job = $1", locked[0], open)
		return nil
	})
	require.NoError(t, err)
	require.True(t, holder.Alive())
	b.finish(Expect{Once: true, Innocent: true})
}
