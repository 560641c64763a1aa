package rebase_test

// J11: running rows that no claim lists, as a restore of one table without the other leaves
// them, would run for ever. They are put back, and nothing that somebody holds is.

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// orphan makes a running row without a claim.
func (d *desk) orphan(crashes int, lockedUntil string) int64 {
	d.t.Helper()
	return tell[int64](d, `insert into rebase.jobs (task, status, fence, attempts, runs, crashes, locked_by, locked_until, started_at)
		values ('t', 'running', 77, 1, 1, $1, 'gone', `+lockedUntil+`, now()) returning id`, crashes)
}

func TestJ11OrphansArePutBackAndNothingElse(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	found := []int64{d.orphan(0, "now() - interval '2 min'"), d.orphan(0, "null"), d.orphan(2, "now() - interval '2 min'"), d.orphan(1, "null")}
	kept := []int64{d.orphan(0, "now() - interval '30 s'"), d.orphan(1, "now() + interval '1 min'"), d.enqueue("t", nil).ID, d.enqueue("t", nil).ID, d.enqueue("t", nil).ID}
	d.claimed(kept[2])
	d.claimed(kept[3])
	d.exec(`update rebase.jobs set locked_until = now() - interval '1 hour' where id = any($1)`, kept[2:4])
	d.exec(`update rebase.jobs set crashes = 1 where id = $1`, kept[3])
	before := list[string](d, `select j::text from rebase.jobs j where id = any($1) order by id`, kept)

	s := rebase.NewStepper(t.Context(), rebase.NewWorker(d.q, nil))
	t.Cleanup(s.Close)
	require.NoError(t, s.Orphans(t.Context()))
	require.Equal(t, found, list[int64](d, `select id from rebase.jobs
		where status = 'pending' and fence = 0 and attempts = 1 and crashes <> 0 and locked_until is null and run_at <= now() and last_error like '%no claim%' order by id`))
	require.Equal(t, []int{1, 1, 3, 2}, list[int](d, `select crashes::int from rebase.jobs where id = any($1) order by id`, found))
	require.Equal(t, before, list[string](d, `select j::text from rebase.jobs j where id = any($1) order by id`, kept))
	require.NoError(t, s.Orphans(t.Context()))
	require.Equal(t, before, list[string](d, `select j::text from rebase.jobs j where id = any($1) order by id`, kept))
}

// J11: one that was at its last attempt has failed for good, as with the reaper; one that had
// not begun gets its attempt back. A history that is none is left as it is.
func TestJ11AnOrphanGetsNoMoreAttemptsThanItHas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := deskOn(t, r.pool, nil)
	last := []int64{d.orphan(0, "null"), d.orphan(1, "null")}
	ahead, odd := d.orphan(0, "null"), d.orphan(0, "null")
	d.exec(`update rebase.jobs set max_attempts = 1`)
	d.exec(`update rebase.jobs set started_at = null where id = $1`, ahead)
	d.exec(`update rebase.jobs set history = '7' where id = $1`, odd)
	w := r.worker(nil)
	s := rebase.NewStepper(t.Context(), w)
	t.Cleanup(s.Close)
	require.NoError(t, s.Orphans(t.Context()))
	for _, id := range append(last, odd) {
		require.Equal(t, rebase.StatusFailed, d.status(id))
		require.Len(t, r.log.matching("ERROR rebase: job failed for good", fmt.Sprint("job_id=", id, " ")), 1)
	}
	j := r.job(last[0])
	require.Equal(t, 1, j.Attempts)
	require.NotNil(t, j.FinishedAt)
	require.Len(t, j.History, 1)
	require.Equal(t, []any{1, "gone", "crashed"}, []any{j.History[0].Attempt, j.History[0].Worker, j.History[0].Outcome})
	require.Equal(t, "7", tell[string](d, `select history::text from rebase.jobs where id = $1`, odd))
	j = r.job(ahead)
	require.Equal(t, []any{rebase.StatusPending, 0}, []any{j.Status, j.Attempts})
}

// Page by page: an orphan behind two pages of jobs is found.
func TestJ11OrphansAreFoundBehindManyJobs(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, run_at) select 'a', now() + interval '1 day' from generate_series(1, 45000)`)
	id := d.orphan(0, "null")
	s := rebase.NewStepper(t.Context(), rebase.NewWorker(d.q, nil))
	t.Cleanup(s.Close)
	require.NoError(t, s.Orphans(t.Context()))
	require.Equal(t, rebase.StatusPending, d.status(id))
}

// A row that somebody locks is left for the next hour.
func TestJ11AnOrphanThatIsLockedIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := deskOn(t, r.pool, nil)
	ids := []int64{d.orphan(0, "null"), d.orphan(1, "null")}
	release := r.hold(ids[0])
	s := rebase.NewStepper(t.Context(), rebase.NewWorker(d.q, nil))
	t.Cleanup(s.Close)
	require.NoError(t, s.Orphans(t.Context()))
	require.Equal(t, rebase.StatusRunning, d.status(ids[0]))
	require.Equal(t, rebase.StatusPending, d.status(ids[1]))
	release()
	require.NoError(t, s.Orphans(t.Context()))
	require.Equal(t, rebase.StatusPending, d.status(ids[0]))
}
