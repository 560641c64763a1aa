package rebase_test

// What keeps a slot that has come: nothing but its firing, or a count as missed, ends it. And no
// edit fires a slot from before the schedule existed.

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// C23, S2: the slots of the time in which a schedule was broken are fired or missed, whoever heals it.
func TestSlotsOfABrokenScheduleAreFiredOrMissedWhoeverHealsIt(t *testing.T) {
	t.Parallel()
	s := rebase.Schedule{ID: "a", Cron: "0 * * * *", Task: "t"}
	for how, heal := range map[string]func(*rig) *rebase.Firer{
		"a look at the table": func(r *rig) *rebase.Firer { return r.firer() },
		"a declaration":       func(r *rig) *rebase.Firer { return r.firer(s) },
		"SetSchedule":         func(r *rig) *rebase.Firer { r.set(s); return r.firer() },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.set(s)
			first := ask[time.Time](r, `select date_trunc('hour', now()) - interval '3 hours'`)
			r.exec(`update rebase.schedules set error = 'unknown time zone', version = version + 1, next_slot = $1, next_run_at = $1`, first)
			f := heal(r)
			require.NoError(t, f.Tend(t.Context()))
			r.duty(f)
			after := r.state("a")
			require.Empty(t, after.Error)
			slots := int(after.NextRunAt.Sub(first) / time.Hour)
			require.GreaterOrEqual(t, slots, 4)
			require.Equal(t, slots, r.count(`true`)+int(after.Missed))
		})
	}
}

// late is the schedule with an id that gives it an offset near the end of its window.
func late(s rebase.Schedule) rebase.Schedule {
	for i := 0; rebase.ScheduleOffset(s) < s.Window*99/100; i++ {
		s.ID = fmt.Sprint("late", i)
	}
	return s
}

// C20, S3: a slot that came before the pause, and fires by its offset after it, fires.
func TestASlotThatCameBeforeAPauseFiresAfterIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := late(rebase.Schedule{Cron: "@hourly", Task: "t", Window: 24 * time.Hour})
	r.set(s)
	r.exec(`update rebase.schedules set next_slot = date_trunc('hour', now()) - interval '7 hours', next_run_at = date_trunc('hour', now()) - interval '7 hours' + run_offset`)
	pause := func() (next, slot time.Time) {
		require.NoError(t, r.q.PauseSchedule(t.Context(), s.ID))
		require.NoError(t, r.q.ResumeSchedule(t.Context(), s.ID))
		return r.state(s.ID).NextRunAt, ask[time.Time](r, `select next_slot from rebase.schedules`).UTC()
	}
	before := r.state(s.ID).NextRunAt
	after, _ := pause()
	require.Equal(t, before, after)

	// One whose time to fire came in the pause is not made up for.
	r.exec(`update rebase.schedules set next_slot = next_slot - interval '3 days', next_run_at = next_run_at - interval '3 days'`)
	now := ask[time.Time](r, `select now()`)
	after, slot := pause()
	require.True(t, after.After(now))
	require.True(t, slot.Before(now), "the next to fire is one that has come")

	// Nor does a schedule fire what came before it existed, or stay where a clock set back left it.
	r.exec(`update rebase.schedules set next_slot = date_trunc('hour', now()) + interval '1 hour'`)
	_, slot = pause()
	require.True(t, slot.After(now))
	r.exec(`update rebase.schedules set next_slot = date_trunc('hour', now()) + interval '9 hours'`)
	_, slot = pause()
	require.LessOrEqual(t, slot.Sub(now), 2*time.Hour)
}

// S2, S3: a wider window only moves the next firing; it is no clock that was set back, which would anchor
// the schedule to a slot from before it existed.
func TestAWiderWindowFiresNoSlotFromBeforeTheSchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wide := late(rebase.Schedule{Cron: "@hourly", Task: "t", Window: 24 * time.Hour})
	narrow := wide
	narrow.Window = 0
	r.set(narrow)
	slot := r.state(wide.ID).NextRunAt
	f := r.firer()
	for _, s := range []rebase.Schedule{wide, narrow, wide} {
		r.set(s)
		require.NoError(t, f.Tend(t.Context()))
		require.Equal(t, slot.Add(rebase.ScheduleOffset(s)), r.state(wide.ID).NextRunAt)
	}
	// After it the clock is still seen to be set back.
	r.exec(`update rebase.schedules set next_slot = next_slot + interval '3 days', next_run_at = next_run_at + interval '3 days'`)
	require.NoError(t, f.Tend(t.Context()))
	require.Less(t, r.state(wide.ID).NextRunAt.Sub(slot), 25*time.Hour)
}

// S1: a slot that fired never fires again, also when next_run_at is moved after the seven days for
// which schedule_slots remembers it: the row itself knows its last slot.
func TestS1ALastSlotIsNotFiredAgainAfterSevenDays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "yearly", Cron: "0 0 1 1 *", Task: "report"})
	r.exec(`update rebase.schedules set last_slot = date_trunc('year', now(), 'UTC') where id = 'yearly'`)
	r.exec(`update rebase.schedules set next_run_at = now() where id = 'yearly'`)
	r.fired()
	require.Zero(t, r.count("true"))
}
