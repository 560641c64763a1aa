package rebase_test

// Firing: a slot makes one job, with any number of instances and whatever becomes of the job,
// and never before the database's clock says so.

import (
	"context"
	"fmt"
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

// C12: no job exists while the database's now() < slot (here: slot and offset), and it exists
// soon after. The worker has no tasks: it fires all the same.
func TestNoJobExistsBeforeItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(r.worker(nil))
	r.exec(`create table wanted (id text, at timestamptz)`)
	for i := range 20 {
		id := fmt.Sprintf("s%02d", i)
		r.set(rebase.Schedule{ID: id, Cron: "0 0 * * *", Task: "report"})
		r.exec(`with s as (
				update rebase.schedules set next_slot = date_trunc('day', now(), 'UTC'), next_run_at = now() + $2 * interval '37 milliseconds',
					run_offset = now() + $2 * interval '37 milliseconds' - date_trunc('day', now(), 'UTC') where id = $1 returning id, next_run_at)
			insert into wanted select * from s`, id, 4+i)
	}
	r.set(rebase.Schedule{ID: "last", Cron: "0 0 1 1 *", Task: "report"}) // tells the worker
	r.until(func() bool { return r.count(`true`) == 20 }, "all have fired")
	require.Equal(t, 20, r.count(`exists (select from wanted w where w.id || '@' = left(idempotency_key, 4) and created_at >= w.at)`))
	require.Zero(t, ask[int64](r, `select sum(missed)::bigint from rebase.schedules`))
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
	rows, err := r.pool.Query(t.Context(), `select distinct split_part(idempotency_key, '@', 1) from rebase.jobs where slot is not null order by 1`)
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
func TestRunsOverlapUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "yes", Cron: "@daily", Task: "report"})
	r.set(rebase.Schedule{ID: "no", Cron: "@daily", Task: "report", NoOverlap: true})
	jobs := func(id string) int { return r.count(`idempotency_key like $1 || '@%'`, id) }
	for day, want := range []int{1, 1, 2} {
		if day == 2 {
			require.NoError(t, r.q.Cancel(t.Context(), ask[int64](r, `select id from rebase.jobs where idempotency_key like 'no@%'`), ""))
		}
		r.slotOf("yes", 3-day)
		r.slotOf("no", 3-day)
		last := r.state("no").LastSlot
		r.fired()
		require.Equal(t, day+1, jobs("yes"))
		require.Equal(t, want, jobs("no"))
		require.Equal(t, day == 1, last.Equal(r.state("no").LastSlot), "last_slot is one that fired")
	}
	require.EqualValues(t, 1, r.state("no").Missed)
	require.Zero(t, r.state("yes").Missed)
	require.Equal(t, 1, r.count(`id = (select last_job from rebase.schedules where id = 'no') and finished_at is null`))
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
		require.Positive(t, wait)
		require.LessOrEqual(t, wait, time.Minute)
		r.set(minutely(id))
		r.due(id, 0)
		slot := r.state(id).NextRunAt
		_, err = f.Duty(t.Context(), time.Now().Add(off))
		require.NoError(t, err)
		require.Equal(t, 1, r.count(`idempotency_key = $1`, id+"@"+slot.UTC().Format(time.RFC3339)))
	}
}

// C21: the database's clock was two hours ahead while slots fired, and is corrected: what has
// fired does not fire again, though its jobs are gone; and what has not fires at its time, not
// two hours late. A clock that is set back leaves the same rows.
func TestClockThatWasSetBackRepeatsNoSlotAndIsNotSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "a", Cron: "0 * * * *", Task: "report"})
	r.exec(`insert into rebase.schedule_slots select 'a', date_trunc('hour', now()) + n * interval '1 hour', now() + interval '2 hours' from generate_series(1, 2) n`)
	r.exec(`update rebase.schedules set last_slot = date_trunc('hour', now()) + interval '2 hours', ahead = '40 minutes',
		next_slot = date_trunc('hour', now()) + interval '3 hours', next_run_at = date_trunc('hour', now()) + interval '3 hours'`)
	r.duty(r.firer())
	hour := ask[time.Time](r, `select date_trunc('hour', now())`).UTC()
	require.Equal(t, hour.Add(time.Hour), r.state("a").NextRunAt, "anchored to the clock again")
	require.Equal(t, hour.Add(2*time.Hour), r.state("a").LastSlot, "which only grows")
	for range 2 {
		r.shift(time.Hour)
		r.duty(r.firer())
		require.Zero(t, r.count(`true`), "it fired when the clock was ahead")
		require.Equal(t, hour.Add(time.Hour), r.state("a").NextRunAt)
	}
	r.shift(time.Hour)
	r.duty(r.firer())
	require.True(t, r.onlyJob().Slot.Equal(hour))
}

// A step of the clock of less than ten minutes, or less than a period, anchors nothing.
func TestScheduleThatIsNotFarAwayIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "a", Cron: "0 0 1 1 *", Task: "report"})
	r.set(minutely("b"))
	r.exec(`update rebase.schedules set next_run_at = next_run_at + interval '8 minutes' where id = 'b'`)
	before := ask[string](r, `select string_agg(s::text, ';' order by id) from rebase.schedules s`)
	r.duty(r.firer())
	require.Equal(t, before, ask[string](r, `select string_agg(s::text, ';' order by id) from rebase.schedules s`))
}
