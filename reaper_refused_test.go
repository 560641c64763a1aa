package rebase_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// J11: what a reaper does with jobs that the database refuses to take back: they stay, they are
// told of and tried again, and they keep no other job.

// deadClaim makes one claim of n jobs whose worker died; of those for which where holds the update is
// refused, after a while.
func (r *rig) deadClaim(task string, n int, where, code string) {
	r.t.Helper()
	r.enqueueMany(task, n, nil)
	r.exec(`update rebase.jobs j set status = 'running', attempts = 1, runs = 1, fence = 1000000, locked_by = 'gone',
		locked_until = now() - interval '1 min', started_at = now() - interval '2 min'`)
	r.exec(`insert into rebase.claims (token, locked_until, lease, worker, ids)
		select fence, now() - interval '1 min', interval '3 s', 'gone', array_agg(id) from rebase.jobs group by fence`)
	r.exec(fmt.Sprintf(`create function poison() returns trigger language plpgsql as $$ begin
		if new.%s and new.crashes > old.crashes then perform pg_catalog.pg_sleep(0.02); raise exception 'no' using errcode = '%s'; end if; return new; end $$`, where, code))
	r.exec(`create trigger poison before update on rebase.jobs for each row execute function poison()`)
}

// reapAll takes all turns of one reap, and returns how many there were.
func (r *rig) reapAll(s *rebase.Stepper) (turns int) {
	r.t.Helper()
	for more := true; more; turns++ {
		var err error
		more, err = s.ReapTurn()
		require.NoError(r.t, err)
	}
	return turns
}

func (r *rig) stepper() *rebase.Stepper {
	s := rebase.NewStepper(r.t.Context(), r.worker(nil))
	r.t.Cleanup(s.Close)
	return s
}

// J11: a job that can't be taken back keeps none of its claim's others. It is told of once, and
// comes back when the table takes it.
func TestJ11AJobThatCannotBeTakenBackKeepsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadClaim("dead", 300, "id in (7, 8, 200)", "P0001")
	s := r.stepper()
	require.Greater(t, r.reapAll(s), 1, "it takes turns")
	require.Equal(t, []int64{7, 8, 200}, ask[[]int64](r, "select array_agg(id order by id) from rebase.jobs where status = 'running'"))
	require.Equal(t, 297, r.count("status = 'pending' and attempts = 1 and crashes = 1 and fence = 0"))
	require.Equal(t, 1, ask[int](r, "select count(*)::int from rebase.claims"), "the ledger still lists them")
	r.reapAll(s)
	for _, id := range []int{7, 8, 200} {
		require.Len(t, r.log.matching("ERROR", "can't be taken back", fmt.Sprintf("job_id=%d ", id)), 1)
	}
	r.exec("drop trigger poison on rebase.jobs")
	r.reapAll(s)
	require.Equal(t, 300, r.count("status = 'pending' and crashes = 1"))
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
}

// J11: when that job is mended while the others of its claim are taken back, the claim goes with it.
func TestJ11AClaimThatWasTakenBackByPartsIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadClaim("dead", 64, "id = 64", "P0001")
	r.exec(`alter function poison() rename to poison1`)
	r.exec(`create sequence tries`) // a nextval outlives the transaction
	r.exec(`create function poison() returns trigger language plpgsql as $$ begin
		if new.id = 64 and nextval('public.tries') <= 3 then raise exception 'no'; end if; return new; end $$`)
	r.exec(`create or replace trigger poison before update on rebase.jobs for each row execute function poison()`)
	r.reapAll(r.stepper())
	require.Zero(t, r.count("status = 'running'"))
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
	require.Empty(t, r.log.matching("can't be taken back"))
}

// J11: where all is refused no reaper asks for each job of each claim, and says it of the claim.
func TestJ11AClaimOfWhichAllIsRefusedIsLeftForTheNextReap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadClaim("dead", 300, "id > 0", "P0001")
	r.exec(`create sequence tries`)
	r.exec(`create function counts() returns trigger language plpgsql as $$ begin perform nextval('public.tries'); return null; end $$`)
	r.exec(`create trigger counts before update on rebase.jobs for each statement execute function counts()`)
	s := r.stepper()
	r.reapAll(s)
	require.Equal(t, 300, r.count("status = 'running'"))
	require.Less(t, ask[int](r, "select last_value::int from tries"), 60)
	require.Len(t, r.log.matching("ERROR", "the jobs of a claim can't be taken back"), 1)
	require.Empty(t, r.log.matching("job_id="))
	r.exec("drop trigger poison on rebase.jobs")
	r.reapAll(s)
	require.Zero(t, r.count("status = 'running'"))
}

// J11: RunOnce takes the others back as well, and ends.
func TestJ11RunOnceTakesBackByParts(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"P0001", "08001"} { // the latter as if in an outage
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.deadClaim("x", 20, "id = 3", code)
			r.once("x", &shortLease, func(context.Context, *rebase.Job) error { return nil })
			require.Equal(t, 1, r.count("status = 'running'"))
			require.Len(t, r.log.matching("ERROR", "can't be taken back", "job_id=3 "), 1)
		})
	}
}
