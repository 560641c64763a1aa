package rebase

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Orphans are running rows that no row of rebase.claims lists: made by hand, or left by a
// restore of one table without the other. The reaper, which goes by the ledger, can't see them.
// So once an hour all unfinished rows are looked through, page by page along jobs_unfinished, and
// orphans whose lease ended long ago are put back. Jobs that were reaped before stand in
// jobs_reaped; they are few, and looked at with each page.

const (
	orphanPage = 20_000
	orphanAge  = `interval '1 minute'`
)

// orphanSQL looks at the $5 rows behind the key ($1 to $4). It returns that page's last key, and
// how many it put back.
const orphanSQL = `
with page as materialized (
  select p.ctid as row, p.task, p.lane, p.run_at, p.id, p.status, p.fence, p.locked_until
  from rebase.jobs p
  where p.finished_at is null and p.crashes = 0
  and (p.task, p.lane, p.run_at, p.id) > ($1::text collate "C", $2::text collate "C", $3::timestamptz, $4::bigint)
  order by p.task, p.lane, p.run_at, p.id
  limit $5
), w as (
  update rebase.jobs j
  set status = 'pending', fence = 0, crashes = 1, run_at = now(), locked_until = null, updated_at = now(),
    last_error = 'was running, but no claim of any worker listed it'
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
  returning j.id
)
select l.task, l.lane, l.run_at, l.id, (select count(*) from page), (select count(*) from w)
from (select p.* from page p order by p.task desc, p.lane desc, p.run_at desc, p.id desc limit 1) l`

// reapedOrphanSQL puts back at most $1 orphans that were reaped before. Relies on jobs_reaped.
const reapedOrphanSQL = `
with w as (
  update rebase.jobs j
  set status = 'pending', fence = 0, crashes = least(j.crashes + 1, 1000), run_at = now(), locked_until = null, updated_at = now(),
    last_error = 'was running, but no claim of any worker listed it'
  where j.ctid = any(array(
    select p.ctid
    from rebase.jobs p
    where p.finished_at is null and p.crashes > 0
    and p.status = 'running' and coalesce(p.locked_until, '-infinity') < now() - ` + orphanAge + `
    and not exists (select from rebase.claims k where k.token = p.fence)
    order by p.task, p.lane, p.run_at, p.id
    limit $1
    for no key update of p skip locked
  ))
  returning j.id
)
select count(*) from w`

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
	var n, found, again int64
	err := e.results.round(ctx, e.roundLimit(), statement{reapedOrphanSQL, []any{orphanPage}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&again}, func() error { return nil })
		return err
	}}, statement{orphanSQL, []any{k.task, k.lane, k.at, k.id, orphanPage}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&k.task, &k.lane, &k.at, &k.id, &n, &found}, func() error { return nil })
		return err
	}})
	if err != nil {
		e.set(&e.duties.orphans, now.Add(time.Minute))
		return err
	}
	if found += again; found > 0 {
		e.log.Error("rebase: put back running jobs that no claim listed", "count", found, "worker", e.id)
		e.wake("")
	}
	if n == orphanPage {
		e.set(&e.duties.orphans, rest(now))
		return nil
	}
	*k = orphanKey{}
	e.set(&e.duties.orphans, now.Add(purgePeriod))
	return nil
}
