package main

// Copies of the statements of a worker's rounds, from claim.go, result.go, conn.go and job.go
// of the root package. A test compares them with those sources; after a change there,
//
//	go test ./bench -run Statements -update
//
// writes this file anew.

const claimSQL = `
with nothing as (select)
, c as (
  update rebase.jobs j
  set status = 'running', fence = $1::bigint, attempts = least(j.attempts, 2147483646) + 1, runs = least(j.runs, 2147483646) + 1, locked_by = $2::text,
    locked_until = now() + $3::interval, started_at = case when $4::boolean then now() end, updated_at = now()
  where j.ctid = any(array(
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
    limit $10))
  returning j.id, j.fence, j.task, j.lane, j.payload, j.meta, j.status, j.run_at, j.attempts, j.max_attempts, j.runs,
 j.crashes, j.setbacks, j.idempotency_key, j.locked_by, j.locked_until, j.started_at, j.finished_at, j.last_error,
 j.history, j.slot, j.slot_zone, j.created_at, j.updated_at
), ledger as (

  insert into rebase.claims (token, locked_until, lease, worker, ids)
  select $1::bigint, now() + $3::interval, $3::interval, $2::text, array_agg(c.id)
  from c
  having count(*) > 0
)
select * from c`

const succeedSQL = `
with w as (
  update rebase.jobs j
  set status = 'succeeded', fence = -j.fence, finished_at = now(), updated_at = now(), locked_until = null,
    started_at = coalesce(j.started_at, now() - $3::interval), crashes = 0, setbacks = 0
  where j.ctid = any(array(
    select x.ctid
    from rows from (unnest($1::bigint[]), unnest($2::bigint[])) as u (id, fence)
    cross join lateral (
      select p.ctid
      from rebase.jobs p
      where p.id = u.id and p.fence = u.fence
      limit 1
      for no key update skip locked
    ) x
  ))
  returning j.id
)
select w.id from w`

const overSQL = `
delete from rebase.claims k
where k.ctid = any(array(
  select c.ctid
  from rebase.claims c
  where c.token = any($1::bigint[])
  and (pg_postmaster_start_time() = $2::timestamptz or not exists (
    select
    from unnest(c.ids) i (id)
    cross join lateral (
      select
      from rebase.jobs p
      where p.id = i.id and p.fence = c.token
      limit 1
    ) j
  ))
  for update skip locked
))`

const beginSQL = `begin isolation level read committed read write`

const settingsSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
  pg_catalog.set_config('client_encoding', 'UTF8', true),
  pg_catalog.set_config('datestyle', 'ISO', true),
  pg_catalog.set_config('timezone', 'UTC', true),
  pg_catalog.set_config('intervalstyle', 'postgres', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('enable_seqscan', 'off', true),
  pg_catalog.set_config('enable_bitmapscan', 'off', true),
  pg_catalog.set_config('enable_hashjoin', 'off', true),
  pg_catalog.set_config('enable_mergejoin', 'off', true),
  pg_catalog.set_config('enable_indexscan', 'on', true),
  pg_catalog.set_config('enable_tidscan', 'on', true),
  pg_catalog.set_config('enable_nestloop', 'on', true),
  pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true),
  pg_catalog.set_config('lock_timeout', '200', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', $1::pg_catalog.text, true),
  pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true),
  pg_catalog.pg_postmaster_start_time()`

const commitSQL = `commit`
