-- +goose Up
-- Functions for transactions that are not rebase's own: triggers, other languages, the
-- caller's search_path. Their bodies are parsed here and now, so whatever a session's
-- search_path says, they mean what they say.

-- +goose StatementBegin
-- Returns the payload, unless no worker could serve the task or read the row again: what Queue.Enqueue
-- would refuse. jsonb stores 1e131071 in ten bytes and prints it as 131,072, so the caps, those of
-- Go by default, hold for what comes back.
create function rebase.checked(task text, lane text, max_attempts integer, payload jsonb, meta jsonb) returns jsonb
  language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
begin
  if octet_length(task) not between 1 and 255 then
    raise exception 'task: it has % bytes, and must have 1 to 255', octet_length(task)
      using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(lane) > 255 then
    raise exception 'lane: it has % bytes, and may have 255', octet_length(lane)
      using errcode = 'invalid_parameter_value';
  end if;
  if max_attempts < 1 then
    raise exception 'max_attempts: it is %, and must be at least 1', max_attempts
      using errcode = 'invalid_parameter_value';
  end if;
  if task collate "C" ~ '[\u0001-\u001f\u007f]' or getdatabaseencoding() = 'UTF8' and task collate "C" ~ '[\u0080-\u009f]' then
    raise exception 'task: it has a control character'
      using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(payload::text) > 1048576 then
    raise exception 'payload: it has more than 1 MiB as PostgreSQL prints it, with blanks behind commas and colons and numbers written out'
      using errcode = 'program_limit_exceeded';
  end if;
  if jsonb_typeof(meta) <> 'object' then
    raise exception 'meta: it is no object, but of type %', jsonb_typeof(meta)
      using errcode = 'invalid_parameter_value';
  end if;
  if exists (select from jsonb_each(meta) e where jsonb_typeof(e.value) <> 'string') then
    raise exception 'meta: its values must be strings'
      using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(meta::text) > 16384 then
    raise exception 'meta: it has more than 16 KiB'
      using errcode = 'program_limit_exceeded';
  end if;
  return payload;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Makes a job and returns its id, or null if an unfinished job of the task has the key.
-- It runs with its owner's rights, so that a role can be allowed to enqueue and nothing
-- else; nobody but the owner may call it until it is granted.
create function rebase.enqueue(
  task            text,
  payload         jsonb default 'null',
  run_at          timestamptz default null,
  delay           interval default '0',
  max_attempts    integer default 3,
  idempotency_key text default null,
  lane            text default '',
  meta            jsonb default null
) returns bigint
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
begin atomic
  with made as (
    insert into rebase.jobs as j (task, lane, payload, meta, run_at, max_attempts, idempotency_key, key_hash)
    values (enqueue.task, coalesce(enqueue.lane, ''), rebase.checked(enqueue.task, enqueue.lane, enqueue.max_attempts, coalesce(enqueue.payload, 'null'), enqueue.meta), enqueue.meta,
      coalesce(enqueue.run_at, statement_timestamp() + coalesce(enqueue.delay, '0')), coalesce(enqueue.max_attempts, 3),
      nullif(enqueue.idempotency_key, ''), substring(sha256(convert_to(nullif(enqueue.idempotency_key, ''), 'UTF8')) from 1 for 16))
    on conflict (task, key_hash) where finished_at is null and key_hash is not null do nothing
    returning j.id, j.task
  )
  select m.id from (select made.id, rebase.wake(made.task, 0) as asked from made) m;
end;
-- +goose StatementEnd

-- +goose StatementBegin
-- Makes many jobs with one statement, from a JSON array of objects with the names of
-- enqueue's parameters. It returns a row for each, in their order: its id, null for a
-- duplicate.
create function rebase.enqueue_many(jobs jsonb) returns table (ord bigint, id bigint)
  language sql volatile security definer
  set search_path = pg_catalog, pg_temp
begin atomic
  with item as materialized (
    select nextval('rebase.jobs_id_seq'::regclass) as new_id, a.ord, o.*,
      substring(sha256(convert_to(nullif(o.idempotency_key, ''), 'UTF8')) from 1 for 16) as hash
    from jsonb_array_elements(enqueue_many.jobs) with ordinality a (value, ord)
    cross join lateral jsonb_to_record(a.value) as o (
      task text, payload jsonb, run_at timestamptz, delay interval, max_attempts integer, idempotency_key text, lane text, meta jsonb)
  ), made as (
    insert into rebase.jobs as j (id, task, lane, payload, meta, run_at, max_attempts, idempotency_key, key_hash)
    select i.new_id, i.task, coalesce(i.lane, ''), rebase.checked(i.task, i.lane, i.max_attempts, coalesce(i.payload, 'null'), i.meta), i.meta,
      coalesce(i.run_at, statement_timestamp() + coalesce(i.delay, '0')), coalesce(i.max_attempts, 3), nullif(i.idempotency_key, ''), i.hash
    from item i
    order by i.task collate "C", i.hash, i.ord
    on conflict (task, key_hash) where finished_at is null and key_hash is not null do nothing
    returning j.id, j.task
  ), asked as materialized (
    select rebase.wake(t.task, 0) as answer from (select made.task from made group by made.task) t
  )
  select i.ord, made.id
  from item i
  left join made on made.id = i.new_id
  where (select count(asked.answer) from asked) >= 0
  order by i.ord;
end;
-- +goose StatementEnd

revoke all on function rebase.enqueue(text, jsonb, timestamptz, interval, integer, text, text, jsonb) from public;
revoke all on function rebase.enqueue_many(jsonb) from public;

-- +goose StatementBegin
-- Ends a job that has not ended, taking it from whoever has it. A worker that runs it is
-- told by a notification that no gate holds back, since it may be awake. mode: as in
-- rebase.wake. It returns the status found, null for no job, and whether it was changed.
create function rebase.cancel(job bigint, reason text default '', mode integer default 0)
  returns table (found text, done boolean)
  language sql volatile
begin atomic
  with old as (
    select j.id, j.status, j.finished_at
    from rebase.jobs j
    where j.id = cancel.job
    for no key update
  ), changed as (
    update rebase.jobs j
    set status = 'cancelled', fence = 0, finished_at = statement_timestamp(), updated_at = statement_timestamp(), locked_until = null,
      last_error = coalesce(nullif(left(cancel.reason, 4000), ''), j.last_error),
      history = (case when jsonb_array_length(j.history) >= 20 then j.history - 0 else coalesce(j.history, '[]') end) ||
        jsonb_build_object('attempt', j.attempts, 'run', j.runs, 'started_at', j.started_at, 'ended_at', statement_timestamp(),
          'worker', j.locked_by, 'outcome', 'cancelled', 'error', left(cancel.reason, 500))
    from old
    where j.id = old.id and old.finished_at is null
    returning j.id
  )
  select f.status, f.done
  from (
    select old.status, c.id is not null as done,
      case when old.status = 'running' and c.id is not null and cancel.mode <> 2
        then pg_notify('rebase_jobs', 'c:' || old.id) end as told
    from old left join changed c on c.id = old.id
  ) f;
end;
-- +goose StatementEnd

-- It has its caller's rights. As for wake, default privileges must not decide.
grant execute on function rebase.cancel(bigint, text, integer) to public;

insert into rebase.migrations (version, min_reader) values (2, 1);
