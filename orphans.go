package rebase

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Orphans are running rows that no row of rebase.claims lists: made by hand, or left by a
// restore of one table without the other. The reaper, which goes by the ledger, can't see them.
// So once an hour all unfinished rows are looked through, page by page along jobs_unfinished, and
// orphans whose lease ended long ago are taken back as by the reaper, but are due at once. Jobs
// that were reaped before stand in jobs_reaped; they are few, and looked at with each page.

const (
	orphanPage = 20_000
	orphanAge  = `interval '1 minute'`
)

// takeOrphan is what becomes of an orphan j. One that had not begun gets its attempt back. Who
// made the row may have made its history, too.
const (
	orphanEnds = `(j.started_at is not null and j.attempts >= j.max_attempts)`
	takeOrphan = `
  set status = case when ` + orphanEnds + ` then 'failed' else 'pending' end,
    dead = ` + orphanEnds + `,
    fence = 0,
    attempts = greatest(j.attempts - case when j.started_at is null then 1 else 0 end, 0),
    crashes = least(j.crashes + 1, 1000),
    run_at = case when ` + orphanEnds + ` then j.run_at else now() end,
    finished_at = case when ` + orphanEnds + ` then now() end,
    locked_until = null,
    last_error = 'was running, but no claim of any worker listed it',
    history = case
      when jsonb_typeof(j.history) <> 'array' then j.history
      else (case when jsonb_array_length(j.history) >= 20 then j.history - 0 else coalesce(j.history, '[]') end) ||
        jsonb_build_object('attempt', j.attempts, 'run', j.runs, 'started_at', coalesce(j.started_at, '0001-01-01 00:00Z'), 'ended_at', now(),
          'worker', j.locked_by, 'outcome', 'crashed', 'error', 'no claim of any worker listed it')
    end,
    updated_at = now()`
	orphanColumns = `coalesce(w.id, 0), coalesce(w.task, ''), coalesce(w.lane, ''), coalesce(w.attempts, 0), coalesce(w.status, ''), coalesce(w.locked_by, '')`
)

// orphanSQL looks at the $5 rows behind the key ($1 to $4). It returns that page's last key and
// size, and with them each orphan, or the id 0 if there is none.
const orphanSQL = `
with page as materialized (
  select p.ctid as row, p.task, p.lane, p.run_at, p.id, p.status, p.fence, p.locked_until
  from rebase.jobs p
  where p.finished_at is null and p.crashes = 0
  and (p.task, p.lane, p.run_at, p.id) > ($1::text collate "C", $2::text collate "C", $3::timestamptz, $4::bigint)
  order by p.task, p.lane, p.run_at, p.id
  limit $5
), w as (
  update rebase.jobs j` + takeOrphan + `
  where j.ctid = any(array(
    select p.ctid
    from rebase.jobs p
    join page on page.row = p.ctid
    where page.status = 'running' and coalesce(page.locked_until, '-infinity') < now() - ` + orphanAge + `
    and p.status = 'running' and p.fence = page.fence
    and coalesce(p.locked_until, '-infinity') < now() - ` + orphanAge + `
    and not exists (select from rebase.claims k where k.token = p.fence)
    for no key update of p skip locked
  ))
  returning j.id, j.task, j.lane, j.attempts, j.status, j.locked_by
)
select l.task, l.lane, l.run_at, l.id, (select count(*) from page), ` + orphanColumns + `
from (select p.* from page p order by p.task desc, p.lane desc, p.run_at desc, p.id desc limit 1) l
left join w on true`

// reapedOrphanSQL takes back at most $1 orphans that were reaped before. Relies on jobs_reaped.
const reapedOrphanSQL = `
with w as (
  update rebase.jobs j` + takeOrphan + `
  where j.ctid = any(array(
    select p.ctid
    from rebase.jobs p
    where p.finished_at is null and p.crashes <> 0
    and p.status = 'running' and coalesce(p.locked_until, '-infinity') < now() - ` + orphanAge + `
    and not exists (select from rebase.claims k where k.token = p.fence)
    order by p.task, p.lane, p.run_at, p.id
    limit $1
    for no key update of p skip locked
  ))
  returning j.id, j.task, j.lane, j.attempts, j.status, j.locked_by
)
select ` + orphanColumns + ` from w`

// orphanKey is where the search goes on.
type orphanKey struct {
	task, lane string
	at         time.Time
	id         int64
}

// orphanDuty looks at one page.
func (e *engine) orphanDuty(ctx context.Context, now time.Time) error {
	k := &e.orphans
	if k.at.IsZero() {
		k.at = lowest
	}
	var n int64
	var found []Job
	var j Job
	orphan := []any{&j.ID, &j.Task, &j.Lane, &j.Attempts, &j.Status, &j.LockedBy}
	add := func() error {
		if j.ID != 0 {
			found = append(found, j)
		}
		return nil
	}
	err := e.results.round(ctx, e.roundLimit(), statement{reapedOrphanSQL, []any{orphanPage}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, orphan, add)
		return err
	}}, statement{orphanSQL, []any{k.task, k.lane, k.at, k.id, orphanPage}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, append([]any{&k.task, &k.lane, &k.at, &k.id, &n}, orphan...), add)
		return err
	}})
	if err != nil {
		e.set(&e.duties.orphans, now.Add(time.Minute))
		return err
	}
	e.tellOrphans(found)
	if n == orphanPage {
		e.set(&e.duties.orphans, rest(now))
		return nil
	}
	*k = orphanKey{}
	e.set(&e.duties.orphans, now.Add(purgePeriod))
	return nil
}

// tellOrphans logs what was taken back, and wakes this engine for what it may run itself.
func (e *engine) tellOrphans(found []Job) {
	if len(found) == 0 {
		return
	}
	events := e.diedHeld(found, "it was running with its last attempt, and no claim listed it")
	e.log.Error("rebase: took back running jobs that no claim listed", "count", len(found), "worker", e.id)
	e.wake("")
	e.events.add(events...)
}
