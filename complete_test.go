package rebase_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J16: the job's end and its effect in one commit. The row decides, not what the handler
// says afterwards.

// effects makes a table for what handlers do.
func (r *rig) effects() { r.exec("create table effects (job bigint)") }

// complete does the effect and ends the job in one transaction, then commits or not.
func complete(ctx context.Context, r *rig, job *rebase.Job, commit bool) error {
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	if _, err := tx.Exec(ctx, "insert into effects values ($1)", job.ID); err != nil {
		return err
	}
	if err := job.CompleteTx(ctx, tx); err != nil {
		return err
	}
	if !commit {
		return nil
	}
	return tx.Commit(ctx)
}

// J16, Q50: every combination of commit or rollback with what the handler returns.
func TestCompleteTxTheCommitDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		commit  bool
		returns error
		status  rebase.Status
		err     string
	}{
		"committed, nil":               {true, nil, rebase.StatusSucceeded, ""},
		"committed, error":             {true, errBoom, rebase.StatusSucceeded, ""},
		"committed, permanent":         {true, rebase.Permanent(errBoom), rebase.StatusSucceeded, ""},
		"committed, snooze":            {true, rebase.Snooze(time.Hour), rebase.StatusSucceeded, ""},
		"committed, cancelled":         {true, rebase.ErrCancelled, rebase.StatusSucceeded, ""},
		"rolled back, error":           {false, errBoom, rebase.StatusFailed, "boom"},
		"rolled back, nil":             {false, nil, rebase.StatusFailed, "the transaction of CompleteTx was not committed"},
		"rolled back, permanent error": {false, rebase.Permanent(errBoom), rebase.StatusFailed, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.effects()
			id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
			r.once("x", nil, func(ctx context.Context, job *rebase.Job) error {
				if err := complete(ctx, r, job, c.commit); err != nil {
					return err
				}
				return c.returns
			})
			j := r.job(id)
			require.Equal(t, c.status, j.Status)
			require.Equal(t, c.err, j.LastError)
			require.Equal(t, c.commit, ask[int](r, "select count(*)::int from effects") == 1)
			require.Empty(t, r.log.matching("lease lost"))
			require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
		})
	}
}

// J16: a panic after the commit changes nothing; the history of earlier attempts goes on.
func TestCompleteTxAfterAFailureKeepsTheHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.effects()
	id := r.enqueue("x", nil)
	n := r.once("x", nil, func(ctx context.Context, job *rebase.Job) error {
		if job.Attempts == 1 {
			return errBoom
		}
		if err := complete(ctx, r, job, true); err != nil {
			return err
		}
		panic("too late to matter")
	})
	require.Equal(t, 2, n)
	j := r.job(id)
	require.Equal(t, rebase.StatusSucceeded, j.Status)
	require.Len(t, j.History, 2)
	require.Equal(t, "succeeded", j.History[1].Outcome)
}

// J16, J12: an attempt that lost its claim can't complete; its effect is rolled back.
func TestCompleteTxOfAnAttemptThatLostItsClaimIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.effects()
	id := r.enqueue("x", nil)
	var got error
	r.once("x", nil, func(ctx context.Context, job *rebase.Job) error {
		if job.Runs == 1 {
			r.lose(id)
			// The same worker may claim it again at once, which ends this context.
			got = complete(context.WithoutCancel(ctx), r, job, true)
			return got
		}
		return complete(ctx, r, job, true)
	})
	require.ErrorIs(t, got, rebase.ErrLeaseLost)
	require.Equal(t, rebase.StatusSucceeded, r.job(id).Status)
	require.Equal(t, 1, ask[int](r, "select count(*)::int from effects"))
}

// Q50: a timeout was recorded, then the abandoned handler completes → refused.
func TestCompleteTxOfAnAbandonedHandlerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.effects()
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	late, release := make(chan error, 1), make(chan struct{})
	r.handle("x", &rebase.WorkerOptions{Timeout: 50 * time.Millisecond}, func(ctx context.Context, job *rebase.Job) error {
		<-release
		late <- complete(context.WithoutCancel(ctx), r, job, true)
		return nil
	})
	r.ends(id, rebase.StatusFailed)
	close(release)
	require.ErrorIs(t, await(t, late), rebase.ErrLeaseLost)
	require.Equal(t, rebase.StatusFailed, r.job(id).Status)
	require.Zero(t, ask[int](r, "select count(*)::int from effects"))
}

// Q50: CompleteTx committed, then the attempt times out → it stays succeeded.
func TestCompleteTxCommittedThenTimeoutStaysSucceeded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.effects()
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	s := r.handle("x", &rebase.WorkerOptions{Timeout: 500 * time.Millisecond}, func(ctx context.Context, job *rebase.Job) error {
		err := complete(ctx, r, job, true)
		<-ctx.Done()
		return err
	})
	r.until(func() bool { return len(r.log.matching("WARN", "attempt timed out")) == 1 }, "the attempt has timed out")
	require.NoError(t, s.stop())
	require.Equal(t, rebase.StatusSucceeded, r.job(id).Status)
	require.Empty(t, r.log.matching("lease lost"))
}

// Q49: a CompleteTx transaction open for three visibility timeouts on one of five
// running jobs: the others are renewed and recorded, nothing is reaped, and the fifth
// stays its own.
func TestAnOpenCompleteTxStopsNobodyElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	opts := &rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}
	ids := r.enqueueMany("x", 5, nil)
	completing, others := make(chan struct{}), make(chan struct{})
	w := r.worker(opts)
	w.Register("x", func(ctx context.Context, job *rebase.Job) error {
		if job.ID != ids[0] {
			<-others
			return ctx.Err()
		}
		return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			err := job.CompleteTx(ctx, tx)
			close(completing)
			select {
			case <-time.After(9 * time.Second): // three visibility timeouts
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return err
		})
	}, nil)
	r.start(w)
	await(t, completing)
	r.until(func() bool { return r.count("status = 'running'") == 5 }, "all five run")
	r.handle("x", opts, succeed) // would take what falls free
	began := ask[time.Time](r, "select clock_timestamp()")
	r.until(func() bool {
		return r.count("id = any($1) and locked_until > $2::timestamptz + interval '6 seconds'", ids[1:], began) == 4
	}, "the other four are renewed")
	close(others)
	r.until(func() bool { return r.count("id = any($1) and status = 'succeeded'", ids[1:]) == 4 }, "the other four are recorded")
	require.Equal(t, rebase.StatusRunning, r.job(ids[0]).Status, "their results do not wait for the fifth")
	r.ends(ids[0], rebase.StatusSucceeded)
	require.Equal(t, 5, r.count("runs = 1 and attempts = 1"))
	require.Empty(t, r.log.matching("lease lost"))
}

// J16: a Job that no worker gave out can't be completed.
func TestCompleteTxNeedsAJobFromAWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, r.job(id).CompleteTx(t.Context(), tx), "not given to a handler")
	require.NoError(t, tx.Rollback(t.Context()))
}

// J16: a second call in the same transaction finds the job taken by the first; rolled back, neither
// counts.
func TestCompleteTxTwiceAndRolledBackIsNoSuccess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	r.once("x", nil, func(ctx context.Context, job *rebase.Job) error {
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err
		}
		if err := job.CompleteTx(ctx, tx); !errors.Is(err, rebase.ErrLeaseLost) {
			return fmt.Errorf("the second: %w", err)
		}
		return nil // rolls back, as it is told
	})
	j := r.job(id)
	require.Equal(t, rebase.StatusFailed, j.Status)
	require.Equal(t, "the transaction of CompleteTx was not committed", j.LastError)
}

// J16, J20: the row of a job that was claimed ahead learns when it began.
func TestCompleteTxOfAJobClaimedAheadKnowsWhenItBegan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, &rebase.TaskOptions{Backoff: at(0)}, "x")
	id := r.enqueue("x", nil)
	holds, err := s.Claim("x", 1, false, false)
	require.NoError(t, err)
	s.Begin(holds[0])
	s.Finish(holds[0], errBoom)
	require.NoError(t, s.Record())
	r.until(func() bool { holds, err = s.Claim("x", 1, true, false); return err == nil && len(holds) == 1 }, "it is claimed again")
	require.True(t, holds[0].Ahead())
	s.BeginAt(holds[0], time.Now().Add(-time.Hour))
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { return holds[0].Job().CompleteTx(t.Context(), tx) }))
	s.Finish(holds[0], nil)
	require.NoError(t, s.Record())
	j := r.job(id)
	require.Len(t, j.History, 2)
	for _, began := range []time.Time{*j.StartedAt, j.History[1].StartedAt} {
		require.InDelta(t, time.Hour.Seconds(), time.Since(began).Seconds(), 60)
	}
}
