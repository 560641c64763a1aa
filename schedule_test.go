package rebase_test

// Schedules as they are declared, set and looked at: what stands in the table, and when it may
// change. Instants are given where the decision is a function of them; rows are moved by SQL,
// the clock never is.

import (
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// minutely is a schedule that is due at every minute.
func minutely(id string) rebase.Schedule {
	return rebase.Schedule{ID: id, Cron: "* * * * *", Task: "report"}
}

// set makes or changes a schedule at run time.
func (r *rig) set(s rebase.Schedule) {
	r.t.Helper()
	require.NoError(r.t, r.q.SetSchedule(r.t.Context(), s))
}

// due moves a schedule back, so that it was to fire first at the start of the minute that was
// so many minutes ago. Not shortly before the next minute: then that one's slot may fire instead.
func (r *rig) due(id string, minutes int) {
	r.t.Helper()
	r.until(func() bool { return ask[bool](r, `select extract(second from clock_timestamp()) < 52`) }, "this minute lasts a while")
	r.exec(`update rebase.schedules set next_slot = date_trunc('minute', now()) - $2 * interval '1 minute',
		next_run_at = date_trunc('minute', now()) - $2 * interval '1 minute' + run_offset where id = $1`, id, minutes)
}

// slotOf lets a daily schedule be due for the slot of midnight n days ago, and no other: its
// offset becomes as long.
func (r *rig) slotOf(id string, n int) {
	r.t.Helper()
	r.exec(`update rebase.schedules set next_slot = date_trunc('day', now(), 'UTC') - $2 * interval '24 hours', run_offset = $2 * interval '24 hours',
		next_run_at = date_trunc('day', now(), 'UTC') where id = $1`, id, n)
}

// shift moves all schedules and what is known of their slots back in time, as if it had passed.
func (r *rig) shift(d time.Duration) {
	r.t.Helper()
	r.exec(`update rebase.schedules set next_slot = next_slot - $1::interval, next_run_at = next_run_at - $1::interval, last_slot = last_slot - $1::interval`, d)
	r.exec(`update rebase.schedule_slots set slot = slot - $1::interval, fired_at = fired_at - $1::interval`, d)
}

// firer steps a worker that declares the schedules.
func (r *rig) firer(declared ...rebase.Schedule) *rebase.Firer {
	w := r.worker(nil)
	for _, s := range declared {
		w.Schedule(s)
	}
	f := rebase.NewFirer(r.t.Context(), w)
	r.t.Cleanup(f.Close)
	return f
}

// duty lets the firer do what it has to now.
func (r *rig) duty(f *rebase.Firer) {
	r.t.Helper()
	_, err := f.Duty(r.t.Context(), time.Now())
	require.NoError(r.t, err)
}

// fired fires what is due, by a worker that declares nothing.
func (r *rig) fired() {
	r.t.Helper()
	_, err := r.worker(nil).RunOnce(r.t.Context())
	require.NoError(r.t, err)
}

// state is one schedule as Schedules lists it.
func (r *rig) state(id string) *rebase.ScheduleState {
	r.t.Helper()
	for s, err := range r.q.Schedules(r.t.Context()) {
		require.NoError(r.t, err)
		if s.ID == id {
			return s
		}
	}
	require.FailNow(r.t, "no schedule "+id)
	return nil
}

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	require.NoError(t, err)
	return at.UTC()
}

// S1: declared without I/O, written when Run has reached the database, with all its fields.
func TestDeclaredScheduleIsWrittenByRunAndNotBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Schedule(rebase.Schedule{
		ID: "nightly", Cron: "30 2 * * *", Zone: "Europe/Paris", Task: "report", Lane: "north", Payload: map[string]int{"n": 7}, MaxAttempts: 5,
		Meta: map[string]string{"by": "code"}, Window: time.Minute, CatchUp: rebase.CatchUpAll(3), NoOverlap: true,
	})
	require.Zero(t, ask[int](r, `select count(*)::int from rebase.schedules`))
	r.start(w)
	r.until(func() bool { return ask[int](r, `select count(*)::int from rebase.schedules`) == 1 }, "the schedule is written")
	s := r.state("nightly")
	require.True(t, s.Declared)
	require.Equal(t, "30 2 * * *", s.Cron)
	require.Equal(t, "Europe/Paris", s.Zone)
	require.Equal(t, "report", s.Task)
	require.Equal(t, "north", s.Lane)
	require.JSONEq(t, `{"n": 7}`, fmt.Sprintf("%s", s.Payload))
	require.Equal(t, 5, s.MaxAttempts)
	require.Equal(t, map[string]string{"by": "code"}, s.Meta)
	require.Equal(t, time.Minute, s.Window)
	require.Equal(t, rebase.CatchUpAll(3), s.CatchUp)
	require.True(t, s.NoOverlap)
	require.True(t, s.LastSlot.IsZero())
	require.Zero(t, s.Missed)
	require.True(t, s.NextRunAt.After(ask[time.Time](r, `select now()`)))
	paris, err := time.LoadLocation("Europe/Paris")
	require.NoError(t, err)
	slot := s.NextRunAt.Add(-rebase.ScheduleOffset(s.Schedule)).In(paris)
	require.Equal(t, "02:30:00", slot.Format(time.TimeOnly))
}

// S1: what another version changed is asserted again, and SetSchedule on it lasts no longer.
func TestDeclarationIsAssertedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.firer(minutely("a"))
	require.NoError(t, f.Tend(t.Context()))
	r.set(rebase.Schedule{ID: "a", Cron: "0 0 1 1 *", Task: "other"})
	require.False(t, r.state("a").Declared)
	require.NoError(t, f.Tend(t.Context()))
	s := r.state("a")
	require.True(t, s.Declared)
	require.Equal(t, "* * * * *", s.Cron)
	require.Equal(t, "report", s.Task)
}

// S1: of two versions that live at the same time, the one that came last wins, and the other
// leaves it alone; when the last is gone the older asserts its own.
func TestLastLiveDeclarationWins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old, young := r.firer(minutely("a")), r.firer(rebase.Schedule{ID: "a", Cron: "@hourly", Task: "report"})
	for _, f := range []*rebase.Firer{old, young} {
		require.NoError(t, f.Appear(t.Context()))
	}
	r.exec(`update rebase.workers set started_at = started_at - interval '1 hour' where id = $1`, old.Name())
	for range 2 {
		require.NoError(t, old.Tend(t.Context()))
		require.NoError(t, young.Tend(t.Context()))
		require.NoError(t, old.Tend(t.Context()))
		require.Equal(t, "@hourly", r.state("a").Cron)
	}
	r.exec(`delete from rebase.workers where id = $1`, young.Name())
	require.NoError(t, old.Tend(t.Context()))
	require.Equal(t, "* * * * *", r.state("a").Cron)
}

// S1: two versions that started at one instant don't undo each other's declaration for ever.
func TestVersionsThatStartTogetherDoNotTakeTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.firer(minutely("a")), r.firer(rebase.Schedule{ID: "a", Cron: "@hourly", Task: "report"})
	for _, f := range []*rebase.Firer{a, b} {
		require.NoError(t, f.Appear(t.Context()))
	}
	r.exec(`update rebase.workers set started_at = now()`)
	for _, f := range []*rebase.Firer{a, b, a, b} {
		require.NoError(t, f.Tend(t.Context()))
	}
	version := func() int { return ask[int](r, `select version::int from rebase.schedules`) }
	before := version()
	for _, f := range []*rebase.Firer{a, b, b, a} {
		require.NoError(t, f.Tend(t.Context()))
	}
	require.Equal(t, before, version())
}

// S4: what can't work is refused with its field; nothing is written.
func TestScheduleThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for field, s := range map[string]rebase.Schedule{
		"id":           {Cron: "@daily", Task: "t"},
		"cron":         {ID: "never", Cron: "0 0 30 2 *", Task: "t"},
		"zone":         {ID: "mars", Cron: "@daily", Zone: "Mars/Olympus", Task: "t"},
		"window":       {ID: "wide", Cron: "@daily", Task: "t", Window: 25 * time.Hour},
		"task":         {ID: "nothing", Cron: "@daily"},
		"payload":      {ID: "odd", Cron: "@daily", Task: "t", Payload: make(chan int)},
		"max_attempts": {ID: "few", Cron: "@daily", Task: "t", MaxAttempts: -1},
		"lane":         {ID: "lane", Cron: "@daily", Task: "t", Lane: "a\x00"},
		"meta":         {ID: "meta", Cron: "@daily", Task: "t", Meta: map[string]string{"k": "\x00"}},
	} {
		err := r.q.SetSchedule(t.Context(), s)
		var bad *rebase.ScheduleError
		require.ErrorAs(t, err, &bad, field)
		require.Equal(t, field, bad.Field, err)
		require.PanicsWithValue(t, err.Error(), func() { r.worker(nil).Schedule(s) })
	}
	require.ErrorContains(t, r.q.SetSchedule(t.Context(), rebase.Schedule{ID: "l", Cron: "@daily", Zone: "Local", Task: "t"}), "zone")
	require.Zero(t, ask[int](r, `select count(*)::int from rebase.schedules`))
}

// Worker.Schedule panics on a second declaration, and once the worker has run.
func TestScheduleIsDeclaredOnceAndBeforeRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Schedule(minutely("a"))
	require.PanicsWithValue(t, `rebase: schedule "a" is declared already`, func() { w.Schedule(minutely("a")) })
	_, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.PanicsWithValue(t, `rebase: schedule "b": Run has begun; declare before it`, func() { w.Schedule(minutely("b")) })
}

// C17: at 12:00 a daily 10:00 becomes 11:00: nothing today, tomorrow 11:00.
func TestEditedTimeOfDayCountsFromTomorrow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	noon := instant(t, "2026-05-06T12:00:00Z")
	require.NoError(t, rebase.SetScheduleAt(t.Context(), r.q, rebase.Schedule{ID: "a", Cron: "0 10 * * *", Task: "t"}, noon))
	require.Equal(t, instant(t, "2026-05-07T10:00:00Z"), r.state("a").NextRunAt)
	require.NoError(t, rebase.SetScheduleAt(t.Context(), r.q, rebase.Schedule{ID: "a", Cron: "0 11 * * *", Task: "t"}, noon))
	require.Equal(t, instant(t, "2026-05-07T11:00:00Z"), r.state("a").NextRunAt)
}

// C18: saved again unchanged one second before the slot, or after it, the slot still fires. So
// it does when only what is to be done has changed.
func TestUnchangedDeclarationDoesNotMoveTheSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rebase.Schedule{ID: "a", Cron: "0 10 * * *", Task: "t"}
	slot := instant(t, "2026-05-06T10:00:00Z")
	for _, now := range []time.Time{slot.Add(-time.Hour), slot.Add(-time.Second), slot, slot.Add(time.Second)} {
		require.NoError(t, rebase.SetScheduleAt(t.Context(), r.q, s, now))
		require.Equal(t, slot, r.state("a").NextRunAt, now)
	}
	require.Equal(t, 1, ask[int](r, `select version::int from rebase.schedules`), "nothing was written")
	s.Payload, s.Window = 1, time.Hour
	require.NoError(t, rebase.SetScheduleAt(t.Context(), r.q, s, slot.Add(time.Second)))
	require.Equal(t, slot.Add(rebase.ScheduleOffset(s)), r.state("a").NextRunAt, "a new window moves the firing, not the slot")

	r.set(minutely("b"))
	r.due("b", 0)
	r.set(minutely("b"))
	r.fired()
	require.Equal(t, 1, r.count(`task = 'report'`))
}

// C19: daily becomes weekdays on a Friday: Saturday and Sunday don't fire.
func TestDailyThatBecomesWeekdaysSkipsTheWeekend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	friday := instant(t, "2026-05-08T12:00:00Z")
	require.NoError(t, rebase.SetScheduleAt(t.Context(), r.q, rebase.Schedule{ID: "a", Cron: "0 9 * * *", Task: "t"}, friday))
	require.Equal(t, instant(t, "2026-05-09T09:00:00Z"), r.state("a").NextRunAt)
	require.NoError(t, rebase.SetScheduleAt(t.Context(), r.q, rebase.Schedule{ID: "a", Cron: "0 9 * * 1-5", Task: "t"}, friday))
	require.Equal(t, instant(t, "2026-05-11T09:00:00Z"), r.state("a").NextRunAt)
}

// S3, C24: 1,000 hourly schedules in a window of 300 s: spread evenly, whatever their ids look
// like; the same after every restart; the slot is still :00.
func TestWindowSpreadsSchedulesEvenly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, format := range []string{"job-%04d", "%d", "tenant/%d/hourly"} {
		var tenths [10]int
		for i := range 1000 {
			s := rebase.Schedule{ID: fmt.Sprintf(format, i), Cron: "0 * * * *", Task: "t", Window: 300 * time.Second}
			offset := rebase.ScheduleOffset(s)
			require.GreaterOrEqual(t, offset, time.Duration(0))
			require.Less(t, offset, s.Window)
			tenths[offset*10/s.Window]++
		}
		for _, n := range tenths {
			require.Less(t, math.Abs(float64(n-100)), 50.0, "%s: %v", format, tenths)
		}
	}
	require.Equal(t, 88817*time.Millisecond, rebase.ScheduleOffset(rebase.Schedule{ID: "job-0001", Window: 300 * time.Second}), "a stable function of the id")

	s := rebase.Schedule{ID: "job-0001", Cron: "* * * * *", Task: "t", Window: 300 * time.Second}
	r.set(s)
	next := r.state(s.ID).NextRunAt
	require.Equal(t, rebase.ScheduleOffset(s)%time.Minute, next.Sub(next.Truncate(time.Minute)))
	r.due(s.ID, 2)
	r.fired()
	var job *rebase.Job
	for j, err := range r.q.Jobs(t.Context(), rebase.Filter{}) {
		require.NoError(t, err)
		job = j
	}
	require.NotNil(t, job)
	require.Equal(t, job.Slot.Truncate(time.Minute), job.Slot, "the slot is nominal")
}

// Schedules lists by id over several pages, holds no connection between them, and ends when
// the caller does.
func TestSchedulesAreListedByIDAndPageByPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into rebase.schedules (id, task, cron, zone) select 's' || to_char(i, 'FM0000'), 't', '@daily', 'UTC' from generate_series(1, 450) i`)
	one := rebase.New(pgtestPool(t, r, 1), &rebase.Options{Logger: slog.New(r.log)})
	n := 0
	for s, err := range one.Schedules(t.Context()) {
		require.NoError(t, err)
		n++
		require.Equal(t, fmt.Sprintf("s%04d", n), s.ID)
		if n%150 == 0 {
			require.NoError(t, one.PauseSchedule(t.Context(), s.ID), "the only connection is free")
		}
	}
	require.Equal(t, 450, n)
	for range one.Schedules(t.Context()) {
		n--
		break
	}
	require.Equal(t, 449, n)
}

// pgtestPool is another pool on the rig's database.
func pgtestPool(t *testing.T, r *rig, conns int32) *pgxpool.Pool {
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t, r.pool))
	require.NoError(t, err)
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}
