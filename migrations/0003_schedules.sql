-- +goose Up
-- Schedules. A row says what is to be fired and when next; which slots have fired is kept
-- apart, so that none fires twice even when its job is gone or the clock was set back.
create table rebase.schedules (
  id              text collate "C" primary key,
  task            text collate "C" not null,
  cron            text not null,
  zone            text not null,
  -- When to fire next: the slot, and that plus the schedule's offset within its window.
  next_slot       timestamptz,
  next_run_at     timestamptz,
  last_slot       timestamptz,
  lane            text collate "C" not null default '',
  payload         jsonb not null default 'null',
  meta            jsonb,
  max_attempts    integer not null default 3,
  run_offset      interval not null default '0',
  spread          interval not null default '0',
  catch_up        integer not null default 1,
  no_overlap      boolean not null default false,
  paused          boolean not null default false,
  missed          bigint not null default 0,
  error           text,
  -- Declared by code: fired only by workers whose code declares it.
  declared        boolean not null default false,
  declared_by     text,
  -- Changes with every edit, so that a firing computed from an older one does nothing.
  version         bigint not null default 1,
  -- How far ahead next_run_at was when it was computed: if it is much further away, the
  -- clock was set back.
  ahead           interval not null default '0',
  last_job        bigint,
  created_at      timestamptz not null default statement_timestamp(),
  updated_at      timestamptz not null default statement_timestamp(),
  constraint schedules_names check (octet_length(id) between 1 and 200 and octet_length(task) between 1 and 255 and octet_length(lane) <= 255),
  constraint schedules_attempts check (max_attempts >= 1),
  constraint schedules_times check (isfinite(next_slot) and isfinite(next_run_at))
) with (fillfactor = 70);

create index schedules_next on rebase.schedules (next_run_at) where not paused and error is null;

create table rebase.schedule_slots (
  schedule_id text collate "C",
  slot        timestamptz,
  fired_at    timestamptz not null default statement_timestamp(),
  primary key (schedule_id, slot)
);

-- For pruning.
create index schedule_slots_fired on rebase.schedule_slots (fired_at);

insert into rebase.migrations (version, min_reader) values (3, 1);
