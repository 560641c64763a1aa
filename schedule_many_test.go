package rebase_test

// Many workers, many schedules: each slot is one job, and what a look costs depends on what is
// due, not on what there is.

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// S1, C13: 20 workers at once, 60 schedules with five missed slots each, half of them declared by
// all and half set at run time, moved back again and again while they fire: each slot has
// exactly one job, and nobody complains.
func TestTwentyWorkersMakeOneJobASlot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var declared []rebase.Schedule
	for i := range 30 {
		s := minutely(fmt.Sprintf("code-%02d", i))
		s.CatchUp = rebase.CatchUpAll(5)
		declared = append(declared, s)
		s.ID = fmt.Sprintf("set-%02d", i)
		r.set(s)
	}
	firers := make([]*rebase.Firer, 20)
	for i := range firers {
		firers[i] = r.firer(declared...)
	}
	require.NoError(t, firers[0].Tend(t.Context()))
	for range 3 {
		r.exec(`update rebase.schedules set next_slot = date_trunc('minute', now()) - interval '4 minutes', next_run_at = date_trunc('minute', now()) - interval '4 minutes'`)
		var wg sync.WaitGroup
		errs := make([]error, len(firers))
		for i, f := range firers {
			wg.Go(func() { _, errs[i] = f.Duty(t.Context(), time.Now()) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		r.duty(firers[0]) // what a lock was on
	}
	require.Empty(t, r.log.matching("ERROR"))
	require.Empty(t, r.log.matching("WARN"))
	slots := ask[int](r, `select count(*)::int from rebase.schedule_slots`)
	require.GreaterOrEqual(t, slots, 300)
	require.Equal(t, slots, r.count(`true`), "a job for each slot")
	require.Equal(t, slots, ask[int](r, `select count(distinct idempotency_key)::int from rebase.jobs`))
	require.Equal(t, slots, ask[int](r, `select count(*)::int from rebase.jobs j join rebase.schedule_slots k
		on j.idempotency_key = k.schedule_id || '@' || to_char(k.slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') and j.slot = k.slot`))
}

// Whole workers do it as well: they start together, declare the same, and fire what is due.
func TestWorkersThatStartTogetherDeclareAndFireOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 8 {
		w := r.worker(&rebase.WorkerOptions{PollOnly: true})
		for i := range 10 {
			w.Schedule(minutely(fmt.Sprintf("s%d", i)))
		}
		r.start(w)
	}
	r.until(func() bool { return ask[int](r, `select count(*)::int from rebase.schedules`) == 10 }, "all are declared")
	r.exec(`update rebase.schedules set next_slot = date_trunc('minute', now()), next_run_at = date_trunc('minute', now())`)
	r.set(rebase.Schedule{ID: "tells", Cron: "0 0 1 1 *", Task: "report"})
	r.until(func() bool { return r.count(`true`) >= 10 }, "all have fired")
	require.True(t, ask[bool](r, `select count(*) = count(distinct idempotency_key) and count(*) = (select count(*) from rebase.schedule_slots) from rebase.jobs`),
		"in one snapshot: a minute may begin here")
	require.Empty(t, r.log.matching("ERROR"))
	require.Equal(t, 10, ask[int](r, `select sum(version)::int from rebase.schedules where declared`), "each was written once")
}

// 1,000 unchanged declarations at a start are quick, write nothing (n_tup_upd doesn't move, nor does
// any row's xmin or xmax) and wait for no lock of another's.
func TestUnchangedDeclarationsWriteNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var declared []rebase.Schedule
	for i := range 1000 {
		declared = append(declared, rebase.Schedule{ID: fmt.Sprintf("s%04d", i), Cron: "0 3 * * *", Zone: "Europe/Paris", Task: "report",
			Payload: map[string]any{"n": i, "f": 1.50}, Meta: map[string]string{"a": "b"}, Window: time.Hour, CatchUp: rebase.CatchUpAll(2)})
	}
	require.NoError(t, r.firer(declared...).Tend(t.Context()))
	digest := func() string {
		return ask[string](r, `select md5(string_agg(s.ctid::text || s.xmin || s.xmax || s::text, '' order by id)) from rebase.schedules s`)
	}
	writes := func() string {
		return ask[string](r, `select pg_stat_force_next_flush()::text || n_tup_ins || ' ' || n_tup_upd from pg_stat_user_tables where relid = 'rebase.schedules'::regclass`)
	}
	before, written := digest(), writes()
	f := r.firer(declared...)
	start := time.Now()
	require.NoError(t, f.Tend(t.Context()))
	took := time.Since(start)
	t.Logf("1,000 unchanged declarations: %v", took)
	require.Less(t, took, 10*time.Second)
	require.Equal(t, before, digest(), "no row was written or locked")
	require.Equal(t, written, writes())

	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from rebase.schedules where id = 's0500' for update`)
	require.NoError(t, err)
	require.NoError(t, f.Tend(t.Context()))
	require.True(t, f.Tended())
	require.NoError(t, tx.Rollback(t.Context()))
}

// S: the plans of a look at 10,000 schedules, of which ten are due: by index, at a cost that
// is that of the ten.
func TestLookAtTenThousandSchedulesCostsWhatIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`alter table rebase.schedules set (autovacuum_enabled = off)`)
	r.exec(`insert into rebase.schedules (id, task, cron, zone, next_slot, next_run_at, ahead)
		select 's' || to_char(i, 'FM00000'), 'report', '0 * * * *', 'UTC', date_trunc('hour', now()) + i * interval '1 second', date_trunc('hour', now()) + i * interval '1 second' + interval '1 hour', '1 hour'
		from generate_series(1, 10000) i`)
	r.exec(`update rebase.schedules set next_slot = date_trunc('hour', now()), next_run_at = date_trunc('hour', now()) where id <= 's00010'`)
	r.exec(`insert into rebase.schedule_slots (schedule_id, slot) select 's' || i % 100, now() - i * interval '1 hour' from generate_series(1, 50000) i`)
	for _, analysed := range []bool{false, true} {
		if analysed {
			r.exec(`analyze rebase.schedules, rebase.schedule_slots`)
		}
		slots := `'{s00001,s00002,s00003,s00004,s00005,s00006,s00007,s00008,s00009,s00010}'`
		for name, c := range map[string]struct {
			args    string
			buffers int
		}{
			"dueSQL":        {`'{}', 100`, 60},
			"anySlotDueSQL": {`'{}'`, 20},
			"nextFireSQL":   {`'{}'`, 20},
			"pruneSlotsSQL": {``, 20},
			"fireSQL": {fmt.Sprintf(`%s, array_fill(1::bigint, array[10]), array_fill(date_trunc('hour', now()), array[10]),
				array_fill(date_trunc('hour', now()) + interval '1 hour', array[10]), array_fill(0::bigint, array[10]), array_fill(date_trunc('hour', now()), array[10]),
				%s, array_fill(date_trunc('hour', now()), array[10]), 2`, slots, slots), 700},
		} {
			plan := explainSchedules(t, r, name, c.args)
			plan.walk(func(n *planNode) {
				require.NotContains(t, n.Type, "Seq Scan", plan.text(0))
				require.False(t, n.Index == "schedules_pkey" && n.Cond == "", "reads the whole table\n%s", plan.text(0))
			})
			require.LessOrEqual(t, plan.Hit+plan.Read, c.buffers, "%s, analysed %v\n%s", name, analysed, plan.text(0))
			t.Logf("%s, analysed %v: %d buffers, %.2f ms", name, analysed, plan.Hit+plan.Read, plan.Time)
		}
	}
	require.Contains(t, explainSchedules(t, r, "dueSQL", `'{}', 100`).text(0), "schedules_next")
}

// explainSchedules runs a statement as a worker does, and takes it back.
func explainSchedules(t *testing.T, r *rig, name, args string) *planNode {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), r.pool.Config().ConnConfig)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	_, err = conn.Exec(t.Context(), "prepare p as "+rebase.ScheduleStatements[name])
	require.NoError(t, err)
	return (&planner{conn: conn}).explain(t, "p", args)
}

// The whole duty, with 10,000 schedules of the code's own: the jobs are those that are due, and
// a look that finds nothing is quick.
func TestTenThousandDeclaredSchedules(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var declared []rebase.Schedule
	for i := range 10_000 {
		declared = append(declared, rebase.Schedule{ID: fmt.Sprintf("tenant/%05d", i), Cron: "0 0 1 1 *", Task: "report"})
	}
	f := r.firer(declared...)
	start := time.Now()
	r.duty(f)
	t.Logf("declared in %v", time.Since(start))
	r.exec(`update rebase.schedules set next_slot = date_trunc('year', now(), 'UTC'), next_run_at = date_trunc('year', now(), 'UTC') where id < 'tenant/00500'`)
	start = time.Now()
	for range 6 {
		r.duty(f)
	}
	t.Logf("500 fired, in 6 looks: %v", time.Since(start))
	require.Equal(t, 500, r.count(`true`))
	var looks []time.Duration
	for range 5 {
		start = time.Now()
		r.duty(f)
		looks = append(looks, time.Since(start))
	}
	t.Logf("a look that finds nothing: %v", slices.Min(looks))
	require.Less(t, slices.Min(looks), 500*time.Millisecond)
	_, err := json.Marshal(r.state("tenant/09999"))
	require.NoError(t, err)
}
