package rebase

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Tending the table of schedules, once a minute: the declarations of the code are written
// where the table differs, and schedules that broke or were moved away by a step of the clock
// are brought back. It reads more than what is due, so no firing waits for it twice, and what
// it finds unchanged it neither writes nor locks.

// tendSchedules does so if it is time, and says whether all of it is done. What was refused, or is
// locked by somebody, is tried again soon, by itself.
func (e *engine) tendSchedules(ctx context.Context, now time.Time) (done bool, err error) {
	d := &e.duties
	all := now.Sub(e.tended) >= firePeriod
	switch {
	case !all && len(d.undeclared) == 0:
		return true, nil
	case now.Before(d.declareAt):
		return false, nil
	}
	began, ids := time.Now(), d.undeclared
	if all {
		ids = e.scheduleIDs
	}
	left, err := e.declare(ctx, ids)
	if all && (err == nil || isRefused(err)) {
		err = cmp.Or(e.bringBack(ctx), err)
	}
	d.declareAt = now.Add(time.Since(began) + fireRetry)
	if err != nil && !isRefused(err) {
		return false, err
	}
	d.undeclared = left
	if all {
		e.tended = now
	}
	if isLockTimeout(err) {
		err = nil // somebody else is writing it
	}
	return len(left) == 0, err
}

// newerSQL reads the clock; since when this worker has been there ($3, if it is known
// already); and which of its schedules a live worker has declared that came later. The order of
// start and name is total, so two workers never take turns.
const newerSQL = `
select now(), me.since, coalesce((
  select array_agg(s.id)
  from rebase.schedules s
  join rebase.workers w on w.id = s.declared_by
  where s.id = any($1::text[]) and s.declared and w.id <> $2
  and (w.started_at, w.id) > (me.since, $2) and ` + aliveSQL + `), '{}')
from (select coalesce($3::timestamptz, (select w.started_at from rebase.workers w where w.id = $2), now()) as since) me`

// declare writes the schedules of the code where they differ from the table's; but not over
// those that a live worker has declared otherwise, which may be the next version's. It returns
// those that it could not write.
func (e *engine) declare(ctx context.Context, ids []string) (left []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var now time.Time
	taken := map[string]bool{}
	args := []any{ids, e.id, timeOrNil(e.since)}
	err = e.results.round(ctx, e.roundLimit(), statement{newerSQL, args, func(rows pgx.Rows) error {
		var newer []string
		_, err := pgx.ForEachRow(rows, []any{&now, &e.since, &newer}, func() error {
			for _, id := range newer {
				taken[id] = true
			}
			return nil
		})
		return err
	}})
	if err != nil {
		return ids, err
	}
	var mine []string
	var statements []statement
	for _, id := range ids {
		if !taken[id] {
			mine, statements = append(mine, id), append(statements, e.w.schedules[id].write(now.UTC(), e.id))
		}
	}
	rest, err := e.apart(ctx, statements)
	for _, i := range rest {
		left = append(left, mine[i])
	}
	return left, err
}

// apartRows bounds a round of apart.
const apartRows = 200

// apart runs statements that don't depend on each other: many in a round, and those of a round that is
// refused each in its own, for as long as a duty may take. left are those that there was no
// time for and then, since they are to be tried again last, those that were refused.
func (e *engine) apart(ctx context.Context, statements []statement) (left []int, err error) {
	end := time.Now().Add(e.dutyLimit())
	var bad []int
	for first := 0; first < len(statements); first += apartRows {
		list := statements[first:min(first+apartRows, len(statements))]
		if time.Now().After(end) {
			for i := range list {
				left = append(left, first+i)
			}
			continue
		}
		whole := e.results.round(ctx, e.roundLimit(), list...)
		if whole == nil {
			continue
		} else if !isRefused(whole) {
			return nil, whole
		}
		for i := range list {
			if i > 0 && time.Now().After(end) {
				left, err = append(left, first+i), cmp.Or(err, whole)
				continue
			}
			one := e.results.round(ctx, e.roundLimit(), list[i])
			if one != nil && !isRefused(one) {
				return nil, one
			} else if one != nil {
				bad = append(bad, first+i)
			}
			if err == nil || isLockTimeout(err) {
				err = cmp.Or(one, err)
			}
		}
	}
	return append(left, bad...), err
}

// astraySQL finds schedules that were marked as broken, and those whose next firing is much
// further away than when it was computed: the clock was set back. It reads the whole table.
const astraySQL = `
select ` + scheduleColumns + `
from rebase.schedules s
where not s.paused
and (s.error is not null or s.next_run_at > now() + s.ahead + greatest(s.ahead, interval '10 minutes'))
and (not s.declared or s.id = any($1::text[]))
order by s.error is not null
limit 1000`

const (
	breakScheduleSQL = `update rebase.schedules set error = $2, version = version + 1, updated_at = now() where id = $1 and version = $3`
	anchorSQL        = `
update rebase.schedules
set next_slot = $2, next_run_at = $3::timestamptz, ahead = coalesce($3::timestamptz - now(), '0'), version = version + 1
where id = $1 and version = $4`
	healSQL = `
update rebase.schedules
set error = null, next_slot = coalesce(next_slot, $2), next_run_at = coalesce(next_run_at, $3), version = version + 1, updated_at = now()
where id = $1 and version = $4`
)

// plan checks a row as a declaration is checked. Its offset is the row's: next_run_at was made
// with that.
func (s *scheduleRow) plan() (*plannedSchedule, error) {
	if s.bad != nil {
		return nil, &ScheduleError{ID: s.ID, Field: "meta", Reason: s.bad.Error()}
	}
	p, err := planSchedule(s.Schedule, -1)
	if err == nil {
		p.offset = s.offset
	}
	return p, err
}

// bringBack anchors anew what a step of the clock has moved away, and heals what was broken and
// can be fired by this host: it may know a time zone that another doesn't.
func (e *engine) bringBack(ctx context.Context) error {
	var now time.Time
	var rows []*scheduleRow
	err := e.results.round(ctx, e.roundLimit(),
		statement{nowSQL, nil, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&now}, func() error { return nil })
			return err
		}},
		statement{astraySQL, []any{e.scheduleIDs}, collectSchedules(&rows)})
	if err != nil {
		return err
	}
	var statements []statement
	for _, s := range rows {
		p, err := s.plan()
		if err != nil {
			continue // stays marked, or will be when it is due
		}
		sql := anchorSQL
		if s.Error != "" {
			sql = healSQL
		}
		slot, at := p.next(now.UTC().Add(-p.offset))
		statements = append(statements, statement{sql: sql, args: []any{s.ID, timeOrNil(slot), timeOrNil(at), s.version}})
	}
	if _, err := e.apart(ctx, statements); err != nil && !isRefused(err) { // refused: locked by somebody; in a minute
		return err
	}
	return nil
}
