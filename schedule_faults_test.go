package rebase_test

// One schedule that is in trouble holds up no other, says so, and goes on when the trouble is
// over; and nothing that others do between a look and what follows loses a slot.

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// C23, S4: a zone that this host doesn't know: that schedule shows its error, fires never, and not
// in UTC; the rest run. A host that knows it, or a new declaration, brings it back.
func TestUnknownZoneStopsOneScheduleAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"good", "mars"} {
		r.set(minutely(id))
		r.due(id, 0)
	}
	r.exec(`update rebase.schedules set zone = 'Mars/Olympus' where id = 'mars'`)
	for range 3 {
		r.fired()
	}
	require.Equal(t, []string{"good"}, firedIDs(t, r))
	s := r.state("mars")
	require.Contains(t, s.Error, "Mars/Olympus")
	require.True(t, s.NextRunAt.IsZero())
	require.Len(t, r.log.matching("ERROR", "can't be fired", "mars"), 1, "said once")
	require.Empty(t, r.state("good").Error)

	r.exec(`update rebase.schedules set zone = 'Europe/Paris' where id = 'mars'`) // as if this host knew it
	r.fired()
	require.Empty(t, r.state("mars").Error)
	require.Equal(t, []string{"good", "mars"}, firedIDs(t, r), "the slot is late, not lost")

	r.exec(`update rebase.schedules set error = 'e', zone = 'Mars/Olympus' where id = 'mars'`)
	r.set(minutely("mars"))
	require.Empty(t, r.state("mars").Error)
	require.False(t, r.state("mars").NextRunAt.IsZero())
}

// A row that can't be read as a declaration (edited by SQL) is marked, too.
func TestRowThatCannotBeReadIsMarked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"a-cron", "a-meta", "good"} {
		r.set(minutely(id))
		r.due(id, 0)
	}
	r.exec(`update rebase.schedules set cron = '61 * * * *' where id = 'a-cron'`)
	r.exec(`update rebase.schedules set meta = '{"n": 1}' where id = 'a-meta'`)
	r.fired()
	require.Equal(t, []string{"good"}, firedIDs(t, r))
	require.Contains(t, r.state("a-cron").Error, "cron")
	require.Contains(t, r.state("a-meta").Error, "meta")
}

// A row that somebody holds locked is passed by, and fires when it is let go.
func TestLockedScheduleHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	declared := []rebase.Schedule{minutely("free"), minutely("held")}
	require.NoError(t, r.firer(declared...).Tend(t.Context()))
	r.due("free", 0)
	r.due("held", 0)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from rebase.schedules where id = 'held' for update`)
	require.NoError(t, err)
	f := r.firer(declared...)
	wait, err := f.Duty(t.Context(), time.Now())
	require.NoError(t, err)
	require.LessOrEqual(t, wait, 2*time.Second, "it is looked at again soon")
	require.Equal(t, []string{"free"}, firedIDs(t, r))
	require.NoError(t, tx.Rollback(t.Context()))
	r.duty(f)
	require.Equal(t, []string{"free", "held"}, firedIDs(t, r))
}

// A schedule whose job the database refuses doesn't take the others of its look with it.
func TestRefusedJobHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"a", "b", "c"} {
		r.set(minutely(id))
		r.due(id, 0)
	}
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin
		if new.idempotency_key like 'b@%' then raise 'not b'; end if; return new; end $$`)
	r.exec(`create trigger refuse before insert on rebase.jobs for each row execute function refuse()`)
	_, err := r.firer().Duty(t.Context(), time.Now())
	require.ErrorContains(t, err, `schedule "b"`)
	require.ErrorContains(t, err, "not b")
	require.Equal(t, []string{"a", "c"}, firedIDs(t, r))
	run := r.firer()
	run.AsRun()
	for range 3 {
		wait, err := run.Duty(t.Context(), time.Now())
		require.NoError(t, err)
		require.LessOrEqual(t, wait, 2*time.Second, "it is tried again soon")
	}
	require.Len(t, r.log.matching("ERROR", `schedule "b"`), 1, "and said once a minute")
	r.exec(`drop trigger refuse on rebase.jobs`)
	r.fired()
	require.Equal(t, []string{"a", "b", "c"}, firedIDs(t, r))
}

// After an error the next look is soon, not at the next period.
func TestFailedLookIsRepeatedSoon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.firer()
	r.duty(f)
	r.exec(`alter table rebase.schedules rename to gone`)
	wait, err := f.Duty(t.Context(), time.Now())
	require.Error(t, err)
	require.LessOrEqual(t, wait, 2*time.Second)
	r.exec(`alter table rebase.gone rename to schedules`)
	wait, err = f.Duty(t.Context(), time.Now())
	require.NoError(t, err)
	require.InDelta(t, time.Minute, wait, float64(time.Second))
}

// A change that is notified while a look is under way makes another.
func TestChangeDuringALookIsNotForgotten(t *testing.T) {
	t.Parallel()
	f := newRig(t).firer()
	require.True(t, f.Told(true))
	require.False(t, f.Told(false))
}

// Notifications can come in any number, from everybody who can connect: they make a look soon
// after the last one, and no more than ten a second.
func TestAFloodOfScheduleNotificationsMakesFewLooks(t *testing.T) {
	t.Parallel()
	f := newRig(t).firer()
	now := time.Now()
	for range 1000 {
		require.Equal(t, 100*time.Millisecond, f.Heard(now))
	}
	require.Less(t, f.Heard(now.Add(-time.Hour)), time.Second, "after a pause at once")
}

// An edit between a look and its firing: the firing does nothing, and nothing of the old
// schedule is made. The same for a pause and for a delete.
func TestFiringComputedFromAnOlderRowDoesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, change := range map[string]func() error{
		"edit": func() error {
			return r.q.SetSchedule(t.Context(), rebase.Schedule{ID: "a", Cron: "* * * * *", Task: "other"})
		},
		"pause":  func() error { return r.q.PauseSchedule(t.Context(), "a") },
		"delete": func() error { return r.q.DeleteSchedule(t.Context(), "a") },
	} {
		r.exec(`truncate rebase.jobs, rebase.schedules, rebase.schedule_slots`)
		r.set(minutely("a"))
		r.due("a", 0)
		f := r.firer()
		due, err := f.Look(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, due)
		require.NoError(t, change())
		all, err := f.Fire(t.Context())
		require.NoError(t, err)
		require.False(t, all, name)
		require.Zero(t, r.count(`true`), name)
		r.duty(f)
		require.Equal(t, map[string]int{"edit": 1}[name], r.count(`task = 'other'`), name)
		require.Zero(t, r.count(`task = 'report'`), name)
	}
}

// Declaring and firing work in every mode in which pgx can send a statement.
func TestSchedulesWorkInEveryExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
			s := rebase.Schedule{ID: "b", Cron: "@daily", Zone: "Europe/Paris", Task: "report", Meta: map[string]string{"k": "v"}, Window: 24 * time.Hour,
				CatchUp: rebase.CatchUpAll(3), NoOverlap: true, Payload: 1}
			w := r.worker(nil)
			w.Schedule(minutely("a"))
			_, err := w.RunOnce(t.Context())
			require.NoError(t, err)
			r.set(s)
			require.NoError(t, r.q.PauseSchedule(t.Context(), "b"))
			require.NoError(t, r.q.ResumeSchedule(t.Context(), "b"))
			require.NoError(t, r.q.FireSchedule(t.Context(), "b"))
			s.MaxAttempts, s.Payload = 3, r.state("b").Payload
			require.Equal(t, s, r.state("b").Schedule)
			r.exec(`update rebase.schedules set next_slot = next_slot - interval '9 days', next_run_at = next_run_at - interval '9 days'`)
			r.duty(r.firer(minutely("a")))
			require.Equal(t, []string{"a", "b"}, firedIDs(t, r))
		})
	}
}
