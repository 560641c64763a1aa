package rebase

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase/internal/cron"
)

// Schedules: what they are, and how they are declared, set and looked at. See fire.go for
// how their slots become jobs.
//
// A slot is the nominal instant that the cron expression names; a schedule's window only
// moves the moment of firing. A schedule is declared by code, and then fired by the workers
// whose code declares it, or set at run time, and then fired by any worker.

// CatchUp says what happens to slots that were missed because no worker was there: CatchUpOne,
// CatchUpSkip or CatchUpAll(n). The zero value is CatchUpOne.
type CatchUp int

const (
	// CatchUpOne fires the latest missed slot.
	CatchUpOne CatchUp = 0
	// CatchUpSkip fires none of them.
	CatchUpSkip CatchUp = -1
)

// CatchUpAll fires the latest n missed slots.
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
	// Task, Lane, Payload, MaxAttempts and Meta are those of the jobs.
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
	LastSlot  time.Time // zero if none has fired
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
		return fail("cron", err.Error())
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
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	part := float64(h.Sum64()>>11) / float64(1<<53)
	return time.Duration(part * float64(window)).Truncate(time.Millisecond)
}

// next is the first slot after t, and when to fire it. Both are zero if there is none.
func (p *plannedSchedule) next(t time.Time) (slot, at time.Time) {
	if slot = p.expr.Next(t, p.loc); slot.IsZero() || slot.Year() > 9999 {
		return time.Time{}, time.Time{}
	}
	return slot, slot.Add(p.offset)
}

// catchUp is what stands in the column: how many missed slots are fired.
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
// has an unknown time zone, and on an id that was declared already.
func (w *Worker) Schedule(s Schedule) {
	p, err := planSchedule(s, w.q.maxPayload)
	if err != nil {
		panic(err.Error())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.started:
		panic(fmt.Sprintf("rebase: schedule %q: the worker is running already", s.ID))
	case w.schedules[s.ID] != nil:
		panic(fmt.Sprintf("rebase: schedule %q is declared already", s.ID))
	}
	w.schedules[s.ID] = p
}

// scheduleColumns are read by readSchedule.
const scheduleColumns = `s.id, s.task, s.cron, s.zone, s.next_slot, s.next_run_at, s.last_slot, s.lane, s.payload, s.meta,
 s.max_attempts, s.spread, s.catch_up, s.no_overlap, s.paused, s.missed, coalesce(s.error, ''), s.declared, s.version, coalesce(s.declared_by, '')`

// A scheduleRow is a row of rebase.schedules.
type scheduleRow struct {
	ScheduleState
	nextSlot   time.Time
	version    int64
	declaredBy string
}

func readSchedule(row pgx.CollectableRow) (*scheduleRow, error) {
	s := new(scheduleRow)
	var nextSlot, nextRun, lastSlot *time.Time
	var payload, meta []byte
	var catchUp int
	err := row.Scan(&s.ID, &s.Task, &s.Cron, &s.Zone, &nextSlot, &nextRun, &lastSlot, &s.Lane, &payload, &meta,
		&s.MaxAttempts, &s.Window, &catchUp, &s.NoOverlap, &s.Paused, &s.Missed, &s.Error, &s.Declared, &s.version, &s.declaredBy)
	if err != nil {
		return nil, err
	}
	s.nextSlot, s.NextRunAt, s.LastSlot = timeOrZero(nextSlot), timeOrZero(nextRun), timeOrZero(lastSlot)
	s.Payload, s.CatchUp = json.RawMessage(payload), catchUpOf(catchUp)
	if meta != nil {
		err = json.Unmarshal(meta, &s.Meta)
	}
	if s.Paused || s.Error != "" {
		s.NextRunAt = time.Time{}
	}
	return s, err
}

func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

const schedulesSQL = `select ` + scheduleColumns + ` from rebase.schedules s where s.id > $1 order by s.id limit $2`

// Schedules lists all schedules by id. An error ends it.
func (q *Queue) Schedules(ctx context.Context) iter.Seq2[*ScheduleState, error] {
	return func(yield func(*ScheduleState, error) bool) {
		after := ""
		for {
			var page []*scheduleRow
			err := q.round(ctx, statement{schedulesSQL, []any{after, listPage}, func(rows pgx.Rows) (err error) {
				page, err = pgx.CollectRows(rows, readSchedule)
				return err
			}})
			if err != nil {
				yield(nil, fmt.Errorf("rebase: schedules: %w", err))
				return
			}
			for _, s := range page {
				if !yield(&s.ScheduleState, nil) {
					return
				}
				after = s.ID
			}
			if len(page) < listPage {
				return
			}
		}
	}
}

// writeScheduleSQL inserts or edits. When to fire next is computed anew ($16) only if cron,
// zone or paused changed; a new offset moves the next firing, not its slot. Nothing is written
// when nothing changes.
const writeScheduleSQL = `
insert into rebase.schedules as s (id, task, cron, zone, lane, payload, meta, max_attempts, run_offset, spread, catch_up, no_overlap,
  declared, declared_by, next_slot, next_run_at, ahead)
values ($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb, $8, $9::interval, $10::interval, $11, $12, $13, $14, $15, $15::timestamptz + $9::interval,
  $15::timestamptz + $9::interval - now())
on conflict (id) do update
set task = excluded.task, cron = excluded.cron, zone = excluded.zone, lane = excluded.lane, payload = excluded.payload,
  meta = excluded.meta, max_attempts = excluded.max_attempts, run_offset = excluded.run_offset, spread = excluded.spread,
  catch_up = excluded.catch_up, no_overlap = excluded.no_overlap, declared = excluded.declared, declared_by = excluded.declared_by,
  next_slot = case when s.cron = excluded.cron and s.zone = excluded.zone and s.error is null then s.next_slot else excluded.next_slot end,
  next_run_at = case
    when s.cron = excluded.cron and s.zone = excluded.zone and s.error is null then s.next_slot + excluded.run_offset
    else excluded.next_run_at
  end,
  ahead = case when s.cron = excluded.cron and s.zone = excluded.zone and s.error is null then s.ahead else excluded.ahead end,
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

const (
	nowSQL            = `select now()`
	scheduleNotifySQL = `select case when $1::int <> 2 then pg_notify('` + channel + `', 's:') end`
)

// SetSchedule makes or changes a schedule at run time; any worker fires it. A change takes
// effect with the first slot after now, and only if the cron expression or the zone changed. It
// returns a *ScheduleError for a schedule that can't work.
func (q *Queue) SetSchedule(ctx context.Context, s Schedule) error {
	p, err := planSchedule(s, q.maxPayload)
	if err != nil {
		return err
	}
	now, err := q.now(ctx)
	if err == nil {
		err = q.changeSchedules(ctx, p.write(now, ""))
	}
	if err != nil {
		return fmt.Errorf("rebase: set schedule %q: %w", s.ID, err)
	}
	return nil
}

// now is the database's clock.
func (q *Queue) now(ctx context.Context) (now time.Time, err error) {
	err = q.round(ctx, statement{nowSQL, nil, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&now}, func() error { return nil })
		return err
	}})
	return now.UTC(), err
}

// changeSchedules runs a statement and tells the workers.
func (q *Queue) changeSchedules(ctx context.Context, st statement) error {
	if err := q.round(ctx, st, statement{sql: scheduleNotifySQL, args: []any{int32(q.notify)}}); err != nil {
		return err
	}
	q.eachEngine(func(e *engine) { e.schedulesChanged() })
	return nil
}

// changeSchedule is changeSchedules for a statement that returns a row for the schedule that
// it changed.
func (q *Queue) changeSchedule(ctx context.Context, verb, id, sql string, args ...any) error {
	found := false
	err := q.changeSchedules(ctx, statement{sql, append([]any{id}, args...), func(rows pgx.Rows) error {
		for rows.Next() {
			found = true
		}
		return rows.Err()
	}})
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("rebase: %s schedule %q: %w", verb, storable(id, 100), err)
	}
	return nil
}

// DeleteSchedule removes a schedule; its jobs stay. One that code declares comes back with
// the next start of that code: pause it instead. It returns ErrNotFound if there is none.
func (q *Queue) DeleteSchedule(ctx context.Context, id string) error {
	return q.changeSchedule(ctx, "delete", id, `
with slots as (delete from rebase.schedule_slots where schedule_id = $1)
delete from rebase.schedules where id = $1 returning id`)
}

// PauseSchedule stops a schedule's firing until ResumeSchedule. Slots in between are not
// made up for and don't count as missed. It returns ErrNotFound if there is none.
func (q *Queue) PauseSchedule(ctx context.Context, id string) error {
	return q.changeSchedule(ctx, "pause", id, `
update rebase.schedules set paused = true, version = version + 1, updated_at = statement_timestamp() where id = $1 returning id`)
}

// ResumeSchedule lets a paused schedule fire again, from the next slot on. It returns
// ErrNotFound if there is none.
func (q *Queue) ResumeSchedule(ctx context.Context, id string) error {
	s, now, err := q.schedule(ctx, id)
	if err != nil {
		return fmt.Errorf("rebase: resume schedule %q: %w", storable(id, 100), err)
	}
	if !s.Paused {
		return nil
	}
	p, err := planSchedule(s.Schedule, -1)
	if err != nil {
		return err
	}
	slot, at := p.next(now)
	return q.changeSchedule(ctx, "resume", id, `
update rebase.schedules
set paused = false, next_slot = $2, next_run_at = $3::timestamptz, ahead = $3::timestamptz - now(), version = version + 1, updated_at = statement_timestamp()
where id = $1
returning id`, timeOrNil(slot), timeOrNil(at))
}

// schedule reads one schedule, and the database's clock.
func (q *Queue) schedule(ctx context.Context, id string) (s *scheduleRow, now time.Time, err error) {
	err = q.round(ctx,
		statement{`select ` + scheduleColumns + ` from rebase.schedules s where s.id = $1`, []any{id}, func(rows pgx.Rows) error {
			list, err := pgx.CollectRows(rows, readSchedule)
			if len(list) > 0 {
				s = list[0]
			}
			return err
		}},
		statement{nowSQL, nil, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&now}, func() error { return nil })
			return err
		}})
	if err == nil && s == nil {
		err = ErrNotFound
	}
	return s, now.UTC(), err
}

// FireSchedule makes a job of the schedule now, beside its slots, which stay as they are. The
// job's Slot is zero. It returns ErrNotFound if there is none.
func (q *Queue) FireSchedule(ctx context.Context, id string) error {
	return q.changeSchedule(ctx, "fire", id, `
with made as (
  insert into rebase.jobs (task, lane, payload, meta, max_attempts)
  select s.task, s.lane, s.payload, s.meta, s.max_attempts from rebase.schedules s where s.id = $1
  returning task
)
select rebase.wake(made.task, $2::int) from made`, int32(q.notify))
}
