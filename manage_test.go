package rebase_test

// What operators do to single jobs and to tasks (J18). Rows of every state are made by SQL,
// so that no worker's timing is in the way; where a running handler matters a worker runs.

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

var finished = []rebase.Status{rebase.StatusSucceeded, rebase.StatusFailed, rebase.StatusCancelled}

// requireStateError requires the error to name the job, its state and the operation.
func requireStateError(t *testing.T, err error, id int64, status rebase.Status, operation string) {
	t.Helper()
	state, ok := errors.AsType[*rebase.StateError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, rebase.StateError{ID: id, Status: status, Operation: operation}, *state)
	require.Contains(t, err.Error(), operation)
	require.Contains(t, err.Error(), string(status))
}

// J18: Job reads every column; an unknown id is ErrNotFound, for every operation.
func TestJ18OneJobIsReadWithAllItsColumns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.enqueue("t", &rebase.EnqueueOptions{IdempotencyKey: "k", Lane: "l", MaxAttempts: 4, Meta: map[string]string{"a": "b"}}).ID
	d.claimed(id)
	job, err := d.q.Job(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []any{"t", "l", "k", `{"n": 1}`, rebase.StatusRunning, "w", 1, 4, 1, 1000 + id},
		[]any{job.Task, job.Lane, job.IdempotencyKey, string(job.Payload), job.Status, job.LockedBy, job.Attempts, job.MaxAttempts, job.Runs, job.Fence})
	require.NotNil(t, job.LockedUntil)
	require.NotNil(t, job.StartedAt)
	require.Nil(t, job.FinishedAt)
	d.ended(id, rebase.StatusFailed)
	job, err = d.q.Job(t.Context(), id)
	require.NoError(t, err)
	require.Nil(t, job.LockedUntil)
	require.NotNil(t, job.FinishedAt)
	require.Equal(t, "because", job.LastError)
	require.Equal(t, "failed", job.History[0].Outcome)
	require.True(t, tell[bool](d, `select run_at = $2 and created_at = $3 and updated_at = $4 from rebase.jobs where id = $1`,
		id, job.RunAt, job.CreatedAt, job.UpdatedAt))

	for operation, do := range map[string]func() error{
		"job":    func() error { _, err := d.q.Job(t.Context(), 404); return err },
		"cancel": func() error { return d.q.Cancel(t.Context(), 404, "x") },
		"retry":  func() error { return d.q.Retry(t.Context(), 404) },
		"delete": func() error { return d.q.Delete(t.Context(), 404) },
		"cancel in a transaction": func() error {
			return pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error { return d.q.CancelTx(t.Context(), tx, 404, "") })
		},
	} {
		require.ErrorIs(t, do(), rebase.ErrNotFound, operation)
		require.ErrorContains(t, do(), "404", operation)
	}
}

// J18: Cancel ends a pending and a running row at once, with its reason; a cancelled one
// stays as it is, one that has ended otherwise is refused.
func TestJ18CancelEndsWhatHasNotEnded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, running := range []bool{false, true} {
		id := d.enqueue("t", keyed("k")).ID
		if running {
			d.claimed(id)
		}
		require.NoError(t, d.q.Cancel(t.Context(), id, "the order was withdrawn\x00"))
		require.True(t, tell[bool](d, `select status = 'cancelled' and fence = 0 and finished_at is not null and locked_until is null
			and last_error = 'the order was withdrawn␀' and history -> -1 ->> 'outcome' = 'cancelled' and jsonb_array_length(history) = 1
			from rebase.jobs where id = $1`, id))
		before := tell[string](d, `select j::text from rebase.jobs j where id = $1`, id)
		require.NoError(t, d.q.Cancel(t.Context(), id, "again"), "cancelling twice is cancelling once")
		require.Equal(t, before, tell[string](d, `select j::text from rebase.jobs j where id = $1`, id))
		require.False(t, d.enqueue("t", keyed("k")).Duplicate, "the key is free again")
		d.exec(`update rebase.jobs set status = 'succeeded', finished_at = now() where finished_at is null`)
	}
	for _, status := range []rebase.Status{rebase.StatusSucceeded, rebase.StatusFailed} {
		id := d.enqueue("t", nil).ID
		d.ended(id, status)
		requireStateError(t, d.q.Cancel(t.Context(), id, ""), id, status, "cancel")
		require.Equal(t, status, d.status(id))
	}
	long := d.enqueue("t", nil).ID
	require.NoError(t, d.q.Cancel(t.Context(), long, strings.Repeat("ä", 10_000)))
	require.True(t, tell[bool](d, `select char_length(last_error) = 4000 and char_length(history -> 0 ->> 'error') = 500 from rebase.jobs where id = $1`, long))
}

// J18: CancelTx is part of the caller's transaction.
func TestJ18CancelTxFollowsTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		d := newDesk(t)
		id := d.enqueue("t", nil).ID
		dead := d.enqueue("t", nil).ID
		d.ended(dead, rebase.StatusFailed)
		tx := d.begin(pgx.TxOptions{})
		require.NoError(t, d.q.CancelTx(t.Context(), tx, id, "why"))
		requireStateError(t, d.q.CancelTx(t.Context(), tx, dead, ""), dead, rebase.StatusFailed, "cancel")
		require.Equal(t, rebase.StatusPending, d.status(id), "not before the commit")
		err := d.q.Cancel(t.Context(), id, "")
		requireState(t, err, "55P03") // waits for the row no longer than a second
		require.ErrorContains(t, err, "another transaction has a lock on it, try again: ")
		want := rebase.StatusPending
		if commit {
			want = rebase.StatusCancelled
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
		}
		require.Equal(t, want, d.status(id))
	}
}

// J18: a running job's handler ends with the cause ErrCancelled, and what it returns
// changes nothing. In this process there is no need for a NOTIFY.
func TestJ18CancelEndsTheHandlersContext(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("t", nil)
	var cause error
	require.Equal(t, 1, d.drain(map[string]rebase.Handler{"t": func(ctx context.Context, job *rebase.Job) error {
		require.NoError(t, d.q.Cancel(ctx, job.ID, "enough"))
		<-ctx.Done()
		cause = context.Cause(ctx)
		return nil
	}}))
	require.ErrorIs(t, cause, rebase.ErrCancelled)
	require.True(t, tell[bool](d, `select status = 'cancelled' and last_error = 'enough' from rebase.jobs`))
}

// J18, N1: cancelling a running job tells its worker by a NOTIFY without asking the gate;
// a pending one needs none.
func TestJ18CancelOfARunningJobNotifies(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	conn := d.listen()
	pending, running, inTx := d.enqueue("t", nil).ID, d.enqueue("t", nil).ID, d.enqueue("t", nil).ID
	d.claimed(running)
	d.claimed(inTx)
	require.NoError(t, d.q.Cancel(t.Context(), pending, ""))
	require.NoError(t, d.q.Cancel(t.Context(), running, ""))
	require.NoError(t, pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error { return d.q.CancelTx(t.Context(), tx, inTx, "") }))
	require.Equal(t, []string{"c:" + itoa(running), "c:" + itoa(inTx)}, d.heard(conn))
}

// J18: Retry begins anew under the same id; runs and history stay.
func TestJ18RetryBeginsAnewUnderTheSameID(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, status := range finished {
		id := d.enqueue("t", keyed("k")).ID
		d.ended(id, status)
		d.exec(`update rebase.jobs set crashes = 2, setbacks = 3, run_at = now() + interval '1 day' where id = $1`, id)
		require.NoError(t, d.q.Retry(t.Context(), id))
		require.True(t, tell[bool](d, `select status = 'pending' and attempts = 0 and crashes = 0 and setbacks = 0 and runs = 2 and fence = 0
			and run_at <= now() and finished_at is null and locked_until is null and jsonb_array_length(history) = 1 from rebase.jobs where id = $1`, id))
		requireStateError(t, d.q.Retry(t.Context(), id), id, rebase.StatusPending, "retry")
		require.Equal(t, 1, d.drain(map[string]rebase.Handler{"t": func(_ context.Context, job *rebase.Job) error {
			require.Equal(t, []any{id, 1, 3}, []any{job.ID, job.Attempts, job.Runs})
			return nil
		}}))
	}
	running := d.enqueue("t", nil).ID
	d.claimed(running)
	requireStateError(t, d.q.Retry(t.Context(), running), running, rebase.StatusRunning, "retry")
}

// Q26: a retry whose key a newer job has taken is a typed error that names that job, and a
// redrive passes it by and goes on.
func TestQ26ARetryWhoseKeyIsTakenIsATypedError(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, running := range []bool{false, true} {
		old := d.enqueue("t", keyed("k")).ID
		d.ended(old, rebase.StatusFailed)
		before, after := d.enqueue("t", nil).ID, d.enqueue("t", keyed("another")).ID
		d.ended(before, rebase.StatusFailed)
		d.ended(after, rebase.StatusFailed)
		holder := d.enqueue("t", keyed("k")).ID
		if running {
			d.claimed(holder)
		}
		err := d.q.Retry(t.Context(), old)
		taken, ok := errors.AsType[*rebase.KeyTakenError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, holder, taken.ID)
		require.Equal(t, rebase.StatusFailed, d.status(old))
		n, err := d.q.Redrive(t.Context(), rebase.Filter{}, 0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, rebase.StatusFailed, d.status(old))
		require.Equal(t, rebase.StatusPending, d.status(before))
		require.Equal(t, rebase.StatusPending, d.status(after))
		d.exec(`update rebase.jobs set status = 'cancelled', fence = 0, finished_at = now() where finished_at is null`)
		require.NoError(t, d.q.Retry(t.Context(), old), "the key is free")
		d.exec(`truncate rebase.jobs, rebase.claims`)
	}
}

// Q26: two dead letters with one key: a redrive takes one of them.
func TestQ26ARedriveOfTwoWithOneKeyTakesOne(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for range 2 {
		d.ended(d.enqueue("t", keyed("k")).ID, rebase.StatusFailed)
	}
	n, err := d.q.Redrive(t.Context(), rebase.Filter{Task: "t"}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 1, tell[int](d, `select count(*) from rebase.jobs where status = 'pending'`))
}

// Q26: the reaper takes back a job with a key, on its last attempt and before; the key
// follows the job.
func TestQ26AReapedJobKeepsOrFreesItsKey(t *testing.T) {
	t.Parallel()
	for _, last := range []bool{false, true} {
		d := newDesk(t)
		id := d.enqueue("t", &rebase.EnqueueOptions{IdempotencyKey: "k", MaxAttempts: 2}).ID
		d.claimed(id)
		if last {
			d.exec(`update rebase.jobs set attempts = 2`)
		}
		d.exec(`update rebase.jobs set locked_until = now() - interval '1 s'`)
		d.exec(`update rebase.claims set locked_until = now() - interval '1 s', lease = '1 s'`)
		d.drain(map[string]rebase.Handler{"other": func(context.Context, *rebase.Job) error { return nil }})
		if last {
			require.Equal(t, rebase.StatusFailed, d.status(id))
		} else {
			require.Equal(t, rebase.StatusPending, d.status(id))
		}
		require.Equal(t, !last, d.enqueue("t", keyed("k")).Duplicate)
	}
}

// J18: Delete removes what is not running.
func TestJ18DeleteRemovesWhatIsNotRunning(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, status := range append([]rebase.Status{rebase.StatusPending}, finished...) {
		id := d.enqueue("t", nil).ID
		if status != rebase.StatusPending {
			d.ended(id, status)
		}
		require.NoError(t, d.q.Delete(t.Context(), id))
		require.Zero(t, d.jobs())
		require.ErrorIs(t, d.q.Delete(t.Context(), id), rebase.ErrNotFound)
	}
	id := d.enqueue("t", nil).ID
	d.claimed(id)
	requireStateError(t, d.q.Delete(t.Context(), id), id, rebase.StatusRunning, "delete")
	require.Equal(t, 1, d.jobs())
}

// J18: a paused task is claimed nowhere until it is resumed; enqueues go on, others too.
func TestJ18APausedTaskWaitsUntilItIsResumed(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	nothing := func(context.Context, *rebase.Job) error { return nil }
	handlers := map[string]rebase.Handler{"t": nothing, "u": nothing}
	require.NoError(t, d.q.PauseTask(t.Context(), "t"))
	require.NoError(t, d.q.PauseTask(t.Context(), "t"), "pausing twice is pausing once")
	id := d.enqueue("t", nil).ID
	d.enqueue("t", &rebase.EnqueueOptions{Lane: "l"})
	d.enqueue("u", nil)
	require.Equal(t, 1, d.drain(handlers))
	require.Equal(t, rebase.StatusPending, d.status(id))
	require.Zero(t, tell[int](d, `select sum(attempts + runs) from rebase.jobs where task = 't'`))
	require.NoError(t, d.q.ResumeTask(t.Context(), "t"))
	require.NoError(t, d.q.ResumeTask(t.Context(), "t"))
	require.Equal(t, 2, d.drain(handlers))
	for _, bad := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 256)} {
		refused, ok := errors.AsType[*rebase.PayloadError](d.q.PauseTask(t.Context(), bad))
		require.True(t, ok)
		require.Equal(t, "task", refused.Field)
		err := d.q.ResumeTask(t.Context(), bad)
		_, fromServer := errors.AsType[*pgconn.PgError](err)
		require.False(t, fromServer, "resume of %q: %v", bad, err)
	}
}

// J18: a lock that somebody holds for a moment, longer than one try waits, is no error.
func TestJ18AnOperationOutlastsAShortLock(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.enqueue("t", nil).ID
	tx := d.begin(pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "select from rebase.jobs where id = $1 for update", id)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- d.q.Cancel(t.Context(), id, "why") }()
	d.waits(1)
	pause(250 * time.Millisecond) // longer than lock_timeout
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, await(t, ended))
	require.Equal(t, rebase.StatusCancelled, d.status(id))
}

// J18: an operation that has waited for a change of the row works on what the change left. It
// looked at the version of its snapshot once, found it gone, and told an untrue state.
func TestJ18AnOperationWorksOnTheRowThatItHasWaitedFor(t *testing.T) {
	t.Parallel()
	for operation, do := range map[string]func(*desk, int64) error{
		"retry":  func(d *desk, id int64) error { return d.q.Retry(d.t.Context(), id) },
		"delete": func(d *desk, id int64) error { return d.q.Delete(d.t.Context(), id) },
		"cancel": func(d *desk, id int64) error { return d.q.Cancel(d.t.Context(), id, "") },
	} {
		for _, change := range []string{
			`update rebase.jobs set meta = '{"seen": "yes"}' where id = $1`,
			`update rebase.jobs set status = 'cancelled', dead = false, fence = 0, finished_at = now(), locked_until = null where id = $1`,
		} {
			t.Run(operation, func(t *testing.T) {
				t.Parallel()
				d := newDesk(t)
				id := d.enqueue("t", nil).ID
				if operation != "cancel" {
					d.ended(id, rebase.StatusFailed)
				}
				tx := d.begin(pgx.TxOptions{})
				_, err := tx.Exec(t.Context(), change, id)
				require.NoError(t, err)
				done := make(chan error, 1)
				go func() { done <- do(d, id) }()
				d.waits(1)
				require.NoError(t, tx.Commit(t.Context()))
				require.NoError(t, await(t, done))
				require.Equal(t, operation == "delete", d.jobs() == 0)
				require.Equal(t, operation == "retry", tell[int](d, `select count(*) from rebase.jobs where status = 'pending'`) == 1)
			})
		}
	}
}
