//go:build unix

// Faults of the schema that the harness plants itself, to prove that the checker finds
// them. Those of the library's code are built in; see proof.go.

package main

import (
	"context"
	"fmt"
)

// plants are what -plant takes.
var plants = map[string]string{
	// Whoever makes a row pending tells nobody.
	"notify": `
create or replace function rebase.wake(task text, mode integer) returns text
  language sql volatile
  return null::text`,
	// The unique index of keys never finds a conflict.
	"key": `
create function torture.spoil() returns trigger
  language plpgsql as $$
begin
  if new.key_hash is not null then
    new.key_hash := sha256(random()::text::bytea);
  end if;
  return new;
end $$;
create trigger torture_spoil before insert on rebase.jobs for each row execute function torture.spoil()`,
}

// plantOwn plants what the plan asks for.
func (r *run) plantOwn(ctx context.Context) error {
	if r.Plant == "" {
		return nil
	}
	sql, ok := plants[r.Plant]
	if !ok {
		return fmt.Errorf("plant %q: there is none of that name", r.Plant)
	}
	if _, err := r.direct.Exec(ctx, sql); err != nil {
		return fmt.Errorf("plant %q: %w", r.Plant, err)
	}
	return nil
}
