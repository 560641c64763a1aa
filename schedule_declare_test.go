package rebase_test

// A declaration that can't be written is tried again, and keeps no other from being written.

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// written are the ids in the table of those schedules whose task is report.
func (r *rig) written() []string {
	return ask[[]string](r, `select coalesce(array_agg(id order by id), '{}') from rebase.schedules where task = 'report'`)
}

// S4: "the others go on": also when somebody has locked one.
func TestALockedScheduleKeepsNoOtherFromBeingDeclared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "b", Cron: "@daily", Task: "old"})
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from rebase.schedules where id = 'b' for update`)
	require.NoError(t, err)
	f := r.firer(minutely("a"), minutely("b"), minutely("c"))
	require.NoError(t, f.Appear(t.Context()))
	require.NoError(t, f.Tend(t.Context()))
	require.Equal(t, []string{"a", "c"}, r.written())
	require.False(t, f.Tended())
	require.NoError(t, tx.Rollback(t.Context()))

	_, err = f.Duty(t.Context(), time.Now().Add(3*time.Second)) // long before the next minute
	require.NoError(t, err)
	require.True(t, f.Tended())
	require.Equal(t, []string{"a", "b", "c"}, r.written())
}

// S4: the same for one that the database refuses, which is told, and for what is healed beside it.
func TestARefusedDeclarationKeepsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`alter table rebase.schedules add constraint mine check (id <> 's150' or task <> 'report')`)
	r.set(rebase.Schedule{ID: "z", Cron: "@daily", Task: "old"})
	r.exec(`update rebase.schedules set error = 'broken'`)
	var declared []rebase.Schedule
	for i := range 250 {
		declared = append(declared, minutely(fmt.Sprintf("s%03d", i)))
	}
	f := r.firer(declared...)
	f.AsRun()
	require.NoError(t, f.Appear(t.Context()))
	wait, err := f.Duty(t.Context(), time.Now())
	require.NoError(t, err)
	require.LessOrEqual(t, wait, 2*time.Second)
	require.Len(t, r.written(), 249)
	require.False(t, f.Tended())
	require.Len(t, r.log.matching("ERROR", "mine"), 1)
	require.Empty(t, r.state("z").Error)
	r.exec(`alter table rebase.schedules drop constraint mine`)
	_, err = f.Duty(t.Context(), time.Now().Add(3*time.Second))
	require.NoError(t, err)
	require.Len(t, r.written(), 250)
}

// S4: also when the refusal takes longer than declarations may take in a turn.
func TestASlowRefusalOfADeclarationKeepsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create function slow() returns trigger language plpgsql as $$ begin
		if new.id = 'c' then perform pg_catalog.pg_sleep(0.5); raise exception 'no'; end if; return new; end $$`)
	r.exec(`create trigger slow before insert on rebase.schedules for each row execute function slow()`)
	w := r.worker(&shortLease)
	w.Register("report", succeed, nil)
	for _, id := range []string{"a", "b", "c"} {
		w.Schedule(minutely(id))
	}
	r.start(w)
	r.until(func() bool { return len(r.written()) == 2 }, "a and b are written")
}
