package rebase

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Firing. Every worker does it, over the recorder's connection, and none leads: it reads
// what is due, computes in Go, and writes by compare and set. Whoever comes second finds
// next_run_at moved and does nothing, so a process that freezes in between stops nobody. That
// a slot fires once rests on rebase.schedule_slots, in the statement that makes the job.

const (
	firePeriod = time.Minute    // between looks at schedules when nothing says otherwise
	fireAsleep = 5 * firePeriod // the same while changes are notified
	fireBatch  = 100
	// fireGrace: a single slot that is late by more than this counts as missed.
	fireGrace = time.Minute
	slotsKept = `interval '7 days'`
)

// dueSQL relies on schedules_next. Each worker fires what its code declares ($1) and what was
// set at run time.
const dueSQL = `
select ` + scheduleColumns + `
from rebase.schedules s
where not s.paused and s.error is null
and s.next_run_at <= now()
and (not s.declared or s.id = any($1::text[]))
order by s.next_run_at
limit $2`

// nextFireSQL tells how long it is until the next is due.
const nextFireSQL = `
select (extract(epoch from s.next_run_at - now()) * 1000000)::bigint, now()
from rebase.schedules s
where not s.paused and s.error is null
and s.next_run_at > now()
and (not s.declared or s.id = any($1::text[]))
order by s.next_run_at
limit 1`

// farSQL finds schedules whose next firing is much further away than when it was computed:
// the clock was set back.
const farSQL = `
select ` + scheduleColumns + `
from rebase.schedules s
where not s.paused and s.error is null
and s.next_run_at > now() + s.ahead + greatest(s.ahead, interval '10 minutes')
and (not s.declared or s.id = any($1::text[]))
limit $2`

// fireSQL moves the schedules $1 on, by compare and set, and makes the jobs of their slots
// ($7, $8). A slot that has fired before makes none, nor does one of a schedule without overlap
// whose last job has not ended.
const fireSQL = `
with u as (
  select *
  from rows from (unnest($1::text[]), unnest($2::bigint[]), unnest($3::timestamptz[]), unnest($4::timestamptz[]), unnest($5::bigint[]), unnest($6::timestamptz[]))
    as u (id, version, seen, next_slot, missed, last_slot)
), moved as (
  update rebase.schedules s
  set next_slot = u.next_slot,
    next_run_at = u.next_slot + s.run_offset,
    ahead = coalesce(u.next_slot + s.run_offset - now(), '0'),
    missed = s.missed + u.missed,
    last_slot = greatest(s.last_slot, u.last_slot)
  from u
  where s.id = u.id and s.version = u.version and s.next_run_at = u.seen
  and s.next_run_at <= now() and not s.paused
  returning s.id, s.task, s.lane, s.payload, s.meta, s.max_attempts, s.zone,
    s.no_overlap and exists (select from rebase.jobs j where j.id = s.last_job and j.finished_at is null) as overlaps
), slot as (
  insert into rebase.schedule_slots (schedule_id, slot)
  select v.id, v.slot
  from rows from (unnest($7::text[]), unnest($8::timestamptz[])) as v (id, slot)
  join moved on moved.id = v.id
  where not moved.overlaps
  on conflict do nothing
  returning schedule_id, slot
), made as (
  insert into rebase.jobs as j (task, lane, payload, meta, max_attempts, slot, slot_zone, idempotency_key, key_hash)
  select m.task, m.lane, m.payload, m.meta, m.max_attempts, k.slot, m.zone, k.key, substring(sha256(convert_to(k.key, 'UTF8')) from 1 for 16)
  from (
    select slot.schedule_id, slot.slot, slot.schedule_id || '@' || to_char(slot.slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as key
    from slot
  ) k
  join moved m on m.id = k.schedule_id
  order by m.task, k.key
  on conflict (task, key_hash) where finished_at is null and key_hash is not null do nothing
  returning j.id, j.task, j.idempotency_key
), last as (
  select m.id as schedule_id, max(made.id) as job
  from made
  join moved m on left(made.idempotency_key, -21) = m.id
  group by m.id
), asked as materialized (
  select rebase.wake(t.task, $9::int) as answer
  from (select made.task from made group by made.task) t
)
select moved.id, moved.overlaps, last.job, (select count(asked.answer) from asked)
from moved
left join last on last.schedule_id = moved.id`

// firedSQL remembers the last job, for schedules without overlap; and skipped slots count as
// missed. It can't be part of fireSQL, which has changed the same rows.
const firedSQL = `
update rebase.schedules s
set last_job = coalesce(u.job, s.last_job), missed = s.missed + case when u.overlaps then 1 else 0 end
from rows from (unnest($1::text[]), unnest($2::bigint[]), unnest($3::boolean[])) as u (id, job, overlaps)
where s.id = u.id and s.no_overlap`

const (
	breakScheduleSQL = `update rebase.schedules set error = $2, version = version + 1, updated_at = now() where id = $1 and version = $3`
	anchorSQL        = `
update rebase.schedules
set next_slot = $2, next_run_at = $3::timestamptz, ahead = $3::timestamptz - now(), version = version + 1
where id = $1 and version = $4`
	pruneSlotsSQL = `
delete from rebase.schedule_slots
where ctid = any(array(select s.ctid from rebase.schedule_slots s where s.fired_at < now() - ` + slotsKept + ` limit 1000 for update skip locked))`
)

// A fireLook is what a look at the schedules found.
type fireLook struct {
	due, far []*scheduleRow
	next     time.Duration // until the next is due; negative: none
	now      time.Time     // the database's clock
}

// fireDuty fires what is due and plans the next time.
func (e *engine) fireDuty(ctx context.Context, now time.Time) error {
	period := e.firePeriod()
	e.set(&e.duties.fire, now.Add(period))
	if now.Sub(e.declared) >= firePeriod {
		if err := e.declare(ctx); err != nil {
			return err
		}
		e.declared = now
	}
	look, err := e.lookAtSchedules(ctx)
	if err != nil {
		return err
	}
	if err := e.anchor(ctx, look); err != nil {
		return err
	}
	if err := e.fire(ctx, look); err != nil {
		return err
	}
	switch {
	case len(look.due) == fireBatch:
		e.set(&e.duties.fire, now)
	case look.next >= 0:
		e.set(&e.duties.fire, now.Add(min(look.next+time.Millisecond, period)))
	}
	return nil
}

func (e *engine) firePeriod() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listening {
		return fireAsleep
	}
	return firePeriod
}

func (e *engine) lookAtSchedules(ctx context.Context) (*fireLook, error) {
	look := &fireLook{next: -1}
	collect := func(into *[]*scheduleRow) func(pgx.Rows) error {
		return func(rows pgx.Rows) (err error) {
			*into, err = pgx.CollectRows(rows, readSchedule)
			return err
		}
	}
	var us int64
	err := e.results.round(ctx, e.roundLimit(),
		statement{nowSQL, nil, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&look.now}, func() error { return nil })
			return err
		}},
		statement{dueSQL, []any{e.scheduleIDs, fireBatch}, collect(&look.due)},
		statement{farSQL, []any{e.scheduleIDs, fireBatch}, collect(&look.far)},
		statement{nextFireSQL, []any{e.scheduleIDs}, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&us, &look.now}, func() error {
				look.next = time.Duration(us) * time.Microsecond
				return nil
			})
			return err
		}},
		statement{sql: pruneSlotsSQL})
	return look, err
}

// declare writes the schedules of the code where they differ from the table's; but not over
// those that a live worker has declared otherwise, which may be the next version's.
func (e *engine) declare(ctx context.Context) error {
	if len(e.scheduleIDs) == 0 {
		return nil
	}
	var now time.Time
	taken := map[string]bool{}
	err := e.results.round(ctx, e.roundLimit(), statement{`
select now(), coalesce(array_agg(s.id) filter (where s.declared and s.declared_by <> $2 and exists (
  select from rebase.workers w where w.id = s.declared_by and w.started_at > $3::timestamptz and ` + aliveSQL + `)), '{}')
from rebase.schedules s
where s.id = any($1::text[])`, []any{e.scheduleIDs, e.id, timeOrNil(e.since)}, func(rows pgx.Rows) error {
		var ids []string
		_, err := pgx.ForEachRow(rows, []any{&now, &ids}, func() error {
			for _, id := range ids {
				taken[id] = true
			}
			return nil
		})
		return err
	}})
	if err != nil {
		return err
	}
	if e.since.IsZero() {
		e.since = now.UTC()
	}
	var statements []statement
	for _, id := range e.scheduleIDs {
		if !taken[id] {
			statements = append(statements, e.w.schedules[id].write(now.UTC(), e.id))
		}
	}
	for len(statements) > 0 {
		n := min(len(statements), 200)
		if err := e.results.round(ctx, e.roundLimit(), statements[:n]...); err != nil {
			return err
		}
		statements = statements[n:]
	}
	return nil
}

// plan checks a row as a declaration is checked; a schedule that can't work is marked, and
// the others go on.
func (e *engine) planRow(s *scheduleRow) (*plannedSchedule, *statement) {
	p, err := planSchedule(s.Schedule, -1)
	if err == nil {
		return p, nil
	}
	e.log.Error("rebase: a schedule can't be fired", "schedule", s.ID, "error", err, "worker", e.id)
	return nil, &statement{sql: breakScheduleSQL, args: []any{s.ID, errorText(err), s.version}}
}

// anchor brings schedules back that a step of the clock has moved away.
func (e *engine) anchor(ctx context.Context, look *fireLook) error {
	var statements []statement
	for _, s := range look.far {
		p, broken := e.planRow(s)
		if broken != nil {
			statements = append(statements, *broken)
			continue
		}
		slot, at := p.next(look.now.UTC())
		statements = append(statements, statement{sql: anchorSQL, args: []any{s.ID, timeOrNil(slot), timeOrNil(at), s.version}})
	}
	if len(statements) == 0 {
		return nil
	}
	e.set(&e.duties.fire, time.Now())
	return e.results.round(ctx, e.roundLimit(), statements...)
}

// slots decides what becomes of a due schedule: which slots fire, how many count as
// missed, and which is next.
func (p *plannedSchedule) slots(from, now time.Time) (fire []time.Time, missed int, last, next time.Time) {
	until := now.Add(-p.offset)
	n, last := p.expr.Count(from.Add(-time.Nanosecond), until, p.loc, 1_000_000)
	if n == 0 {
		next, _ = p.next(until)
		return nil, 0, time.Time{}, next
	}
	keep := p.CatchUp.column()
	if n == 1 && now.Sub(last.Add(p.offset)) <= fireGrace {
		keep = 1 // on time
	}
	keep = min(keep, n)
	for slot := last; len(fire) < keep; slot = p.expr.Prev(slot.Add(-time.Nanosecond), p.loc) {
		fire = append(fire, slot)
	}
	next, _ = p.next(last)
	return fire, n - keep, last, next
}

// fire makes the jobs of what is due.
func (e *engine) fire(ctx context.Context, look *fireLook) error {
	var broken []statement
	var ids, slotIDs []string
	var versions, missed []int64
	var seen, slots []time.Time
	var nexts, lasts []*time.Time
	for _, s := range look.due {
		p, bad := e.planRow(s)
		if bad != nil {
			broken = append(broken, *bad)
			continue
		}
		fire, m, last, next := p.slots(s.nextSlot, look.now.UTC())
		ids, versions, missed, seen = append(ids, s.ID), append(versions, s.version), append(missed, int64(m)), append(seen, s.NextRunAt)
		nexts, lasts = append(nexts, timeOrNil(next)), append(lasts, timeOrNil(last))
		for _, slot := range fire {
			slotIDs, slots = append(slotIDs, s.ID), append(slots, slot)
		}
	}
	if len(broken) > 0 {
		if err := e.results.round(ctx, e.roundLimit(), broken...); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return e.fireDue(ctx, []any{ids, versions, seen, nexts, missed, lasts, slotIDs, slots, int32(e.q.notify)})
}

func (e *engine) fireDue(ctx context.Context, args []any) error {
	var ids []string
	var jobs []*int64
	var overlaps []bool
	made := false
	err := e.results.round(ctx, e.roundLimit(), statement{fireSQL, args, func(rows pgx.Rows) error {
		var id string
		var over bool
		var job *int64
		var asked int64
		_, err := pgx.ForEachRow(rows, []any{&id, &over, &job, &asked}, func() error {
			ids, jobs, overlaps = append(ids, id), append(jobs, job), append(overlaps, over)
			made = made || job != nil
			job = nil
			return nil
		})
		return err
	}})
	if err != nil {
		return fmt.Errorf("fire schedules: %w", err)
	}
	if made {
		e.q.eachEngine(func(e *engine) { e.wake("") })
	}
	if len(ids) == 0 {
		return nil
	}
	return e.results.round(ctx, e.roundLimit(), statement{sql: firedSQL, args: []any{ids, jobs, overlaps}})
}

// schedulesChanged makes the recorder look at the schedules now.
func (e *engine) schedulesChanged() {
	e.set(&e.duties.fire, time.Time{})
	e.recordSignal.set()
}
