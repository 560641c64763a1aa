package rebase_test

// J17: what can't be deleted, and an archive that doesn't return, hold up nothing else.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// old makes n jobs that succeeded long ago, by twos in the same instant, and one dead letter.
func (r *rig) old(n int) (ids []int64) {
	ids = r.enqueueMany("old", n, nil)
	r.exec(`update rebase.jobs set status = 'succeeded', finished_at = now() - interval '1 year' + id / 2 * interval '1 second'`)
	dead := r.enqueue("dead", nil)
	r.exec(`update rebase.jobs set status = 'failed', dead = true, finished_at = now() - interval '1 year' where id = $1`, dead)
	return ids
}

// J17: the jobs that a user's table refers to stay, and are told; all others go.
func TestJobsThatCannotBeDeletedAreSteppedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.old(50)
	kept := []int64{ids[0], ids[20], ids[21], ids[49]}
	r.exec(`create table orders (job bigint references rebase.jobs (id))`)
	r.exec(`insert into orders select unnest($1::bigint[])`, kept)
	s := r.handle("x", nil, succeed)
	r.until(func() bool { return r.count("true") == len(kept) }, "the others are gone, dead letters too")
	require.NoError(t, s.stop())
	for _, id := range kept {
		require.Len(t, r.log.matching("ERROR", "can't be deleted", fmt.Sprintf("job_id=%d ", id), "orders_job_fkey"), 1)
	}
	require.Len(t, r.log.matching("ERROR"), len(kept), "nothing else is told")
}

// J17: the next sweep tries them again; many are counted.
func TestJobsThatWereSteppedOverAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.old(50)
	r.exec(`create table orders (job bigint references rebase.jobs (id))`)
	r.exec(`insert into orders select unnest($1::bigint[])`, ids[:30])
	s := r.purger(nil, nil)
	r.until(func() bool { return s.Purge() == nil && r.count("true") == 30 }, "the others are gone")
	require.Equal(t, 30, r.count("task = 'old'"))
	require.Len(t, r.log.matching("ERROR", "an old job can't be deleted"), 10)
	require.Len(t, r.log.matching("ERROR", "many old jobs can't be deleted jobs=30"), 1)
	r.exec(`drop table orders`)
	r.until(func() bool { return s.Purge() == nil && r.count("true") == 0 }, "these too")
}

// J17: a job that the archive refuses stays, and is told; all others go.
func TestAJobThatCannotBeArchivedIsSteppedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.old(50)
	s := r.purger(nil, func(_ context.Context, _ pgx.Tx, jobs []*rebase.Job) error {
		if slices.ContainsFunc(jobs, func(j *rebase.Job) bool { return j.ID == ids[2] }) {
			return errBoom
		}
		return nil
	})
	r.until(func() bool { return s.Purge() == nil && r.count("true") == 1 }, "the others are gone")
	require.Equal(t, 1, r.count("id = $1", ids[2]))
	require.Len(t, r.log.matching("ERROR", "can't be deleted", fmt.Sprintf("job_id=%d ", ids[2]), "boom"), 1)
}

// J17: so does one that the archive never has the time for.
func TestAJobThatIsTooSlowToArchiveIsSteppedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.old(1)[0]
	s := r.purger(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, func(ctx context.Context, _ pgx.Tx, jobs []*rebase.Job) error {
		if jobs[0].ID == id {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	s.PurgeBatch(1)
	require.Error(t, s.PurgeNext())
	require.Len(t, r.log.matching("ERROR", "can't be deleted", fmt.Sprintf("job_id=%d ", id)), 1)
	r.until(func() bool { return s.PurgeNext() == nil && r.count("true") == 1 }, "the dead letter is gone")
	require.Equal(t, 1, r.count("id = $1", id))
}
