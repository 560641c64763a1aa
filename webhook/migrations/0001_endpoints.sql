-- The endpoints of webhook.PGStore. It needs no other table of rebase's.
create schema if not exists rebase;

create table rebase.webhook_migrations (
  version    integer primary key,
  applied_at timestamptz not null default statement_timestamp()
);

create table rebase.webhook_endpoints (
  id              text primary key check (octet_length(id) between 1 and 255),
  -- URL, secrets and headers together: any of them may be a token.
  sealed          bytea not null,
  -- Scheme and host, for operators. Nothing is sent by it.
  target          text not null,
  disabled_at     timestamptz,
  disabled_reason text,
  created_at      timestamptz not null default statement_timestamp(),
  updated_at      timestamptz not null default statement_timestamp()
);

insert into rebase.webhook_migrations (version) values (1);
