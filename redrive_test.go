package rebase_test

// J18, Q26: redriving many dead letters. manage_test.go shows a taken key and two dead
// letters with one key; here are the filter, the limit, and everything that can be in the
// way of one job and must not end the sweep.

import (
	"context"
	"testing"
	"time"

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

// diesAgain makes what is redriven a dead letter again at once, as a worker might that is quicker
// than the redrive.
func (d *desk) diesAgain() {
	d.exec(`create function dies_again() returns trigger language plpgsql as $$
		begin
			new.status := 'failed'; new.dead := true; new.runs := old.runs + 1; new.finished_at := clock_timestamp();
			return new;
		end $$`)
	d.exec(`create trigger dies_again before update on rebase.jobs for each row when (old.dead and new.status = 'pending') execute function dies_again()`)
}

// J18: a redrive without a limit ends, however soon the jobs fail again: it takes what was dead
// when it began, each once; with keys or without.
func TestJ18ARedriveTakesEachJobOnceAlsoIfItFailsAgainMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key string
		n   int
	}{"without keys": {`null`, 1000}, "with keys": {`'k' || id`, 300}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			d.dead("t", c.n)
			d.exec(`update rebase.jobs set idempotency_key = ` + c.key + `, key_hash = case when ` + c.key + ` is not null then int8send(id) end`)
			d.diesAgain()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for run, limit := range []int{0, c.n + 1} {
				n, err := d.q.Redrive(ctx, rebase.Filter{Task: "t"}, limit)
				require.NoError(t, err)
				require.Equal(t, c.n, n)
				require.Equal(t, []int{4 + run}, list[int](d, `select distinct runs from rebase.jobs`))
			}
		})
	}
}

// J18: an end that the filter has, and that is earlier, holds; one in the future does not.
func TestJ18ARedriveEndsAtTheEarlierOfTheFiltersEndAndItsBeginning(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.dead("t", 2)
	d.exec(`update rebase.jobs set finished_at = clock_timestamp() + interval '1 h' where id = 2`) // as if it failed meanwhile
	for before, want := range map[time.Duration]int{-365 * 24 * time.Hour: 0, 2 * time.Hour: 1} {
		n, err := d.q.Redrive(t.Context(), rebase.Filter{FinishedBefore: time.Now().Add(before)}, 0)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Equal(t, []int64{2}, list[int64](d, `select id from rebase.jobs where dead`))
}

// J18: a job that somebody retried since it was listed, and that succeeded, isn't run once more.
func TestJ18ARedriveLeavesAKeyedJobThatHasSucceededMeanwhile(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.dead("t", 2)
	d.exec(`update rebase.jobs set idempotency_key = 'k' || id, key_hash = int8send(id)`)
	d.exec(`create function meanwhile() returns trigger language plpgsql as $$
		begin
			update rebase.jobs set status = 'succeeded', dead = false where id = 2;
			return null;
		end $$`)
	d.exec(`create trigger meanwhile after update on rebase.jobs for each row when (new.id = 1) execute function meanwhile()`)
	n, err := d.q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, rebase.StatusSucceeded, d.status(2))
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
