//go:build unix

package main

// The tests are short runs of both shapes, and the checker's own: it must see what it is there to
// see.

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

// TestMain makes the test binary a worker when it is started as one.
func TestMain(m *testing.M) {
	if isWorker() {
		os.Exit(workerMain())
	}
	pgtest.Main(m)
}

// small is a run of some seconds: no freeze can be shorter than the shortest lease.
var small = Plan{Processes: 6, Schedules: 5, Slots: 30, Kills: 8, Freezes: 4, Lease: 3 * time.Second}

// S1, C13, C14: six processes declare the same schedules; slots come due one by one, and whoever
// is killed or frozen meanwhile, each makes one job, which runs with its slot.
func TestEachSlotMakesOneJobWhateverIsKilledOrFrozen(t *testing.T) {
	t.Parallel()
	r := storm(t, OneByOne, small)
	require.Equal(t, 30, r.Steps)
	require.GreaterOrEqual(t, r.Slots, 30)
}

// S2, C16, C14: the same for missed slots that one statement makes up for.
func TestACatchUpMakesOneJobForEachMissedSlotWhateverIsKilledOrFrozen(t *testing.T) {
	t.Parallel()
	r := storm(t, CatchUp, small)
	require.Equal(t, 5, r.Steps)
	require.GreaterOrEqual(t, r.Slots, 5*30)
}

func storm(t *testing.T, shape Shape, p Plan) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pool := pgtest.New(t)
	dir := t.TempDir()
	r, err := p.On(ctx, pool, pgtest.URL(t, pool), dir, shape, 1)
	require.NoError(t, err)
	t.Log(r)
	require.Empty(t, r.Shown())
	require.Equal(t, p.Kills, r.Kills)
	require.Equal(t, p.Freezes, r.Freezes)
	require.Equal(t, r.Slots, r.Jobs)
	require.Greater(t, r.Processes, 1, "one process ran everything")
	return r
}

// The checker sees each kind of broken promise. What is broken stands in the tables, as a faulty
// library would leave them.
func TestTheCheckerSeesWhatIsBroken(t *testing.T) {
	t.Parallel()
	base := time.Date(2026, 5, 6, 10, 0, 0, 0, time.UTC)
	for rule, sql := range map[string]string{
		"a slot did not fire":   `delete from rebase.schedule_slots where slot = '2026-05-06 09:59Z'`,
		"what fired is no slot": `insert into rebase.schedule_slots (schedule_id, slot) values ('a', '2026-05-06 09:00Z')`,
		"a slot has not exactly one job (S1): a@2026-05-06 09:59:00+00: 2 jobs": `
insert into rebase.jobs (task, payload, slot, idempotency_key, key_hash, status, finished_at, attempts)
select task, payload, slot, idempotency_key, key_hash, status, finished_at, attempts from rebase.jobs where slot = '2026-05-06 09:59Z'`,
		"a slot has not exactly one job (S1): a@2026-05-06 09:59:00+00: 0 jobs": `delete from rebase.jobs where slot = '2026-05-06 09:59Z'`,
		"its key names another":               `update rebase.jobs set idempotency_key = 'a@2026-05-06T09:58:00Z' where slot = '2026-05-06 09:59Z'`,
		"a job did not succeed":               `update rebase.jobs set status = 'failed', dead = true where slot = '2026-05-06 09:59Z'`,
		"not given exactly one job of a slot": `delete from storm.runs where slot = '2026-05-06 09:59Z'`,
		"was given another slot":              `update storm.runs set slot = '2026-05-06 09:58Z' where slot = '2026-05-06 09:59Z'`,
		"a slot counts as missed":             `update rebase.schedules set missed = 1`,
		"or a schedule is broken":             `update rebase.schedules set error = 'no such zone'`,
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			sound(t, pool)
			r, err := check(t.Context(), pool, base, 1, 3)
			require.NoError(t, err)
			require.Empty(t, r.Violations, "before anything is broken")
			require.Equal(t, []int{3, 3, 3, 3}, []int{r.Slots, r.Fired, r.Jobs, r.Runs})
			_, err = pool.Exec(t.Context(), sql)
			require.NoError(t, err)
			r, err = check(t.Context(), pool, base, 1, 3)
			require.NoError(t, err)
			require.Contains(t, joined(r.Violations), rule)
		})
	}
}

// A run with fewer slots than were made due is no success, whatever the tables agree upon.
func TestTheCheckerMissesSlots(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	sound(t, pool)
	r, err := check(t.Context(), pool, time.Date(2026, 5, 6, 10, 0, 0, 0, time.UTC), 2, 3)
	require.NoError(t, err)
	require.Contains(t, joined(r.Violations), "6 slots were to be made due, 3 are accounted for")
}

// sound is what three slots of one schedule leave behind.
func sound(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, sql := range []string{recordSchemaSQL, `
insert into rebase.schedules (id, task, cron, zone) values ('a', 'slot', '* * * * *', 'UTC')`, `
insert into rebase.schedule_slots (schedule_id, slot) select 'a', generate_series(timestamptz '2026-05-06 09:58Z', '2026-05-06 10:00Z', '1 minute')`, `
insert into rebase.jobs (task, payload, slot, idempotency_key, key_hash, status, finished_at, attempts)
select 'slot', '"a"', k.slot, k.key, substring(sha256(convert_to(k.key, 'UTF8')) from 1 for 16), 'succeeded', now(), 1
from (select slot, 'a@' || to_char(slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as key from rebase.schedule_slots) k`, `
insert into storm.runs (job, run, schedule, slot, process) select j.id, 1, 'a', j.slot, 'p1' from rebase.jobs j`} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
}

func joined(all []string) string { return strings.Join(all, "\n") }

// A plan that can't work is refused with its field and value.
func TestAPlanThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Plan{
		"-processes 2": {Processes: 2, Schedules: 1, Slots: 1},
		"-schedules 0": {Processes: 3, Schedules: 0, Slots: 1},
		"-slots 9":     {Processes: 3, Schedules: 10, Slots: 9},
		"-slots 10001": {Processes: 3, Schedules: 1, Slots: 10_001},
	} {
		require.ErrorContains(t, p.check(), want)
	}
	require.NoError(t, small.check())
}
