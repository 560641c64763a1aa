package rebase_test

// Schedules in trouble and what else a worker has to write: each has its turn.

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// slowReports makes each job of a schedule take so many seconds to be made, and then be refused.
func (r *rig) slowReports(seconds float64) {
	r.exec(fmt.Sprintf(`create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(%v); raise 'no'; end $$`, seconds))
	r.exec(`create trigger slow before insert on rebase.jobs for each row when (new.task = 'report') execute function slow()`)
}

// S4: "the others go on": schedules whose firing takes longer than a round may keep no result from
// being recorded. A look at these takes longer than the pause after it.
func TestSchedulesThatFireTooSlowlyHoldUpNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.slowReports(20)
	for _, id := range []string{"a", "b", "c", "d"} {
		r.set(minutely(id))
		r.due(id, 0)
	}
	r.handle("quick", &rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, succeed)
	r.until(func() bool { return len(r.log.matching("ERROR", "refuses a schedule")) > 0 }, "a look has failed")
	for range 3 {
		j := r.ends(r.enqueue("quick", nil), rebase.StatusSucceeded)
		require.Equal(t, 1, j.Attempts, "its lease was not lost meanwhile")
	}
}

// S4: the same for many that are refused quickly; and one that can be fired is.
func TestManyRefusedSchedulesHoldUpNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.slowReports(0.03)
	for i := range 80 {
		r.set(minutely(fmt.Sprint("a", i)))
	}
	good := minutely("good")
	good.Task = "quick"
	r.set(good)
	r.exec(`update rebase.schedules set next_slot = date_trunc('minute', now()), next_run_at = date_trunc('minute', now())`)
	r.handle("quick", nil, succeed)
	r.until(func() bool { return len(r.log.matching("ERROR", "refuses a schedule")) > 0 }, "a look has failed")
	r.ends(r.enqueue("quick", nil), rebase.StatusSucceeded)
	r.until(func() bool {
		return r.count(`idempotency_key like 'good@%' or slot is not null and status = 'succeeded'`) > 0
	}, "the good one has fired")
}

// The pause after a look that failed counts from its end: the database has a rest between two.
func TestThePauseBetweenLooksCountsFromTheEndOfTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.slowReports(0.5)
	r.set(minutely("a"))
	r.due("a", 0)
	f := r.firer()
	f.AsRun()
	wait, err := f.Duty(t.Context(), time.Now())
	require.NoError(t, err)
	require.InDelta(t, 2*time.Second, wait, float64(300*time.Millisecond))
}
