package rebase_test

// Only the database's clock decides when (J22, Q47). Triggers compare, to the microsecond,
// every time that is written with the time of the statement that writes it, as the server
// has it: a time of the host's could not pass, whether the hosts' clocks agree or not.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// clockSQL raises for a time that is neither kept nor the server's. A job's payload says
// which delays it may get.
const clockSQL = `
create function public.ours(t timestamptz, variadic delays interval[]) returns boolean language sql as
	'select t is null or exists (select from unnest(delays || interval ''0'') d where t in (now() + d, statement_timestamp() + d))';
create function clock() returns trigger language plpgsql as $$
declare told interval := coalesce(new.payload ->> 'delay', '0');
begin
	if tg_op = 'INSERT' and (new.created_at <> statement_timestamp() or new.updated_at <> statement_timestamp() or new.run_at <> statement_timestamp() + told) then
		raise 'a foreign clock: created_at %, updated_at %, run_at %, statement %', new.created_at, new.updated_at, new.run_at, statement_timestamp();
	elsif tg_op = 'UPDATE' and not (
			(new.created_at = old.created_at)
		and (new.updated_at = old.updated_at or public.ours(new.updated_at, '0'))
		and (new.run_at = old.run_at or public.ours(new.run_at, told, '1 h', '2 h'))
		and (new.started_at is not distinct from old.started_at or public.ours(new.started_at, '0'))
		and (new.finished_at is not distinct from old.finished_at or public.ours(new.finished_at, '0'))
		and (new.locked_until is not distinct from old.locked_until or new.locked_until = now() + interval '7 min')) then
		raise 'a foreign clock: % to %, now %', old, new, now();
	end if;
	return new;
end $$;
create trigger clock before insert or update on rebase.jobs for each row execute function clock();
create function claim_clock() returns trigger language plpgsql as $$ begin
	if new.locked_until <> now() + interval '7 min' or new.lease <> '7 min' then raise 'a foreign clock: %', new; end if;
	return new;
end $$;
create trigger clock before insert or update on rebase.claims for each row execute function claim_clock();
create function worker_clock() returns trigger language plpgsql as $$ begin
	if not public.ours(new.seen_at, '0') or tg_op = 'INSERT' and not public.ours(new.started_at, '0') then raise 'a foreign clock: %', new; end if;
	return new;
end $$;
create trigger clock before insert or update on rebase.workers for each row execute function worker_clock()`

// told makes a payload that tells the trigger its delay.
func told(delay string) map[string]string { return map[string]string{"delay": delay} }

// J22, Q47: enqueues of every kind, operations, claims and results.
func TestQ47EveryTimeInTheTableIsTheServersToTheMicrosecond(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(clockSQL, pgx.QueryExecModeSimpleProtocol)
	_, err := d.pool.Exec(t.Context(), `insert into rebase.jobs (task, run_at) values ('t', clock_timestamp())`)
	require.ErrorContains(t, err, "a foreign clock", "the trigger finds what is a millisecond off")
	ctx := t.Context()
	hour := &rebase.EnqueueOptions{Delay: time.Hour}
	for _, task := range []string{"ok", "fail", "retry after", "snooze", "dead", "cancel", "tx"} {
		_, err := d.q.Enqueue(ctx, task, told("0"), nil)
		require.NoError(t, err)
	}
	later, err := d.q.EnqueueMany(ctx, []rebase.Item{{Task: "later", Payload: told("1 h"), Options: hour}, {Task: "later", Payload: told("0")}})
	require.NoError(t, err)
	tx := d.begin(pgx.TxOptions{})
	_, err = tx.Exec(ctx, `select pg_sleep(0.01)`)
	require.NoError(t, err)
	_, err = d.q.EnqueueTx(ctx, tx, "later", told("1 h"), hour)
	require.NoError(t, err)
	require.NoError(t, d.q.CancelTx(ctx, tx, later[1].ID, ""))
	require.NoError(t, tx.Commit(ctx))
	d.exec(`select rebase.enqueue('later', '{"delay": "3 h"}', delay => '3 h')`)
	d.exec(`select rebase.enqueue_many('[{"task": "later", "payload": {"delay": "3 h"}, "delay": "3 h"}, {"task": "later"}]')`)

	// A slot for each: the start of a job that was claimed ahead is reckoned back from its end.
	w := rebase.NewWorker(d.q, &rebase.WorkerOptions{Concurrency: 10, VisibilityTimeout: 7 * time.Minute, Backoff: func(int) time.Duration { return time.Hour }})
	for task, end := range map[string]error{"ok": nil, "fail": errors.New("x"), "retry after": rebase.RetryAfter(2*time.Hour, errors.New("x")),
		"snooze": rebase.Snooze(2 * time.Hour), "dead": rebase.Permanent(errors.New("x")), "cancel": rebase.ErrCancelled} {
		w.Register(task, func(context.Context, *rebase.Job) error { return end }, nil)
	}
	w.Register("tx", func(ctx context.Context, job *rebase.Job) error {
		return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
	}, nil)
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := w.RunOnce(short)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	require.Equal(t, []string{"cancelled", "failed", "pending", "succeeded"}, list[string](d, `select distinct status from rebase.jobs where task <> 'later' order by 1`))

	dead := tell[int64](d, `select id from rebase.jobs where task = 'dead'`)
	require.NoError(t, d.q.Retry(ctx, dead))
	require.NoError(t, d.q.Cancel(ctx, dead, ""))
	d.exec(`update rebase.jobs set status = 'failed', dead = true where task = 'cancel'`)
	redriven, err := d.q.Redrive(ctx, rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, redriven)
}

// J22: what a duration of the program becomes is reckoned by the server: the delay of the
// row is the option to the microsecond, small or large.
func TestJ22DelaysAreExact(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, delay := range []time.Duration{time.Microsecond, 999 * time.Millisecond, 36*time.Hour + time.Microsecond, 10 * 365 * 24 * time.Hour} {
		for _, n := range []int{1, 2} {
			done, err := d.q.EnqueueMany(t.Context(), []rebase.Item{{Task: "t", Options: &rebase.EnqueueOptions{Delay: delay}}, {Task: "t"}}[:n])
			require.NoError(t, err)
			require.Equal(t, delay.Microseconds(), tell[int64](d, `select (extract(epoch from run_at - created_at) * 1000000)::bigint from rebase.jobs where id = $1`, done[0].ID))
		}
	}
}
