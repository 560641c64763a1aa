package rebase_test

// What keeps a slot that has come: nothing but its firing, or a count as missed, ends it. And no
// edit fires a slot from before the schedule existed.

import (
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
