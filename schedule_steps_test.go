package rebase_test

// A large catch-up goes in steps that fit a round. The counts are those of one step.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// caughtUp steps the firer until nothing is due at once, and returns how many jobs of the schedule
// each step made.
func (r *rig) caughtUp(f *rebase.Firer, id string) (steps []int) {
	r.t.Helper()
	for made := 0; ; {
		wait, err := f.Duty(r.t.Context(), time.Now())
		require.NoError(r.t, err)
		n := r.count(`idempotency_key like $1 || '@%'`, id)
		steps, made = append(steps, n-made), n
		require.Less(r.t, len(steps), 1000)
		if wait > 0 {
			return steps
		}
	}
}

// C16: the jobs of a step are the earliest that are still to be made, each slot has one, and those
// that are not made up for are counted once. Others fire in the first step.
func TestALargeCatchUpGoesInStepsAndCountsAsOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		catchUp rebase.CatchUp
		jobs    int // at most
	}{"all": {rebase.CatchUpAll(10_000), 10_000}, "the latest 1,200": {rebase.CatchUpAll(1200), 1200}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := minutely("s")
			s.CatchUp = c.catchUp
			r.set(s)
			r.set(minutely("other"))
			r.due("other", 0)
			r.due("s", 2000)
			first := ask[time.Time](r, `select next_slot from rebase.schedules where id = 's'`)
			f := r.firer()
			wait, err := f.Duty(t.Context(), time.Now())
			require.NoError(t, err)
			require.LessOrEqual(t, wait, time.Duration(0), "the next look is at once")
			require.Equal(t, 500, r.count(`idempotency_key like 's@%'`))
			require.Equal(t, 1, r.count(`idempotency_key like 'other@%'`))
			half := r.state("s")
			require.Equal(t, half.LastSlot.Add(time.Minute), half.NextRunAt)

			// Nothing of this is taken for a clock that was set back.
			require.NoError(t, f.Tend(t.Context()))
			require.Equal(t, half.NextRunAt, r.state("s").NextRunAt)

			for _, n := range r.caughtUp(f, "s")[1:] {
				require.LessOrEqual(t, n, 500)
			}
			after := r.state("s")
			total := int(after.NextRunAt.Sub(first) / time.Minute)
			jobs := r.count(`idempotency_key like 's@%'`)
			require.Equal(t, total, jobs+int(after.Missed))
			require.GreaterOrEqual(t, jobs, min(c.jobs, 2001))
			require.LessOrEqual(t, jobs, min(c.jobs+total-2001, total), "and those of minutes that passed meanwhile")
			require.Equal(t, jobs, ask[int](r, `select count(distinct slot)::int from rebase.jobs where idempotency_key like 's@%' and slot > $1`,
				after.LastSlot.Add(-time.Duration(jobs)*time.Minute)), "the latest, without a gap")
		})
	}
}

// C16: a step is bounded by what its payloads weigh, too; RunOnce makes all steps.
func TestACatchUpOfLargePayloadsGoesInSmallSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := minutely("s")
	s.CatchUp, s.Payload = rebase.CatchUpAll(10_000), strings.Repeat("x", 400_000)
	r.set(s)
	r.due("s", 25)
	r.duty(r.firer())
	require.Equal(t, 10, r.count(`true`))
	r.fired()
	require.GreaterOrEqual(t, r.count(`true`), 26)
	require.Zero(t, r.state("s").Missed)
}

// S6: RunOnce fires all that is due, also where a statement that makes too many jobs is refused.
func TestRunOnceFiresALargeCatchUpThatIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := minutely("s")
	s.CatchUp = rebase.CatchUpAll(10_000)
	r.set(s)
	r.due("s", 400)
	r.exec(`create function many() returns trigger language plpgsql as $$ begin
		if (select count(*) from added) > 100 then raise exception 'too many'; end if; return null; end $$`)
	r.exec(`create trigger many after insert on rebase.jobs referencing new table as added for each statement execute function many()`)
	r.once("other", nil, succeed)
	require.GreaterOrEqual(t, r.count("true"), 400)
}
