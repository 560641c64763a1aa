package rebase_test

// What becomes of slots at which no worker was there. The exact instants are those of the
// decision, which is a function of the row and the database's now(); the table shows that the
// decision is carried out.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// C16: ten hours down with one slot a minute.
func TestTenHoursOfMissedMinutes(t *testing.T) {
	t.Parallel()
	now := instant(t, "2026-05-06T20:00:30Z")
	from := instant(t, "2026-05-06T10:01:00Z")
	for name, c := range map[string]struct {
		catchUp      rebase.CatchUp
		fire, missed int
	}{
		"one":           {rebase.CatchUpOne, 1, 599},
		"skip":          {rebase.CatchUpSkip, 0, 600},
		"all(100)":      {rebase.CatchUpAll(100), 100, 500},
		"all(1)":        {rebase.CatchUpAll(1), 1, 599},
		"all(0) is one": {rebase.CatchUpAll(0), 1, 599},
		"all(10,000)":   {rebase.CatchUpAll(10_000), 600, 0},
		"all, no limit": {rebase.CatchUpAll(1 << 40), 600, 0},
	} {
		s := minutely("a")
		s.CatchUp = c.catchUp
		fire, missed, next, err := rebase.SlotsAt(s, from, now)
		require.NoError(t, err)
		require.Len(t, fire, c.fire, name)
		require.Equal(t, c.missed, missed, name)
		require.Equal(t, instant(t, "2026-05-06T20:01:00Z"), next, name)
		for i, slot := range fire {
			require.Equal(t, now.Truncate(time.Minute).Add(-time.Duration(i)*time.Minute), slot, "%s: the latest ones", name)
		}
	}
}

// C16 at the database. A minute may pass meanwhile, so what fired and what was missed are added up.
func TestMissedSlotsAreFiredOrCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id, c := range map[string]struct {
		catchUp rebase.CatchUp
		fire    int
	}{"one": {rebase.CatchUpOne, 1}, "skip": {rebase.CatchUpSkip, 0}, "all": {rebase.CatchUpAll(100), 100}} {
		s := minutely(id)
		s.CatchUp = c.catchUp
		r.set(s)
		r.due(id, 599)
		first := r.state(id).NextRunAt
		r.fired()
		after := r.state(id)
		total := int(after.NextRunAt.Sub(first) / time.Minute)
		require.Contains(t, []int{600, 601}, total)
		require.Equal(t, c.fire, r.count(`idempotency_key like $1 || '@%'`, id))
		require.EqualValues(t, total-c.fire, after.Missed)
		if c.fire == 0 {
			require.True(t, after.LastSlot.IsZero(), "none has fired")
			continue
		}
		require.Equal(t, after.NextRunAt.Add(-time.Minute), after.LastSlot)
		require.Equal(t, c.fire, ask[int](r, `select count(distinct slot)::int from rebase.jobs where idempotency_key like $1 || '@%' and slot > $2`,
			id, after.LastSlot.Add(-time.Duration(c.fire)*time.Minute)), "the latest ones")
	}
	stats, err := r.q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, ask[int64](r, `select sum(missed)::bigint from rebase.schedules`), stats.MissedSlots)
}

// A single slot that is a minute late at most is not missed, also with CatchUpSkip; a later one
// is.
func TestSkipSpeaksOfSlotsThatAreLate(t *testing.T) {
	t.Parallel()
	s := rebase.Schedule{ID: "a", Cron: "0 * * * *", Task: "t", CatchUp: rebase.CatchUpSkip}
	slot := instant(t, "2026-05-06T10:00:00Z")
	for late, want := range map[time.Duration]int{0: 1, time.Minute: 1, time.Minute + time.Microsecond: 0, 59 * time.Minute: 0} {
		fire, missed, next, err := rebase.SlotsAt(s, slot, slot.Add(late))
		require.NoError(t, err)
		require.Len(t, fire, want, late)
		require.Equal(t, 1-want, missed, late)
		require.Equal(t, slot.Add(time.Hour), next)
	}
}

// NoOverlap with CatchUpAll makes one job, since those of one look would overlap.
func TestWithoutOverlapOneMissedSlotFiresAtMost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := minutely("a")
	s.NoOverlap, s.CatchUp = true, rebase.CatchUpAll(10)
	r.set(s)
	r.due("a", 5)
	r.fired()
	require.Equal(t, 1, r.count(`true`))
	require.GreaterOrEqual(t, r.state("a").Missed, int64(5))
}

// S2, C3, C1: what is caught up are the slots of the zone: a repeated hour counts once for a
// fixed time, and a skipped one fires after the gap.
func TestCatchUpFollowsTheZonesClock(t *testing.T) {
	t.Parallel()
	s := rebase.Schedule{ID: "a", Cron: "30 1 * * *", Zone: "America/New_York", Task: "t", CatchUp: rebase.CatchUpAll(10)}
	fire, missed, next, err := rebase.SlotsAt(s, instant(t, "2026-11-01T05:30:00Z"), instant(t, "2026-11-02T06:00:00Z"))
	require.NoError(t, err)
	require.Equal(t, []time.Time{instant(t, "2026-11-01T05:30:00Z")}, fire)
	require.Zero(t, missed)
	require.Equal(t, instant(t, "2026-11-02T06:30:00Z"), next)

	s.Cron = "30 2 * * *"
	fire, _, next, err = rebase.SlotsAt(s, instant(t, "2026-03-08T07:00:00Z"), instant(t, "2026-03-09T06:29:59Z"))
	require.NoError(t, err)
	require.Equal(t, []time.Time{instant(t, "2026-03-08T07:00:00Z")}, fire)
	require.Equal(t, instant(t, "2026-03-09T06:30:00Z"), next)
}

// S3: with a window it is slot and offset that must have passed.
func TestOffsetDelaysTheFiringOfASlot(t *testing.T) {
	t.Parallel()
	s := rebase.Schedule{ID: "job-0001", Cron: "0 * * * *", Task: "t", Window: 300 * time.Second}
	slot := instant(t, "2026-05-06T10:00:00Z")
	at := slot.Add(rebase.ScheduleOffset(s))
	fire, missed, next, err := rebase.SlotsAt(s, slot, at.Add(-time.Millisecond))
	require.NoError(t, err)
	require.Empty(t, fire)
	require.Zero(t, missed)
	require.Equal(t, slot, next)
	fire, _, next, err = rebase.SlotsAt(s, slot, at)
	require.NoError(t, err)
	require.Equal(t, []time.Time{slot}, fire)
	require.Equal(t, slot.Add(time.Hour), next)
}

// C20: paused over slots, then resumed: nothing is fired back, nothing counts as missed, and
// the next slot fires.
func TestSlotsOfAPauseAreNotMadeUpFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := minutely("a")
	s.CatchUp = rebase.CatchUpAll(100)
	r.set(s)
	require.NoError(t, r.q.PauseSchedule(t.Context(), "a"))
	r.due("a", 3)
	require.True(t, r.state("a").Paused)
	require.True(t, r.state("a").NextRunAt.IsZero())
	r.fired()
	r.set(s)
	r.fired()
	require.True(t, r.state("a").Paused, "a declaration doesn't resume it")
	before := ask[time.Time](r, `select now()`)
	require.NoError(t, r.q.ResumeSchedule(t.Context(), "a"))
	require.True(t, ask[bool](r, `select next_run_at > $1 from rebase.schedules`, before), "from the next slot on")
	require.NoError(t, r.q.ResumeSchedule(t.Context(), "a"), "not paused: nothing to do")
	require.Zero(t, r.count(`true`))
	require.Zero(t, r.state("a").Missed)
	r.due("a", 0)
	r.fired()
	require.Equal(t, 1, r.count(`true`))
}

// Whoever moves next_run_at by SQL alone means what he writes: back, and slots from there on were
// missed; to an instant that is no slot, and the latest slot fires, if it has not yet.
func TestNextRunAtMayBeMovedByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(minutely("back"))
	r.exec(`update rebase.schedules set next_run_at = date_trunc('minute', now()) - interval '9 minutes' where id = 'back'`)
	r.set(rebase.Schedule{ID: "now", Cron: "0 0 1 1 *", Task: "report", CatchUp: rebase.CatchUpSkip})
	r.exec(`update rebase.schedules set next_run_at = now() where id = 'now'`)
	r.fired()
	require.Equal(t, 1, r.count(`idempotency_key like 'back@%'`))
	require.GreaterOrEqual(t, r.state("back").Missed, int64(9))
	year := ask[time.Time](r, `select date_trunc('year', now(), 'UTC')`).UTC()
	require.Equal(t, 1, r.count(`idempotency_key = $1`, "now@"+year.Format(time.RFC3339)))
	require.Equal(t, year.AddDate(1, 0, 0), r.state("now").NextRunAt)
	r.exec(`update rebase.schedules set next_run_at = now() where id = 'now'`)
	r.fired()
	require.Equal(t, 1, r.count(`idempotency_key like 'now@%'`), "that slot has fired")
}
