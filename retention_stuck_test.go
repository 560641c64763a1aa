package rebase_test

// J17: what can't be deleted, and an archive that doesn't return, hold up nothing else.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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

// J17: so is one that a trigger refuses by the SQLSTATE of an outage.
func TestAJobRefusedAsIfInAnOutageIsSteppedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.old(20)
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no' using errcode = '08001'; end $$`)
	r.exec(fmt.Sprintf(`create trigger refuse before delete on rebase.jobs for each row when (old.id = %d) execute function refuse()`, ids[7]))
	s := r.purger(nil, nil)
	r.until(func() bool { return s.Purge() == nil && r.count("true") == 1 }, "the others are gone")
	require.NotEmpty(t, r.log.matching("ERROR", "an old job can't be deleted", fmt.Sprintf("job_id=%d ", ids[7])))
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

// J17: an archive that ignores its context holds up no result and no end of Run; its jobs stay, and
// what it does with the transaction afterwards fails.
func TestAnArchiveThatIgnoresItsContextHoldsUpNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.old(1)
	in, release, late := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	w := r.worker(&rebase.WorkerOptions{
		VisibilityTimeout: 3 * time.Second, ShutdownTimeout: 2 * time.Second,
		Retention: rebase.Retention{Archive: func(_ context.Context, tx pgx.Tx, _ []*rebase.Job) error {
			close(in)
			<-release // an upload without a context
			_, err := tx.Exec(context.Background(), "select 1")
			late <- err
			return nil
		}},
	})
	w.Register("x", func(context.Context, *rebase.Job) error { <-in; return nil }, nil)
	free := sync.OnceFunc(func() { close(release) })
	s := r.start(w)
	t.Cleanup(free)
	await(t, in)
	r.ends(r.enqueue("x", nil), rebase.StatusSucceeded)
	require.NoError(t, s.stop())
	require.Equal(t, 2, r.count("task <> 'x'"))
	require.Len(t, r.log.matching("ERROR", "Archive ignores its context"), 1)
	free()
	require.Error(t, await(t, late))
	require.Equal(t, 2, r.count("task <> 'x'"))
}

// J17: Run ends in its time also while the archive still has some.
func TestAnArchiveThatIgnoresItsContextHoldsUpNoShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.old(1)
	in, release := make(chan struct{}), make(chan struct{})
	s := r.handle("x", &rebase.WorkerOptions{ShutdownTimeout: time.Second, Retention: rebase.Retention{
		Archive: func(context.Context, pgx.Tx, []*rebase.Job) error {
			close(in)
			<-release
			return nil
		},
	}}, succeed)
	t.Cleanup(func() { close(release) })
	await(t, in)
	began := time.Now()
	require.NoError(t, s.stop())
	require.Less(t, time.Since(began), 8*time.Second, "the archive would have ten")
}

// J17: while it runs no other is called; when it returns retention goes on, with its jobs, one of which
// it had alone and which is left to the next sweep.
func TestRetentionRestsUntilAnArchiveReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.old(2)[0]
	release := make(chan struct{})
	var calls atomic.Int64
	s := r.purger(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, func(context.Context, pgx.Tx, []*rebase.Job) error {
		if calls.Add(1) == 1 {
			<-release
		}
		return nil
	})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	s.PurgeBatch(1)
	require.ErrorContains(t, s.PurgeNext(), "ignores its context")
	require.NoError(t, s.Renew(), "over a new connection")
	require.NoError(t, s.PurgeNext())
	require.EqualValues(t, 1, calls.Load())
	free()
	r.until(func() bool { return s.PurgeNext() == nil && r.count("true") == 1 }, "the others are gone")
	require.Equal(t, 1, r.count("id = $1", id))
	require.NoError(t, s.PurgeNext())
	r.until(func() bool { return s.PurgeNext() == nil && r.count("true") == 0 }, "the next sweep has it")
}
