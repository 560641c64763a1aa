package rebase

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
)

// What operators and running programs do with schedules: list, set, delete, pause, resume, fire.
// Each change raises the row's version, so that a firing that was computed before it does
// nothing, and tells the workers.

const schedulesSQL = `select ` + scheduleColumns + ` from rebase.schedules s where s.id > $1 order by s.id limit $2`

// Schedules lists all schedules by id. An error ends it.
func (q *Queue) Schedules(ctx context.Context) iter.Seq2[*ScheduleState, error] {
	return func(yield func(*ScheduleState, error) bool) {
		after := ""
		for {
			var page []*scheduleRow
			err := q.round(ctx, statement{schedulesSQL, []any{after, listPage}, collectSchedules(&page)})
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

const (
	nowSQL            = `select now()`
	scheduleNotifySQL = `select case when $1::int <> 2 then pg_notify('` + channel + `', 's:') end`
)

// SetSchedule makes or changes a schedule at run time; any worker fires it. A new cron
// expression or zone takes effect with the first slot after now; any other change with the next
// slot, which stays, though a new Window moves its firing. It returns a *ScheduleError for a
// schedule that can't work.
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

// DeleteSchedule removes a schedule; its jobs stay, and the slots that it has fired stay known.
// One that code declares comes back within minutes while that code runs: pause it instead. It
// returns ErrNotFound if there is none.
func (q *Queue) DeleteSchedule(ctx context.Context, id string) error {
	return q.changeSchedule(ctx, "delete", id, `delete from rebase.schedules where id = $1 returning id`)
}

// PauseSchedule stops a schedule's firing until ResumeSchedule. Slots in between are not
// made up for and don't count as missed. It returns ErrNotFound if there is none.
func (q *Queue) PauseSchedule(ctx context.Context, id string) error {
	return q.changeSchedule(ctx, "pause", id, `
update rebase.schedules set paused = true, version = version + 1, updated_at = statement_timestamp() where id = $1 returning id`)
}

// ResumeSchedule lets a paused schedule fire again, from the next slot on; with a Window, from the
// next slot whose time to fire is to come. It returns ErrNotFound if there is none.
func (q *Queue) ResumeSchedule(ctx context.Context, id string) error {
	for {
		s, now, err := q.schedule(ctx, id)
		if err != nil {
			return fmt.Errorf("rebase: resume schedule %q: %w", storable(id, 100), err)
		}
		if !s.Paused {
			return nil
		}
		p, err := s.plan()
		if err != nil {
			return err
		}
		slot, at := p.next(s.resumesAfter(now))
		err = q.changeSchedule(ctx, "resume", id, `
update rebase.schedules
set paused = false, next_slot = $2, next_run_at = $3::timestamptz, ahead = coalesce($3::timestamptz - now(), '0'), error = null,
  version = version + 1, updated_at = statement_timestamp()
where id = $1 and version = $4
returning id`, timeOrNil(slot), timeOrNil(at), s.version)
		if !errors.Is(err, ErrNotFound) {
			return err
		} // else it was edited or deleted meanwhile
	}
}

// resumesAfter is the instant after which the first slot fires when a pause ends: slots count whose
// time to fire is to come, but none before the one that was next, which may be from before
// the schedule existed, and in any case those that are to come.
func (s *scheduleRow) resumesAfter(now time.Time) time.Time {
	t := now.Add(-s.offset)
	if next := s.nextSlot.Add(-time.Nanosecond); next.After(t) {
		t = next
	}
	return earlier(t, now)
}

// schedule reads one schedule, and the database's clock.
func (q *Queue) schedule(ctx context.Context, id string) (s *scheduleRow, now time.Time, err error) {
	var list []*scheduleRow
	err = q.round(ctx,
		statement{`select ` + scheduleColumns + ` from rebase.schedules s where s.id = $1`, []any{id}, collectSchedules(&list)},
		statement{nowSQL, nil, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&now}, func() error { return nil })
			return err
		}})
	switch {
	case err != nil:
		return nil, now, err
	case len(list) == 0:
		return nil, now, ErrNotFound
	}
	return list[0], now.UTC(), nil
}

// FireSchedule makes a job of the schedule now, beside its slots, which stay as they are. The
// job's Slot is zero. It returns ErrNotFound if there is none.
func (q *Queue) FireSchedule(ctx context.Context, id string) error {
	err := q.changeSchedule(ctx, "fire", id, `
with made as (
  insert into rebase.jobs (task, lane, payload, meta, max_attempts)
  select s.task, s.lane, s.payload, s.meta, s.max_attempts from rebase.schedules s where s.id = $1
  returning task
)
select rebase.wake(made.task, $2::int) from made`, int32(q.notify))
	if err == nil {
		q.eachEngine(func(e *engine) { e.wake("") })
	}
	return err
}
