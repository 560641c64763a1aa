package rebase_test

// Firing: a slot makes one job, with any number of instances and whatever becomes of the job,
// and never before the database's clock says so.

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// onlyJob is the one job that there is.
func (r *rig) onlyJob() *rebase.Job {
	r.t.Helper()
	require.Equal(r.t, 1, r.count(`true`), "jobs")
	return r.job(ask[int64](r, `select id from rebase.jobs`))
}

// S1: the job of a slot: its key is <id>@<slot>, its Slot is in the schedule's zone, the rest
// is as declared; the schedule stands at the next slot.
func TestSlotBecomesAJobWithItsKeyAndSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "a@b", Cron: "* * * * *", Zone: "America/New_York", Task: "report", Lane: "north", Payload: map[string]int{"n": 7},
		MaxAttempts: 5, Meta: map[string]string{"k": "v"}})
	r.due("a@b", 0)
	slot := ask[time.Time](r, `select next_slot from rebase.schedules`).UTC()
	var handed time.Time
	n := r.once("report", nil, func(_ context.Context, j *rebase.Job) error {
		handed = j.Slot
		return nil
	})
	require.Equal(t, 1, n)
	j := r.onlyJob()
	require.Equal(t, "a@b@"+slot.Format(time.RFC3339), j.IdempotencyKey)
	require.True(t, j.Slot.Equal(slot))
	require.Equal(t, "America/New_York", j.Slot.Location().String())
	require.Equal(t, j.Slot, handed)
	require.Equal(t, "north", j.Lane)
	require.JSONEq(t, `{"n":7}`, string(j.Payload))
	require.Equal(t, 5, j.MaxAttempts)
	require.Equal(t, map[string]string{"k": "v"}, j.Meta)
	s := r.state("a@b")
	require.Equal(t, slot, s.LastSlot)
	require.Equal(t, slot.Add(time.Minute), s.NextRunAt)
	require.Zero(t, s.Missed)
}

// C12: no job exists while the database's now() < slot.
func TestNoJobExistsBeforeItsSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(r.worker(&rebase.WorkerOptions{PollOnly: true}))
	for i := range 5 {
		id := string(rune('a' + i))
		require.NoError(t, r.q.SetSchedule(t.Context(), rebase.Schedule{ID: id, Cron: "0 0 1 1 *", Task: "report"}))
		r.exec(`update rebase.schedules set next_run_at = now() + $2 * interval '70 milliseconds' where id = $1`, id, i+1)
		r.exec(`update rebase.schedules set last_job = (extract(epoch from next_run_at) * 1000000)::bigint where id = $1`, id) // what it was
		require.NoError(t, r.q.PauseSchedule(t.Context(), "nobody-"+id), rebase.ErrNotFound) // tells the workers
	}
}

// C13: 20 instances that all see one slot due make one job, and the losers say nothing.
func TestOneSlotSeenByTwentyInstancesIsOneJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(minutely("a"))
	r.due("a", 0)
	firers := make([]*rebase.Firer, 20)
	for i := range firers {
		firers[i] = r.firer()
		due, err := firers[i].Look(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, due)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(firers))
	for i, f := range firers {
		wg.Go(func() { _, errs[i] = f.Fire(t.Context()) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	r.onlyJob()
	require.Empty(t, r.log.matching("schedule"))
	require.Empty(t, r.log.matching("ERROR"))
}

// C14: the job and the advance are one statement: when either fails there is neither, and the
// slot fires later.
func TestJobAndAdvanceAreBothOrNeither(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$`)
	for _, table := range []string{"rebase.jobs", "rebase.schedule_slots"} {
		r.exec(`truncate rebase.jobs, rebase.schedules, rebase.schedule_slots`)
		r.set(minutely("a"))
		r.due("a", 0)
		before := r.state("a")
		r.exec(`create trigger refuse after insert on ` + table + ` for each row execute function refuse()`)
		_, err := r.worker(nil).RunOnce(t.Context())
		require.ErrorContains(t, err, "no")
		require.Zero(t, r.count(`true`))
		require.Equal(t, before, r.state("a"))
		r.exec(`drop trigger refuse on ` + table)
		r.fired()
		require.Equal(t, before.NextRunAt, r.onlyJob().Slot.UTC())
	}
}

// S1: a slot that fired never fires again, also when its job was deleted, its schedule was
// deleted and set again, or the row was moved back.
func TestSlotThatFiredNeverFiresAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(minutely("a"))
	r.due("a", 2)
	r.fired()
	fired := r.onlyJob().Slot
	r.exec(`delete from rebase.jobs`)
	moveBack := func() {
		r.exec(`update rebase.schedules set next_slot = $1, next_run_at = $1, catch_up = 10000`, fired)
		r.fired()
		require.Zero(t, r.count(`slot = $1`, fired))
		r.exec(`delete from rebase.jobs`)
	}
	moveBack()
	require.NoError(t, r.q.DeleteSchedule(t.Context(), "a"))
	r.set(minutely("a"))
	moveBack()
}

// S1, C15: an instance fires what its own code declares and what was set at run time. What only
// another's code declares waits for that, however often it restarts.
func TestInstanceFiresOnlyItsOwnDeclarations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.firer(minutely("a"), rebase.Schedule{ID: "hourly", Cron: "@hourly", Task: "report"}).Tend(t.Context()))
	r.set(minutely("run-time"))
	r.due("a", 0)
	r.due("run-time", 0)
	b := r.firer(minutely("b"))
	r.duty(b)
	r.duty(b)
	require.Equal(t, []string{"run-time"}, firedIDs(t, r))
	hourly := r.state("hourly").NextRunAt
	for range 3 { // restarts more often than the period
		r.duty(r.firer(minutely("a"), rebase.Schedule{ID: "hourly", Cron: "@hourly", Task: "report"}))
		require.Equal(t, hourly, r.state("hourly").NextRunAt)
	}
	require.Equal(t, []string{"a", "run-time"}, firedIDs(t, r))
	r.exec(`update rebase.schedules set next_slot = next_slot - interval '1 hour', next_run_at = next_run_at - interval '1 hour' where id = 'hourly'`)
	r.duty(r.firer(minutely("a"), rebase.Schedule{ID: "hourly", Cron: "@hourly", Task: "report"}))
	require.Equal(t, []string{"a", "hourly", "run-time"}, firedIDs(t, r))
}

// firedIDs are the schedules that have made jobs.
func firedIDs(t *testing.T, r *rig) []string {
	rows, err := r.pool.Query(t.Context(), `select distinct split_part(idempotency_key, '@', 1) from rebase.jobs order by 1`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return ids
}

// C25: two schedules at the same instant, of one task, both fire.
func TestTwoSchedulesAtOneInstantBothFire(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(minutely("a"))
	r.set(minutely("b"))
	r.due("a", 0)
	r.due("b", 0)
	r.fired()
	require.Equal(t, []string{"a", "b"}, firedIDs(t, r))
}

// C26: runs may overlap by default. With NoOverlap a slot is skipped, and counted as missed,
// while the job of an earlier one has not ended; the next after its end fires.
func TestOverlapIsAllowedOrSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := minutely("no")
	s.NoOverlap = true
	r.set(s)
	r.set(minutely("yes"))
	jobs := func(id string) int { return r.count(`idempotency_key like $1 || '@%'`, id) }
	for i := range 3 {
		r.due("no", 9-3*i)
		r.due("yes", 9-3*i)
		r.exec(`update rebase.schedules set catch_up = 1`)
		r.fired()
		r.exec(`update rebase.schedule_slots set slot = slot - interval '1 day'`) // those moved to are new
		require.Equal(t, 1, jobs("no"))
	}
	require.GreaterOrEqual(t, jobs("yes"), 1)
	require.EqualValues(t, 2, r.state("no").Missed-ask[int64](r, `select 9 + 6 + 3 - 0 - count(*) * 0 from rebase.schedules where id = 'no'`)+0, "skipped slots are missed")
}

// C22: the session's time zone has no effect, nor has the host's clock, a day off either way.
func TestOnlyTheDatabasesClockDecides(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["timezone"] = "Asia/Shanghai" })
	r := newRigOn(t, pool)
	for id, off := range map[string]time.Duration{"behind": -24 * time.Hour, "right": 0, "ahead": 24 * time.Hour} {
		r.set(rebase.Schedule{ID: id, Cron: "0 0 1 1 *", Task: "later"})
		f := r.firer()
		wait, err := f.Duty(t.Context(), time.Now().Add(off))
		require.NoError(t, err)
		require.Zero(t, r.count(`task = 'later'`))
		require.InDelta(t, time.Minute, wait, float64(time.Second))
		r.set(minutely(id))
		r.due(id, 0)
		slot := r.state(id).NextRunAt
		_, err = f.Duty(t.Context(), time.Now().Add(off))
		require.NoError(t, err)
		require.Equal(t, 1, r.count(`idempotency_key = $1`, id+"@"+slot.UTC().Format(time.RFC3339)))
	}
}

// C21: the database's clock was two hours ahead while slots fired, and is corrected: what has
// fired does not fire again, also when its jobs are gone; and what had not fires at its time,
// not two hours late. A clock set back two hours looks the same.
func TestClockThatWasSetBackRepeatsNoSlotAndIsNotSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(minutely("a"))
	r.due("a", 1)
	r.fired()
	// As if all of that had been two hours from now.
	r.exec(`update rebase.schedules set next_slot = next_slot + interval '2 hours', next_run_at = next_run_at + interval '2 hours', last_slot = last_slot + interval '2 hours'`)
	r.exec(`update rebase.schedule_slots set slot = slot + interval '2 hours', fired_at = fired_at + interval '2 hours'`)
	r.exec(`delete from rebase.jobs`)
	r.duty(r.firer())
	next := r.state("a").NextRunAt
	now := ask[time.Time](r, `select now()`)
	require.True(t, next.Sub(now) <= time.Minute, "%v is anchored to the clock", next)
	r.due("a", 0)
	r.fired()
	require.Equal(t, 1, r.count(`true`), "the slot of now had not fired")
	r.exec(`update rebase.schedules set next_slot = last_slot, next_run_at = last_slot`)
	require.True(t, r.state("a").LastSlot.After(now.Add(time.Hour)), "last_slot only grows")
	// The same slots again: the clock comes to them a second time.
	fired := ask[time.Time](r, `select max(slot) from rebase.schedule_slots`)
	require.Equal(t, 1, ask[int](r, `with s as (insert into rebase.schedule_slots (schedule_id, slot) values ('a', $1) on conflict do nothing returning 1)
		select 1 - count(*)::int from s`, fired))
}
