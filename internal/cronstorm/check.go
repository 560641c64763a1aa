//go:build unix

// The check. A slot's story stands in three places: rebase.schedule_slots (it fired),
// rebase.jobs (its job) and the record (what a handler was given). The expected slots are all
// minutes of each schedule from the first that was made due to the last that fired; minutes
// that passed during the run are among them.

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// recordSchemaSQL: a row for each run of a handler that was noted.
	recordSchemaSQL = `
create schema storm;
create table storm.runs (
  job      bigint,
  run      integer,
  schedule text not null,
  slot     timestamptz not null,
  process  text not null,
  at       timestamptz not null default clock_timestamp(),
  primary key (job, run)
)`

	noteSQL = `
insert into storm.runs (job, run, schedule, slot, process)
values ($1, $2, $3, $4, $5)`
)

// A Report is what a run came to.
type Report struct {
	Shape          Shape
	Seed           uint64
	Steps          int
	Slots          int // expected, over all schedules
	Fired          int // rows of rebase.schedule_slots
	Jobs           int
	Runs           int // of handlers, as noted
	Processes      int // that ran any
	Kills, Freezes int
	Reaped         int // jobs that were taken back from a process
	Took           time.Duration
	Violations     []string
}

func (r *Report) String() string {
	return fmt.Sprintf("%s, seed %d: steps %d, kills %d, freezes %d, slots %d, fired %d, jobs %d, runs %d by %d processes, reaped %d, violations %d, %.1f s",
		r.Shape, r.Seed, r.Steps, r.Kills, r.Freezes, r.Slots, r.Fired, r.Jobs, r.Runs, r.Processes, r.Reaped, len(r.Violations), r.Took.Seconds())
}

// Shown are the first violations, and how many more there are.
func (r *Report) Shown() []string {
	const most = 20
	if len(r.Violations) <= most {
		return r.Violations
	}
	return append(slices.Clone(r.Violations[:most]), fmt.Sprintf("and %d more", len(r.Violations)-most))
}

// wantedSQL lists the expected slots: $1 is the youngest that was made due, $2 how many there
// were. A schedule that went on to later minutes has those, too.
const wantedSQL = `
wanted as (
  select s.id, g.slot
  from rebase.schedules s
  cross join lateral (select max(k.slot) as last from rebase.schedule_slots k where k.schedule_id = s.id) k
  cross join lateral generate_series($1::timestamptz - ($2::int - 1) * interval '1 minute', greatest(k.last, $1), interval '1 minute') g (slot)
)`

// countSQL: the numbers of a report.
const countSQL = `
with ` + wantedSQL + `
select (select count(*) from wanted), (select count(*) from rebase.schedule_slots), (select count(*) from rebase.jobs),
  (select count(*) from storm.runs), (select count(distinct process) from storm.runs),
  (select count(*) from rebase.jobs where history @> '[{"outcome": "crashed"}]')`

// rules are the promises; each query lists what breaks one, as text. Before it stands
// wantedSQL.
var rules = []struct{ name, sql string }{
	{"a slot did not fire (S1, S2)", `
select w.id || '@' || w.slot from wanted w
where not exists (select from rebase.schedule_slots k where k.schedule_id = w.id and k.slot = w.slot)`},
	{"what fired is no slot (S1)", `
select k.schedule_id || '@' || k.slot from rebase.schedule_slots k
where not exists (select from wanted w where w.id = k.schedule_id and w.slot = k.slot)`},
	{"a slot has not exactly one job (S1)", `
select w.id || '@' || w.slot || ': ' || count(j.id) || ' jobs' from wanted w
left join rebase.jobs j on j.payload = to_jsonb(w.id) and j.slot = w.slot
group by w.id, w.slot having count(j.id) <> 1`},
	{"a job is of no slot, or its key names another (S1)", `
select 'job ' || j.id || ': ' || coalesce(j.idempotency_key, 'no key') from rebase.jobs j
left join wanted w on j.payload = to_jsonb(w.id) and j.slot = w.slot
where w.id is null
or j.idempotency_key is distinct from w.id || '@' || to_char(w.slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')`},
	{"a job did not succeed (J11)", `
select 'job ' || j.id || ': ' || j.status || ' ' || coalesce(j.last_error, '') from rebase.jobs j
where j.status <> 'succeeded'`},
	{"handlers were not given exactly one job of a slot (S1)", `
select w.id || '@' || w.slot || ': ' || count(distinct r.job) || ' jobs' from wanted w
left join storm.runs r on r.schedule = w.id and r.slot = w.slot
group by w.id, w.slot having count(distinct r.job) <> 1`},
	{"a handler was given another slot than its job's (S1)", `
select 'job ' || r.job || ': ' || r.slot from storm.runs r
left join rebase.jobs j on j.id = r.job and j.slot = r.slot and j.payload = to_jsonb(r.schedule)
where j.id is null`},
	{"a slot counts as missed, or a schedule is broken (S2, S4)", `
select s.id || ': ' || s.missed || ' missed, ' || coalesce(s.error, 'no error') from rebase.schedules s
where s.missed <> 0 or s.error is not null`},
}

// check compares, when all processes have ended.
func check(ctx context.Context, pool *pgxpool.Pool, base time.Time, schedules, each int) (*Report, error) {
	r := &Report{}
	err := pool.QueryRow(ctx, countSQL, base, each).Scan(&r.Slots, &r.Fired, &r.Jobs, &r.Runs, &r.Processes, &r.Reaped)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	if r.Slots < schedules*each {
		r.Violations = append(r.Violations, fmt.Sprintf("%d slots were to be made due, %d are accounted for", schedules*each, r.Slots))
	}
	for _, rule := range rules {
		rows, err := pool.Query(ctx, "with "+wantedSQL+rule.sql, base, each)
		if err != nil {
			return nil, fmt.Errorf("check: %s: %w", rule.name, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("check: %s: %w", rule.name, err)
		}
		for _, what := range found {
			r.Violations = append(r.Violations, rule.name+": "+what)
		}
	}
	return r, nil
}
