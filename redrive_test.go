package rebase_test

// J18, Q26: redriving many dead letters. manage_test.go shows a taken key and two dead
// letters with one key; here are the filter, the limit, and everything that can be in the
// way of one job and must not end the sweep.

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// dead makes n dead letters of a task, each a second younger than the one before.
func (d *desk) dead(task string, n int) {
	d.exec(`insert into rebase.jobs (task, status, dead, attempts, runs, finished_at, last_error, history)
		select $1, 'failed', true, 3, 3, now() - (1000000 - i) * interval '1 s', 'error ' || i % 2, '[{"attempt": 3, "outcome": "failed"}]' from generate_series(1, $2::int) i`, task, n)
}

// J18: the filter selects, the limit ends, the oldest go first; rows begin anew.
func TestJ18RedriveTakesTheOldestThatTheFilterSelects(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.dead("a", 500)
	d.dead("b", 5)
	d.exec(`insert into rebase.jobs (task, status, finished_at) values ('a', 'succeeded', now()), ('a', 'cancelled', now())`)
	running := d.enqueue("a", nil).ID
	d.claimed(running)
	before := tell[string](d, `select j::text from rebase.jobs j where id = $1`, running)
	redrive := func(f rebase.Filter, limit, want int) {
		t.Helper()
		n, err := d.q.Redrive(t.Context(), f, limit)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	redrive(rebase.Filter{Task: "a", ErrorContains: "error 1"}, 3, 3)
	require.Equal(t, []int64{1, 3, 5}, list[int64](d, `select id from rebase.jobs where status = 'pending' order by id`))
	require.True(t, tell[bool](d, `select attempts = 0 and runs = 3 and jsonb_array_length(history) = 1 and finished_at is null and not dead from rebase.jobs where id = 1`))
	redrive(rebase.Filter{Task: "a", Limit: 2}, 0, 2)
	redrive(rebase.Filter{Task: "a"}, 333, 333)
	redrive(rebase.Filter{Status: rebase.StatusFailed, Task: "a"}, 0, 162)
	redrive(rebase.Filter{Task: "a"}, 0, 0)
	redrive(rebase.Filter{}, 0, 5)
	require.Equal(t, before, tell[string](d, `select j::text from rebase.jobs j where id = $1`, running), "a running job is untouched")
	require.Equal(t, 2, tell[int](d, `select count(*) from rebase.jobs where status in ('succeeded', 'cancelled')`))
	for _, status := range []rebase.Status{rebase.StatusSucceeded, rebase.StatusPending, "odd"} {
		_, err := d.q.Redrive(t.Context(), rebase.Filter{Status: status}, 0)
		require.ErrorContains(t, err, string(status))
	}
}

// Q26: a job whose row is locked is passed by, with a key or without.
func TestQ26ARedrivePassesLockedRowsBy(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.dead("t", 6)
	d.exec(`update rebase.jobs set idempotency_key = 'k' || id, key_hash = int8send(id) where id > 3`)
	tx := d.begin(pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), `select from rebase.jobs where id in (2, 5) for update`)
	require.NoError(t, err)
	n, err := d.q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, []int64{2, 5}, list[int64](d, `select id from rebase.jobs where status = 'failed' order by id`))
}

// Q26: so is one whose key a transaction that has not ended is about to take.
func TestQ26ARedrivePassesAKeyByThatIsBeingTaken(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, key := range []string{"k", "another"} {
		d.ended(d.enqueue("t", keyed(key)).ID, rebase.StatusFailed)
	}
	tx := d.begin(pgx.TxOptions{})
	_, err := d.q.EnqueueTx(t.Context(), tx, "t", nil, keyed("k"))
	require.NoError(t, err)
	n, err := d.q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, tx.Rollback(t.Context()))
	n, err = d.q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n, "it is free now")
}

// J18: what was redriven runs.
func TestJ18RedrivenJobsRunAgain(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.dead("t", 3)
	n, err := d.q.Redrive(t.Context(), rebase.Filter{}, 2)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 2, d.drain(map[string]rebase.Handler{"t": func(_ context.Context, job *rebase.Job) error {
		require.Equal(t, []int{1, 4}, []int{job.Attempts, job.Runs})
		return nil
	}}))
}
