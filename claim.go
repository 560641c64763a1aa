package rebase

import (
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
)

// Every way in which a worker takes jobs. All have one frame: pick rows with FOR
// UPDATE SKIP LOCKED, mark them with a random token, and write the ids beside the
// token into rebase.claims, all in one statement. They differ in how they pick.
//
// The frame is `ctid = any(array(subquery))` because PostgreSQL runs that subquery
// once; with `id in (select … limit n … skip locked)` it may run it more than once
// and claim more than n. A claim changes no indexed column, so it is a HOT update.
// The predicate of a partial index is spelled out in literals, or the planner can't
// use the index.

// The parameters $1 to $4 of every claim: token, worker, lease, begins at once.
const (
	claimHead = `
, c as (
  update rebase.jobs j
  set status = 'running', fence = $1::bigint, attempts = least(j.attempts, 2147483646) + 1, runs = least(j.runs, 2147483646) + 1, locked_by = $2::text,
    locked_until = now() + $3::interval, started_at = case when $4::boolean then now() end, updated_at = now()
  where j.ctid = any(array(`

	claimTail = `))
  returning ` + jobColumns + `
), ledger as (

  insert into rebase.claims (token, locked_until, lease, worker, ids)
  select $1::bigint, now() + $3::interval, $3::interval, $2::text, array_agg(c.id)
  from c
  having count(*) > 0
)`
)

// claimSQL: the lanes of $5 and $6 in that order, of each at most $7, in the order of
// run_at and id from its floor ($8, $9), at most $10 in all. Relies on jobs_unfinished.
// Running rows stand in that index too, and are stepped over. Whether the task is paused
// is asked inside, before its rows are looked at, or they would be locked for nothing.
const claimSQL = `
with nothing as (select)` + claimHead + `
    select y.ctid
    from rows from (unnest($5::text[]), unnest($6::text[]), unnest($7::int[]), unnest($8::timestamptz[]), unnest($9::bigint[]))
      as l(task, lane, want, floor_at, floor_id)
    cross join lateral (
      select p.ctid
      from rebase.jobs p
      where p.finished_at is null and p.crashes = 0
      and p.status = 'pending'
      and p.task = l.task and p.lane = l.lane
      and p.run_at <= now()
      and (p.run_at, p.id) >= (l.floor_at, l.floor_id)
      and not exists (select from rebase.paused z where z.task = l.task)
      order by p.run_at, p.id
      limit least(greatest(coalesce(l.want, 0), 0), 10000)
      for update skip locked
    ) y
    limit $10` + claimTail + `
select * from c`

// claimLanesSQL: of task $5, the lanes from $6 on, at most $7 of them, found by a
// loose scan: one probe of jobs_unfinished a lane. Of each lane at most $8, from its
// floor ($9, $10, $11) if it has one, at most $12 in all; and with a limit ($13 > 0) not
// more than are missing to it, counted from the live rows of rebase.claims; the limit is not
// for jobs without a lane. It returns a row in any case: the last lane seen, and how many were.
const claimLanesSQL = `
with recursive found (lane, n) as (
  select (
    select p.lane from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = $5::text and p.lane >= $6::text
    order by p.lane limit 1), 1
  union all
  select (
    select p.lane from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = $5::text and p.lane > f.lane
    order by p.lane limit 1), f.n + 1
  from found f
  where f.lane is not null and f.n < $7::int
), busy as materialized (
  select x.lane, count(*)::int as n
  from rebase.claims k
  cross join lateral unnest(k.ids) i (id)
  cross join lateral (
    select p.lane, p.task
    from rebase.jobs p
    where p.id = i.id and p.fence = k.token
    limit 1
  ) x
  where $13::int > 0 and x.task = $5::text
  group by x.lane
)` + claimHead + `
    select y.ctid
    from found f
    left join busy b on b.lane = f.lane
    left join rows from (unnest($9::text[]), unnest($10::timestamptz[]), unnest($11::bigint[])) as l (lane, floor_at, floor_id) on l.lane = f.lane
    cross join lateral (
      select p.ctid
      from rebase.jobs p
      where p.finished_at is null and p.crashes = 0
      and p.status = 'pending'
      and p.task = $5::text and p.lane = f.lane
      and p.run_at <= now()
      and (p.run_at, p.id) >= (coalesce(l.floor_at, '0001-01-01 00:00Z'), coalesce(l.floor_id, 0))
      order by p.run_at, p.id
      limit greatest(least($8::int, case
        when $13::int = 0 or f.lane = '' then $8::int
        when strpos(current_setting('rebase.lanes', true), ',' || hashtext($5::text) || ',') > 0 then $13::int - coalesce(b.n, 0)
        else 0 end), 0)
      for update skip locked
    ) y
    where f.lane is not null
    and not exists (select from rebase.paused z where z.task = $5::text)
    limit $12` + claimTail + `
select c.*, (select max(f.lane) from found f), (select count(f.lane)::int from found f)
from (values (1)) one (row)
left join c on true`

// laneLockSQL makes those who count a task's lanes do it one after the other. A statement of
// its own, because what follows must see what the last one to hold the lock has committed. Who
// can't have it doesn't wait, or a frozen process would stop the claims of all others: the
// claim finds no lock noted in the transaction's setting, leaves limited lanes out, and they
// are looked at again soon.
const laneLockSQL = `
select set_config('rebase.lanes', coalesce(current_setting('rebase.lanes', true), '') ||
  case when pg_try_advisory_xact_lock(7237, hashtext($1::text)) then ',' || hashtext($1::text) || ',' else '' end, true)`

// claimIDsSQL: the jobs of $5, as far as they are due, at most $6. For those that a
// head look has found below a floor. "finished_at is null", which pending implies, is
// left out: with it the planner may read all of jobs_unfinished for each id.
const claimIDsSQL = `
with nothing as (select)` + claimHead + `
    select y.ctid
    from unnest($5::bigint[]) u (id)
    cross join lateral (
      select p.ctid
      from rebase.jobs p
      where p.id = u.id
      and p.crashes = 0 and p.status = 'pending'
      and p.run_at <= now()
      and not exists (select from rebase.paused z where z.task = p.task)
      for update skip locked
    ) y
    limit $6` + claimTail + `
select * from c`

// claimReapedSQL: one job of the tasks $5 whose worker died with it, under the lane
// limits $6 (0 for none). Relies on jobs_reaped.
const claimReapedSQL = `
with nothing as (select)` + claimHead + `
    select y.ctid
    from rows from (unnest($5::text[]), unnest($6::int[])) as l (task, lane_limit)
    cross join lateral (
      select p.ctid
      from rebase.jobs p
      where p.finished_at is null and p.crashes <> 0
      and p.status = 'pending'
      and p.task = l.task
      and p.run_at <= now()
      and (l.lane_limit = 0 or p.lane = ''
        or strpos(current_setting('rebase.lanes', true), ',' || hashtext(l.task) || ',') > 0 and l.lane_limit > (
        select count(*)
        from rebase.claims k
        cross join lateral unnest(k.ids) i (id)
        cross join lateral (
          select r.task, r.lane
          from rebase.jobs r
          where r.id = i.id and r.fence = k.token
          limit 1
        ) x
        where x.task = p.task and x.lane = p.lane))
      and not exists (select from rebase.paused z where z.task = l.task)
      order by p.task, p.lane, p.run_at, p.id
      limit 1
      for update skip locked
    ) y
    limit 1` + claimTail + `
select * from c`

// idleSQL tells, for each task of $1, whether it has jobs in lanes, whether a job is
// due (and so, after an empty claim, locked by somebody), and how many microseconds
// are left until the next is. A plain subquery is one probe a task; exists() may be hashed
// instead, which reads the index of all tasks.
const idleSQL = `
select l.ord::int,
  coalesce((
    select true from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = l.task and p.lane > ''
    limit 1), false),
  coalesce((
    select true from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.status = 'pending' and p.task = l.task and p.lane = ''
    and p.run_at <= now()
    limit 1), (
    select true from rebase.jobs p
    where p.finished_at is null and p.crashes <> 0 and p.status = 'pending' and p.task = l.task
    and p.run_at <= now()
    limit 1), false),
  (extract(epoch from least((
    select p.run_at from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.status = 'pending' and p.task = l.task and p.lane = ''
    and p.run_at > now()
    order by p.run_at limit 1
  ), (
    select min(p.run_at) from rebase.jobs p
    where p.finished_at is null and p.crashes <> 0 and p.status = 'pending' and p.task = l.task
    and p.run_at > now()
  )) - clock_timestamp()) * 1000000)::bigint
from unnest($1::text[]) with ordinality l (task, ord)
where not exists (select from rebase.paused z where z.task = l.task)`

// lanedSQL is the part of idleSQL that is cheap under a held snapshot too.
const lanedSQL = `
select l.ord::int
from unnest($1::text[]) with ordinality l (task, ord)
cross join lateral (
  select
  from rebase.jobs p
  where p.finished_at is null and p.crashes = 0 and p.task = l.task and p.lane > ''
  limit 1
) p`

// idleLanesSQL is the same for the lanes of one task, from $2 on, at most $3 of them. A job that
// is due in spite of an empty claim is locked by somebody, or its lane is at its limit.
const idleLanesSQL = `
with recursive found (lane, n) as (
  select (
    select p.lane from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = $1::text and p.lane >= $2::text
    order by p.lane limit 1), 1
  union all
  select (
    select p.lane from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = $1::text and p.lane > f.lane
    order by p.lane limit 1), f.n + 1
  from found f
  where f.lane is not null and f.n < $3::int
)
select (extract(epoch from min(coalesce(l.run_at, d.run_at)) filter (where coalesce(l.run_at, d.run_at) > now()) - clock_timestamp()) * 1000000)::bigint,
  coalesce(bool_or(d.run_at <= now()), false)
from found f
cross join lateral (
  select p.run_at
  from rebase.jobs p
  where p.finished_at is null and p.crashes = 0 and p.status = 'pending' and p.task = $1::text and p.lane = f.lane
  order by p.run_at limit 1
) d
left join lateral (
  select p.run_at
  from rebase.jobs p
  where p.finished_at is null and p.crashes = 0 and p.status = 'pending' and p.task = $1::text and p.lane = f.lane
  and d.run_at <= now() and p.run_at > now()
  order by p.run_at limit 1
) l on true
where f.lane is not null
and not exists (select from rebase.paused z where z.task = $1::text)`

// A batch is one claim statement and what it brought.
type batch struct {
	token  int64
	ahead  bool
	wanted int
	claim  *claim
	lanes  []*lane    // asked for by name, with what was wanted of each
	wants  []int32    //
	laned  *taskState // or: the task whose lanes were scanned
	ids    int        // or: how many jobs were asked for by id
	reaped bool       // or: one that was reaped

	from     string // where the scan began
	lastLane string // of the scan
	seen     int    // lanes in the scan
	asked    int    // lanes that the scan was to visit
	broken   []error
}

// newToken draws a fence: positive, and not to be met again.
func newToken() int64 { return rand.Int64N(1<<63-1) + 1 }

// statement makes the claim statement; args are its own parameters, from $5 on.
func (e *engine) claimStatement(b *batch, sql string, args ...any) statement {
	b.token = newToken()
	b.claim = &claim{token: b.token}
	all := append([]any{b.token, e.id, interval(e.w.opts.VisibilityTimeout), !b.ahead}, args...)
	return statement{sql: sql, args: all, rows: func(rows pgx.Rows) error { return e.readBatch(rows, b) }}
}
