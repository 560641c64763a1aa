//go:build unix

package main

// What an asynchronous standby makes of a worker's claim when it takes over is written here by
// SQL: the claim never was, the job is as before it or never was either, and its id may have been
// given to another, because a sequence goes back as well. The fence alone tells them apart.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

const (
	soon = 20 * time.Second // for what must happen
	// The job as before its claim.
	forgetClaimSQL = `
with gone as (delete from rebase.claims)
update rebase.jobs set status = 'pending', fence = 0, attempts = 0, runs = 0, locked_by = null, locked_until = null, started_at = null where id = $1`
	// Another job with its id.
	giveAgainSQL = `
with gone as (delete from rebase.claims)
update rebase.jobs set status = 'pending', fence = 0, attempts = 0, runs = 0, locked_by = null, locked_until = null, started_at = null,
  created_at = now(), payload = '"another"' where id = $1`
)

// A holder is a worker whose handlers wait to be told what to return.
type holder struct {
	held  chan held
	leave func()       // claims nothing more
	stop  func() error // and ends
}

// held is a run under way.
type held struct {
	job    *rebase.Job
	ctx    context.Context
	result chan error
}

func hold(t *testing.T, pool *pgxpool.Pool, slots int) *holder {
	t.Helper()
	h := &holder{held: make(chan held, 10)}
	w := rebase.NewWorker(rebase.New(pool, nil), &rebase.WorkerOptions{Concurrency: slots, VisibilityTimeout: 3 * time.Second})
	w.Register(taskShort, func(ctx context.Context, job *rebase.Job) error {
		run := held{job, ctx, make(chan error, 1)}
		h.held <- run
		return <-run.result
	}, nil)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	h.leave, h.stop = cancel, func() error { cancel(); return <-ended }
	return h
}

func (h *holder) next(t *testing.T) held {
	t.Helper()
	select {
	case run := <-h.held:
		return run
	case <-time.After(soon):
		require.FailNow(t, "nothing was claimed")
		panic("unreachable")
	}
}

// told waits until a run is told that its lease is lost.
func (h *held) told(t *testing.T) {
	t.Helper()
	select {
	case <-h.ctx.Done():
		require.ErrorIs(t, context.Cause(h.ctx), rebase.ErrLeaseLost)
	case <-time.After(soon):
		require.FailNow(t, "it was not told")
	}
}

func enqueueOne(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	made, err := rebase.New(pool, nil).Enqueue(t.Context(), taskShort, "first", nil)
	require.NoError(t, err)
	return made.ID
}

func job(t *testing.T, pool *pgxpool.Pool, id int64) *rebase.Job {
	t.Helper()
	j, err := rebase.New(pool, nil).Job(t.Context(), id)
	require.NoError(t, err)
	return j
}

// J12: a worker whose claim is lost by a failover records nothing, whatever its handler returns,
// when the job is pending again, and neither when its id is another job's that another worker has
// in its first run, as this one had.
func TestAClaimThatAFailoverLostRecordsNothing(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{
		"success": nil, "failure": errors.New("boom"), "permanent": rebase.Permanent(errors.New("boom")),
		"snooze": rebase.Snooze(time.Hour), "cancelled": rebase.ErrCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			id := enqueueOne(t, pool)
			old := hold(t, pool, 1)
			stale := old.next(t)
			old.leave() // or it could take the job again itself
			_, err := pool.Exec(t.Context(), giveAgainSQL, id)
			require.NoError(t, err)
			next := hold(t, pool, 1)
			run := next.next(t)
			require.Equal(t, id, run.job.ID)
			require.JSONEq(t, `"another"`, string(run.job.Payload))
			require.Equal(t, stale.job.Runs, run.job.Runs, "only the fence tells them apart")
			stale.result <- result
			require.NoError(t, old.stop())
			j := job(t, pool, id)
			require.Equal(t, rebase.StatusRunning, j.Status)
			require.Equal(t, run.job.Fence, j.Fence)
			run.result <- nil
			require.NoError(t, next.stop())
			require.Equal(t, rebase.StatusSucceeded, job(t, pool, id).Status)
		})
	}
}

// J12, J16: it is told at its next renewal, and its CompleteTx is refused.
func TestAClaimThatAFailoverLostIsTold(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"the job is pending": forgetClaimSQL, "its id is another's": giveAgainSQL, "the job is gone": "delete from rebase.jobs where id = $1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			id := enqueueOne(t, pool)
			old := hold(t, pool, 1)
			stale := old.next(t)
			_, err := pool.Exec(t.Context(), sql, id)
			require.NoError(t, err)
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			require.ErrorIs(t, stale.job.CompleteTx(t.Context(), tx), rebase.ErrLeaseLost)
			require.NoError(t, tx.Rollback(t.Context()))
			stale.told(t)
			stale.result <- nil
			if name != "the job is gone" {
				again := old.next(t)
				again.result <- nil
			}
			require.NoError(t, old.stop())
		})
	}
}
