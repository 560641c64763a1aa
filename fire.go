package rebase

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Firing. Every worker does it, over the recorder's connection, and none leads: it reads
// what is due, computes in Go, and writes by compare and set. Whoever comes second finds
// next_run_at moved and does nothing, so a process that freezes in between stops nobody. That
// a slot fires once rests on rebase.schedule_slots, in the statement that makes the job.

const (
	firePeriod = time.Minute     // between looks at schedules when nothing says otherwise
	fireAsleep = 5 * firePeriod  // the same while changes are notified
	fireRetry  = 2 * time.Second // when a look failed, or others held what was due
	fireBatch  = 100
	// fireBreath is between two looks that notifications ask for: everybody who can connect can
	// send any number of them.
	fireBreath = 100 * time.Millisecond
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

// anySlotDueSQL is dueSQL as a question.
const anySlotDueSQL = `
select exists (
  select from rebase.schedules s
  where not s.paused and s.error is null
  and s.next_run_at <= now()
  and (not s.declared or s.id = any($1::text[])))`

// nextFireSQL tells how long it is until the next is due.
const nextFireSQL = `
select (extract(epoch from s.next_run_at - now()) * 1000000)::bigint, now()
from rebase.schedules s
where not s.paused and s.error is null
and s.next_run_at > now()
and (not s.declared or s.id = any($1::text[]))
order by s.next_run_at
limit 1`

// fireSQL moves the schedules $1 on, by compare and set, and makes the jobs of their slots
// ($7, $8). A slot that has fired before makes none, nor does one of a schedule without overlap
// whose last job has not ended; that one counts as missed. A schedule whose row somebody has
// locked is left for the next look, so that it holds up no other. The job of a schedule without
// overlap gets its id here, so that the row knows it when the job exists.
const fireSQL = `
with u as (
  select *
  from rows from (unnest($1::text[]), unnest($2::bigint[]), unnest($3::timestamptz[]), unnest($4::timestamptz[]), unnest($5::bigint[]), unnest($6::timestamptz[]))
    as u (id, version, seen, next_slot, missed, last_slot)
), free as materialized (
  select s.id, u.next_slot, u.missed, u.last_slot,
    s.no_overlap and exists (select from rebase.jobs j where j.id = s.last_job and j.finished_at is null) as overlaps
  from u
  join rebase.schedules s on s.id = u.id and s.version = u.version and s.next_run_at = u.seen
  where s.next_run_at <= now() and not s.paused
  for no key update of s skip locked
), moved as (
  update rebase.schedules s
  set next_slot = u.next_slot,
    next_run_at = u.next_slot + s.run_offset,
    ahead = greatest(u.next_slot + s.run_offset - now(), '0'),
    missed = s.missed + u.missed + u.overlaps::int,
    last_slot = case when u.overlaps then s.last_slot else greatest(s.last_slot, u.last_slot) end,
    last_job = case
      when s.no_overlap and not u.overlaps and u.last_slot is not null
        and not exists (select from rebase.schedule_slots k where k.schedule_id = s.id and k.slot = u.last_slot)
      then nextval('rebase.jobs_id_seq'::regclass)
      else s.last_job
    end
  from free u
  where s.id = u.id
  returning s.id, s.task, s.lane, s.payload, s.meta, s.max_attempts, s.zone, u.overlaps, case when s.no_overlap then s.last_job end as job
), slot as (
  insert into rebase.schedule_slots (schedule_id, slot)
  select v.id, v.slot
  from rows from (unnest($7::text[]), unnest($8::timestamptz[])) as v (id, slot)
  join moved on moved.id = v.id
  where not moved.overlaps
  on conflict do nothing
  returning schedule_id, slot
), made as (
  insert into rebase.jobs as j (id, task, lane, payload, meta, max_attempts, slot, slot_zone, idempotency_key, key_hash)
  select coalesce(m.job, nextval('rebase.jobs_id_seq'::regclass)), m.task, m.lane, m.payload, m.meta, m.max_attempts, k.slot, m.zone, k.key, substring(sha256(convert_to(k.key, 'UTF8')) from 1 for 16)
  from (
    select slot.schedule_id, slot.slot, slot.schedule_id || '@' || to_char(slot.slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as key
    from slot
  ) k
  join moved m on m.id = k.schedule_id
  order by m.task, k.key
  on conflict (task, key_hash) where finished_at is null and key_hash is not null do nothing
  returning j.task
), asked as materialized (
  select rebase.wake(t.task, $9::int) as answer
  from (select made.task from made group by made.task) t
)
select (select count(*) from moved), (select count(*) from made), (select count(asked.answer) from asked)`

// pruneSlotsSQL relies on schedule_slots_fired.
const pruneSlotsSQL = `
delete from rebase.schedule_slots
where ctid = any(array(select s.ctid from rebase.schedule_slots s where s.fired_at < now() - ` + slotsKept + ` limit 1000 for update skip locked))`

// A fireLook is what a look at the schedules found.
type fireLook struct {
	due  []*scheduleRow
	next time.Duration // until the next is due; negative: none
	more bool          // slots of these are left for the next look
	now  time.Time     // the database's clock
}

// fireDuty fires what is due and plans the next time. The pause counts from the end of the
// look: a slow one would else be due again when it ends.
func (e *engine) fireDuty(ctx context.Context, now time.Time) error {
	began, planned := time.Now(), now.Add(fireRetry)
	e.set(&e.firedAt, now)
	e.set(&e.duties.fire, planned)
	wait, err := e.lookAndFire(ctx, now)
	e.planFire(planned, now.Add(time.Since(began)+wait))
	return err
}

// lookAndFire returns how long it is until the next look.
func (e *engine) lookAndFire(ctx context.Context, now time.Time) (wait time.Duration, err error) {
	began := time.Now()
	tended, err := e.tendSchedules(ctx, now)
	if err = e.refused(err, now); err != nil {
		return fireRetry, err
	}
	if time.Since(began) > e.dutyLimit() {
		return 0, nil // a renewal may be due
	}
	look, err := e.lookAtSchedules(ctx)
	if err != nil {
		return fireRetry, err
	}
	all, err := e.fire(ctx, look)
	if err = e.refused(err, now); err != nil {
		return fireRetry, err
	}
	wait = e.firePeriod()
	if look.next >= 0 {
		wait = min(wait, look.next+time.Millisecond)
	}
	switch {
	case !all:
		wait = min(wait, fireRetry)
	case len(look.due) == fireBatch || look.more:
		wait = 0
	case !tended:
		wait = min(wait, fireRetry)
	}
	return wait, nil
}

// refused passes on an error, except one that the database has with a single row: that is said
// once a minute and tried again, and must keep the recorder from nothing else.
func (e *engine) refused(err error, now time.Time) error {
	if err == nil || e.once || !isRefused(err) {
		return err
	}
	if now.Sub(e.refusalSaid) >= firePeriod {
		e.refusalSaid = now
		e.log.Error("rebase: the database refuses a schedule; trying again", "error", err, "worker", e.id)
	}
	return nil
}

// planFire plans the next look, unless a change was notified while this one was under way.
func (e *engine) planFire(planned, next time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.duties.fire.Equal(planned) {
		e.duties.fire = next
	}
}

// fireOnce fires, for RunOnce, all that is due: a look takes in no more than a batch.
func (e *engine) fireOnce(ctx context.Context) error {
	for {
		if err := e.fireDuty(ctx, time.Now()); err != nil || !e.due(&e.duties.fire, time.Now()) {
			return err
		}
	}
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
	var us int64
	err := e.results.round(ctx, e.roundLimit(),
		statement{nowSQL, nil, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&look.now}, func() error { return nil })
			return err
		}},
		statement{dueSQL, []any{e.scheduleIDs, fireBatch}, collectSchedules(&look.due)},
		statement{nextFireSQL, []any{e.scheduleIDs}, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&us, &look.now}, func() error {
				look.next = microseconds(&us)
				return nil
			})
			return err
		}},
		statement{sql: pruneSlotsSQL})
	return look, err
}

// fire makes the jobs of what is due, and says whether it could move all of it on; look.more,
// whether some of it is due again.
func (e *engine) fire(ctx context.Context, look *fireLook) (all bool, err error) {
	all = true
	var broken []statement
	var good []*scheduleRow
	f := &firing{room: fireSlots, bytes: fireBytes}
	for _, s := range look.due {
		p, err := s.plan()
		if err != nil {
			e.log.Error("rebase: a schedule can't be fired", "schedule", s.ID, "error", err, "worker", e.id)
			broken = append(broken, statement{sql: breakScheduleSQL, args: []any{s.ID, errorText(err), s.version}})
			continue
		}
		good = append(good, s)
		f.add(s, p, look.now.UTC())
	}
	if len(broken) > 0 {
		if err := e.results.round(ctx, e.roundLimit(), broken...); err != nil && isLost(err) {
			return false, err
		} else if err != nil {
			all = false // locked: at the next look
		}
	}
	if len(f.ids) == 0 {
		return all, nil
	}
	if e.duties.singly {
		one, err := e.fireSingly(ctx, look, good)
		return all && one, err
	}
	look.more = f.more
	began := time.Now()
	moved, err := e.fireDue(ctx, f)
	if isRefused(err) {
		e.duties.singly = true
		if time.Since(began) > e.dutyLimit() {
			return false, nil // at the next look: a renewal may be due
		}
		look.more = false
		one, err := e.fireSingly(ctx, look, good)
		return all && one, err
	}
	return all && moved, err
}

// fireSingly fires one after the other, since one of them is refused: the rest go on. It begins
// anywhere, for there may be no time for all of them. It does so until none is refused. It says as
// fire does whether all was moved on.
func (e *engine) fireSingly(ctx context.Context, look *fireLook, due []*scheduleRow) (all bool, err error) {
	var refused error
	all = true
	began, first := time.Now(), rand.N(len(due))
	for i := range due {
		if time.Since(began) > e.dutyLimit() {
			return false, refused
		}
		s := due[(first+i)%len(due)]
		p, err := s.plan()
		if err != nil {
			continue // said before
		}
		f := &firing{room: fireSlots / 10, bytes: fireBytes / 10} // it may be too slow for more
		f.add(s, p, look.now.UTC())
		moved, err := e.fireDue(ctx, f)
		if err != nil && !isRefused(err) {
			return false, err
		} else if err != nil {
			refused = cmp.Or(refused, fmt.Errorf("schedule %q: %w", s.ID, err))
		} else {
			look.more = look.more || f.more
		}
		all = all && moved
	}
	e.duties.singly = refused != nil
	return all, refused
}

// dutyLimit is how long a duty of many rounds goes on before it leaves the rest to its next turn.
// RunOnce's first look, before anything runs, has no other.
func (e *engine) dutyLimit() time.Duration {
	if e.once && e.turn.IsZero() {
		return time.Hour
	}
	return e.roundLimit() / 3
}

func (e *engine) fireDue(ctx context.Context, f *firing) (all bool, err error) {
	var moved, made, asked int
	args := []any{f.ids, f.versions, f.seen, f.nexts, f.missed, f.lasts, f.slotIDs, f.slots, int32(e.q.notify)}
	err = e.results.round(ctx, e.roundLimit(), statement{fireSQL, args, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&moved, &made, &asked}, func() error { return nil })
		return err
	}})
	if err != nil {
		return false, fmt.Errorf("fire schedules: %w", err)
	}
	if made > 0 {
		e.q.eachEngine(func(e *engine) { e.wake("") })
	}
	return moved == len(f.ids), nil
}

// dueStatement goes along with each renewal: a row that was moved by SQL, or a clock that was
// set forward, is noticed within half a minute, without a round trip of its own.
func (e *engine) dueStatement() statement {
	return statement{anySlotDueSQL, []any{e.scheduleIDs}, func(rows pgx.Rows) error {
		var due bool
		_, err := pgx.ForEachRow(rows, []any{&due}, func() error { return nil })
		if due {
			e.schedulesChanged()
		}
		return err
	}}
}

// schedulesHeard is schedulesChanged by a notification.
func (e *engine) schedulesHeard() {
	e.mu.Lock()
	if at := e.firedAt.Add(fireBreath); at.Before(e.duties.fire) { // a time that is zero means now
		e.duties.fire = at
	}
	e.mu.Unlock()
	e.recordSignal.set()
}

// schedulesChanged makes the recorder look at the schedules now.
func (e *engine) schedulesChanged() {
	e.set(&e.duties.fire, time.Time{})
	e.recordSignal.set()
}
