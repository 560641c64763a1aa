package rebase

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase/internal/cron"
)

// Schedules: what they are, and how they are declared and written. See manage_schedules.go for
// what operators do with them, declare.go and fire.go for how workers write declarations and
// make jobs of slots.
//
// A slot is the nominal instant that the cron expression names; a schedule's window only
// moves the moment of firing. A schedule is declared by code, and then fired by the workers
// whose code declares it, or set at run time, and then fired by any worker.

// CatchUp says what happens to slots that were missed because no worker was there: CatchUpOne,
// CatchUpSkip or CatchUpAll(n). The zero value is CatchUpOne; any below zero skips.
type CatchUp int

const (
	// CatchUpOne fires the latest missed slot.
	CatchUpOne CatchUp = 0
	// CatchUpSkip fires none of them.
	CatchUpSkip CatchUp = -1
)

// CatchUpAll fires the latest n missed slots, 1 to 10,000 of them.
func CatchUpAll(n int) CatchUp { return CatchUp(min(max(n, 1), 10_000)) }

// A Schedule fires a job at each slot of a cron expression, once with any number of
// workers.
type Schedule struct {
	// ID names the schedule; 1 to 200 bytes.
	ID string
	// Cron is five fields or a shorthand such as @hourly; see the documentation of
	// schedules for its rules.
	Cron string
	// Zone is the IANA name of the time zone in which Cron is read. If "", UTC.
	Zone string
	// Task, Lane, Payload, MaxAttempts and Meta are those of the jobs. Of a typed constant
	// Task is string(SendReport); that Payload is of its type nobody checks.
	Task        string
	Lane        string
	Payload     any
	MaxAttempts int // if zero, 3
	Meta        map[string]string
	// Window spreads schedules with the same slots: each fires at an offset of its own
	// within it, always the same one. If zero, at the slot.
	Window time.Duration
	// CatchUp is about slots that were missed.
	CatchUp CatchUp
	// NoOverlap skips a slot while the job of an earlier one has not ended.
	NoOverlap bool
}

// A ScheduleState is a schedule as it stands in the table.
type ScheduleState struct {
	Schedule            // its Payload is a json.RawMessage
	NextRunAt time.Time // zero if it is paused or broken
	LastSlot  time.Time // the latest that has fired; zero if none has
	Missed    int64     // slots that did not fire
	Paused    bool
	Declared  bool   // by code; otherwise set at run time
	Error     string // why it can't be fired; "" if it can
}

// A ScheduleError says that a schedule can't be used as it was given.
type ScheduleError struct {
	ID     string
	Field  string // "id", "cron", "zone", "window", or a field of the job
	Reason string
}

func (e *ScheduleError) Error() string {
	return fmt.Sprintf("rebase: schedule %q: %s: %s", e.ID, e.Field, e.Reason)
}

// A plannedSchedule is a schedule that has been checked.
type plannedSchedule struct {
	Schedule
	expr   *cron.Expr
	loc    *time.Location
	offset time.Duration
	row    jobRow
}

func planSchedule(s Schedule, maxPayload int) (*plannedSchedule, error) {
	fail := func(field, reason string) (*plannedSchedule, error) {
		return nil, &ScheduleError{ID: storable(s.ID, 100), Field: field, Reason: reason}
	}
	p := &plannedSchedule{Schedule: s}
	if s.ID == "" || checkText(s.ID, 200) != "" {
		return fail("id", fmt.Sprintf("%q is not a text of 1 to 200 bytes", storable(s.ID, 100)))
	}
	var err error
	if p.expr, err = cron.Parse(s.Cron); err != nil {
		reason := err.Error()
		if parse, ok := errors.AsType[*cron.ParseError](err); ok {
			reason = fmt.Sprintf("%q: %s", storable(s.Cron, 100), parse.Reason)
			if parse.Field != "" {
				reason = fmt.Sprintf("%q: %s: %s", storable(s.Cron, 100), parse.Field, parse.Reason)
			}
		}
		return fail("cron", reason)
	}
	if p.loc, err = cron.LoadZone(s.Zone); err != nil {
		return fail("zone", err.Error())
	}
	if s.Window < 0 || s.Window > 24*time.Hour {
		return fail("window", s.Window.String()+" is not between 0 and 24 h")
	}
	p.Zone, p.offset = p.loc.String(), offsetOf(s.ID, s.Window)
	item := Item{Task: s.Task, Payload: s.Payload, Options: &EnqueueOptions{Lane: s.Lane, MaxAttempts: s.MaxAttempts, Meta: s.Meta}}
	if field, reason := p.row.encode(item, maxPayload); reason != "" {
		return fail(field, reason)
	}
	return p, nil
}

// offsetOf is the schedule's place in its window: from its id, so that it is the same in
// every process and after every restart.
func offsetOf(id string, window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(id)) // simpler hashes put neighbours such as job-1, job-2 close together
	part := float64(binary.BigEndian.Uint64(sum[:])>>11) / float64(1<<53)
	return time.Duration(part * float64(window)).Truncate(time.Millisecond)
}

// next is the first slot after t, and when to fire it. Both are zero if there is none.
func (p *plannedSchedule) next(t time.Time) (slot, at time.Time) {
	if slot = p.expr.Next(t, p.loc); slot.IsZero() || slot.Year() > 9999 {
		return time.Time{}, time.Time{}
	}
	return slot, slot.Add(p.offset)
}

// column is what stands in the table: how many missed slots are fired.
func (c CatchUp) column() int {
	switch {
	case c == CatchUpOne:
		return 1
	case c < 0:
		return 0
	}
	return min(int(c), math.MaxInt32)
}

// catchUpOf is the inverse of column, except that CatchUpAll(1) is CatchUpOne.
func catchUpOf(n int) CatchUp {
	switch n {
	case 0:
		return CatchUpSkip
	case 1:
		return CatchUpOne
	}
	return CatchUp(n)
}

// Schedule declares a schedule of the code. It does no I/O: Run writes it when it has reached
// the database, and again when another version of the code, which is no longer running, has
// changed it. It panics on a schedule that can't work, such as one that never matches or
// has an unknown time zone, on an id that was declared already, and once Run has begun.
func (w *Worker) Schedule(s Schedule) {
	p, err := planSchedule(s, w.q.maxPayload)
	if err != nil {
		panic(err.Error())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.started:
		panic(fmt.Sprintf("rebase: schedule %q: Run has begun; declare before it", s.ID))
	case w.schedules[s.ID] != nil:
		panic(fmt.Sprintf("rebase: schedule %q is declared already", s.ID))
	}
	w.schedules[s.ID] = p
}

// scheduleColumns are read by readSchedule.
const scheduleColumns = `s.id, s.task, s.cron, s.zone, s.next_slot, s.next_run_at, s.last_slot, s.lane, s.payload, s.meta,
 s.max_attempts, s.spread, s.catch_up, s.no_overlap, s.paused, s.missed, coalesce(s.error, ''), s.declared, s.version, (extract(epoch from s.run_offset) * 1000000)::bigint`

// A scheduleRow is a row of rebase.schedules.
type scheduleRow struct {
	ScheduleState
	nextSlot time.Time
	version  int64
	offset   time.Duration
	bad      error // why meta can't be read
}

// moved says that next_run_at was moved by hand: it is not what the next slot gives.
func (s *scheduleRow) moved() bool {
	return !s.nextSlot.IsZero() && !s.NextRunAt.Equal(s.nextSlot.Add(s.offset))
}

// collectSchedules reads all rows.
func collectSchedules(into *[]*scheduleRow) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, readSchedule)
		return err
	}
}

func readSchedule(row pgx.CollectableRow) (*scheduleRow, error) {
	s := new(scheduleRow)
	var nextSlot, nextRun, lastSlot *time.Time
	var payload, meta []byte
	var catchUp int
	var offset int64
	err := row.Scan(&s.ID, &s.Task, &s.Cron, &s.Zone, &nextSlot, &nextRun, &lastSlot, &s.Lane, &payload, &meta,
		&s.MaxAttempts, &s.Window, &catchUp, &s.NoOverlap, &s.Paused, &s.Missed, &s.Error, &s.Declared, &s.version, &offset)
	if err != nil {
		return nil, err
	}
	s.offset = time.Duration(offset) * time.Microsecond
	s.nextSlot, s.NextRunAt, s.LastSlot = timeOrZero(nextSlot), timeOrZero(nextRun), timeOrZero(lastSlot)
	s.Payload, s.CatchUp = json.RawMessage(payload), catchUpOf(catchUp)
	if meta != nil {
		s.bad = json.Unmarshal(meta, &s.Meta) // it must not hide the others
	}
	if s.Paused || s.Error != "" {
		s.NextRunAt = time.Time{}
	}
	return s, nil
}

func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// writeScheduleSQL inserts or edits. When to fire next is computed anew ($15) only if cron
// or zone changed, and not when a schedule is healed: slots that came while it was broken fire, or
// count as missed. A new offset moves the next firing, not its slot. When nothing changes nothing is
// written, nor is the row locked, so that a declaration never gets in the way of a firing.
const writeScheduleSQL = `
insert into rebase.schedules as s (id, task, cron, zone, lane, payload, meta, max_attempts, run_offset, spread, catch_up, no_overlap,
  declared, declared_by, next_slot, next_run_at, ahead)
select n.*, $14, $15::timestamptz, $15::timestamptz + n.run_offset, coalesce($15::timestamptz + n.run_offset - now(), '0')
from (select $1::text, $2::text, $3::text, $4::text, $5::text, $6::jsonb, $7::jsonb, $8::integer, $9::interval, $10::interval,
    $11::integer, $12::boolean, $13::boolean) n (id, task, cron, zone, lane, payload, meta, max_attempts, run_offset, spread,
    catch_up, no_overlap, declared)
where not exists (
  select from rebase.schedules o
  where o.id = n.id
  and (o.task, o.cron, o.zone, o.lane, o.payload, o.meta, o.max_attempts, o.run_offset, o.spread, o.catch_up, o.no_overlap, o.declared, o.error)
    is not distinct from (n.task, n.cron, n.zone, n.lane, n.payload, n.meta, n.max_attempts, n.run_offset, n.spread, n.catch_up, n.no_overlap,
      n.declared, null))
on conflict (id) do update
set task = excluded.task, cron = excluded.cron, zone = excluded.zone, lane = excluded.lane, payload = excluded.payload,
  meta = excluded.meta, max_attempts = excluded.max_attempts, run_offset = excluded.run_offset, spread = excluded.spread,
  catch_up = excluded.catch_up, no_overlap = excluded.no_overlap, declared = excluded.declared, declared_by = excluded.declared_by,
  next_slot = case when s.cron = excluded.cron and s.zone = excluded.zone then coalesce(s.next_slot, excluded.next_slot) else excluded.next_slot end,
  next_run_at = case
    when s.cron = excluded.cron and s.zone = excluded.zone then coalesce(s.next_run_at - s.run_offset + excluded.run_offset, excluded.next_run_at)
    else excluded.next_run_at
  end,
  ahead = case
    when s.cron = excluded.cron and s.zone = excluded.zone and s.next_run_at is not null then greatest(s.ahead - s.run_offset + excluded.run_offset, '0')
    else excluded.ahead
  end,
  error = null, version = s.version + 1, updated_at = statement_timestamp()
where (s.task, s.cron, s.zone, s.lane, s.payload, s.meta, s.max_attempts, s.run_offset, s.spread, s.catch_up, s.no_overlap, s.declared, s.error)
  is distinct from (excluded.task, excluded.cron, excluded.zone, excluded.lane, excluded.payload, excluded.meta, excluded.max_attempts,
    excluded.run_offset, excluded.spread, excluded.catch_up, excluded.no_overlap, excluded.declared, null)`

// write is the statement for a schedule; now is the database's clock. by is the worker
// whose code declares it, "" for one that is set at run time.
func (p *plannedSchedule) write(now time.Time, by string) statement {
	slot, _ := p.next(now)
	return statement{sql: writeScheduleSQL, args: []any{p.ID, p.row.task, p.Cron, p.Zone, p.row.lane, p.row.payload, p.row.meta, p.row.maxAttempts,
		interval(p.offset), interval(p.Window), p.CatchUp.column(), p.NoOverlap, by != "", textOrNil([]byte(by)), timeOrNil(slot)}}
}
