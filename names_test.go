package rebase_test

// Q48: what a session is set to means nothing to the library. The database of these tests
// has a schema of decoys before pg_catalog in its search_path: tables, types, and a function
// and an operator for everything that the library's statements use, all of which raise when
// they are called. Its texts and times are written in unusual ways, too.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// decoyFunctionsSQL makes a function in "evil" for each of pg_catalog with one of the names
// $1; decoyOperatorsSQL makes all operators on the types that the table has.
const (
	decoyFunctionsSQL = `
do $do$
declare f record;
begin
  for f in
    select p.proname, p.pronargs, pg_get_function_identity_arguments(p.oid) as args, p.prorettype::regtype as result, p.proretset
    from pg_catalog.pg_proc p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any(string_to_array(current_setting('decoy.names'), ','))
    and p.prokind in ('f', 'a') and p.provariadic = 0 and pg_get_function_identity_arguments(p.oid) !~ 'internal|ORDER BY|OUT|"any"'
    and p.prorettype not in ('internal'::regtype, 'trigger'::regtype, 'record'::regtype)
  loop
    execute format('create function evil.%I(%s) returns %s %s language plpgsql as $f$ begin raise exception using message = ''decoy %s''; end $f$',
      f.proname, f.args, case when f.proretset then 'setof ' else '' end, f.result, f.proname);
  end loop;
end $do$`

	decoyOperatorsSQL = `
do $do$
declare o record;
begin
  for o in
    select oprname, oprleft::regtype as l, oprright::regtype as r, oprresult::regtype as result, row_number() over () as n
    from pg_catalog.pg_operator
    where oprleft = any($t${int2,int4,int8,text,bool,bytea,jsonb,timestamptz,interval,oid,float8,numeric,anyarray,anynonarray}$t$::regtype[])
    and oprright = any($t${int2,int4,int8,text,bool,bytea,jsonb,timestamptz,interval,oid,float8,numeric,anyarray,anynonarray}$t$::regtype[])
  loop
    execute format('create function evil.op%s(%s, %s) returns %s language plpgsql as $f$ begin raise exception using message = ''decoy operator %s''; end $f$',
      o.n, o.l, o.r, o.result, o.oprname);
    execute format('create operator evil.%s (leftarg = %s, rightarg = %s, function = evil.op%s)', o.oprname, o.l, o.r, o.n);
  end loop;
end $do$`
)

// calledNames are all names in the library's sources that a parenthesis follows: a superset
// of the functions that its statements call.
func calledNames(t *testing.T) string {
	t.Helper()
	var names []string
	call := regexp.MustCompile(`\b([a-z][a-z0-9_]+)\(`)
	for _, pattern := range []string{"*.go", "migrations/*.sql"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, match := range call.FindAllSubmatch(source, -1) {
				names = append(names, string(match[1]))
			}
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// decoyTypes makes types that are called like PostgreSQL's and are something else.
func decoyTypes(schema string) string {
	var b strings.Builder
	for _, name := range []string{"text", "int2", "int4", "int8", "bool", "jsonb", "timestamptz", "interval", "bytea", "float8", "regclass", "name", "oid"} {
		fmt.Fprintf(&b, "create domain %s.%s as pg_catalog.point;", schema, name)
	}
	return b.String()
}

// hostile prepares the desk's database and returns a pool on it whose sessions have the
// settings. temporary adds decoys in each session's pg_temp, which comes first unless it is
// named.
func (d *desk) hostile(mode pgx.QueryExecMode, temporary bool, settings ...string) *pgxpool.Pool {
	t, pool := d.t, d.pool
	t.Helper()
	d.exec(`create schema evil`)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Conn().PgConn().Exec(t.Context(), `select set_config('decoy.names', '`+calledNames(t)+`', true);`+decoyFunctionsSQL+`;`+decoyOperatorsSQL).ReadAll()
		return err
	}))
	for _, name := range []string{"jobs", "claims", "workers", "paused", "migrations", "schedules", "item", "made", "u", "c", "w"} {
		d.exec(`create table evil.` + name + ` (decoy int)`)
	}
	d.exec(decoyTypes("evil"), pgx.QueryExecModeSimpleProtocol)
	require.Greater(t, tell[int](d, `select count(*) from pg_proc where pronamespace = 'evil'::regnamespace`), 300)

	cfg := pool.Config()
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.ConnConfig.RuntimeParams["search_path"] = "evil, pg_catalog"
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	if temporary {
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.PgConn().Exec(ctx, decoyTypes("pg_temp")+`create temporary table jobs (decoy pg_catalog.int4)`).ReadAll()
			return err
		}
	}
	evil, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(evil.Close)
	var now any
	require.Error(t, evil.QueryRow(t.Context(), `select now()`).Scan(&now), "the decoys are in force")
	require.Error(t, evil.QueryRow(t.Context(), `select 1 = 1`).Scan(&now))
	return evil
}

var odd = []string{"datestyle=German, DMY", "timezone=Asia/Kathmandu", "intervalstyle=sql_standard", "bytea_output=escape", "extra_float_digits=-15",
	"transform_null_equals=on", "default_transaction_isolation=serializable", "check_function_bodies=off", "xmloption=document"}

// Q48, Q40: every function of a Queue, and a worker, in every exec mode.
func TestQ48HostileSessionsHaveNoEffect(t *testing.T) {
	t.Parallel()
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for _, mode := range modes {
		for _, temporary := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, temporary %v", mode, temporary), func(t *testing.T) {
				t.Parallel()
				settings := odd
				if mode != pgx.QueryExecModeSimpleProtocol { // pgx refuses that mode without it
					settings = append(slices.Clone(odd), "standard_conforming_strings=off", "backslash_quote=off", "escape_string_warning=off")
				}
				everyFunction(t, newDesk(t).hostile(mode, temporary, settings...))
			})
		}
	}
}

// Q48: the schema that a hostile session makes is the same, so its functions and defaults
// are bound to what they mean.
func TestQ48TheSchemaMadeByAHostileSessionIsTheSame(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	require.NoError(t, deskOn(t, d.hostile(pgx.QueryExecModeCacheStatement, true, odd...), nil).q.Migrate(t.Context()))
	require.Equal(t, newDesk(t).schemaOf(), d.schemaOf())
	require.Zero(t, tell[int](d, `select count(*) from pg_depend where classid <> 'pg_extension'::regclass
		and refobjid in (select oid from pg_proc where pronamespace = 'evil'::regnamespace union all select oid from pg_operator where oprnamespace = 'evil'::regnamespace)
		and objid in (select oid from pg_proc where pronamespace = 'rebase'::regnamespace union all select oid from pg_class where relnamespace = 'rebase'::regnamespace)`))
	d.enqueue("t", nil)
}

// Q48: a worker that runs on, in a hostile session: it listens, falls asleep, is woken,
// reaps and cleans up, and no statement of its own fails.
func TestQ48AWorkerListensAndReapsInAHostileSession(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		d := newDesk(t)
		var log bytes.Buffer
		evil := deskOn(t, d.hostile(mode, true, odd...), &rebase.Options{Logger: slog.New(slog.NewTextHandler(io.MultiWriter(&log, t.Output()), nil))})
		lost := d.enqueue("t", &rebase.EnqueueOptions{IdempotencyKey: "lost"}).ID
		d.claimed(lost)
		d.exec(`update rebase.jobs set locked_until = now() - interval '1 s', started_at = null`)
		d.exec(`update rebase.claims set locked_until = now() - interval '1 s', lease = '1 s'`)
		d.exec(`insert into rebase.jobs (task, status, finished_at) values ('old', 'succeeded', now() - interval '1 year')`)

		ran := make(chan int64)
		w := rebase.NewWorker(evil.q, &rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second})
		w.Register("t", func(_ context.Context, job *rebase.Job) error { ran <- job.ID; return nil }, nil)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		require.Equal(t, lost, receive(t, ran))
		require.Eventually(t, func() bool { return d.advisoryLocks() > 0 }, patience, 10*time.Millisecond, "it falls asleep")
		require.Equal(t, d.enqueue("t", nil).ID, receive(t, ran))
		require.Eventually(t, func() bool {
			return tell[bool](d, `select count(*) = 2 and bool_and(status = 'succeeded' and task = 't') from rebase.jobs`)
		}, patience, 10*time.Millisecond, "results are written, and what is old is gone")
		stop()
		require.NoError(t, receive(t, done))
		require.NotContains(t, log.String(), "error=")
	}
}

// receive takes what comes from the channel, in time.
func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		require.Fail(t, "nothing came")
	}
	return v
}

// Q40: the same in every exec mode where nothing is hostile.
func TestQ40EveryExecModeWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			everyFunction(t, pgtest.NewWith(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }))
		})
	}
}

// everyFunction calls what a Queue has, and works, on a pool.
func everyFunction(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	q := deskOn(t, pool, nil).q
	ctx := t.Context()
	require.NoError(t, q.Check(ctx))
	require.NoError(t, q.Migrate(ctx))

	at := time.Date(2001, 2, 3, 4, 5, 6, 789012000, time.UTC)
	full := &rebase.EnqueueOptions{RunAt: at, IdempotencyKey: `k\'"`, Lane: `l\`, MaxAttempts: 4, Meta: map[string]string{`m\`: `{"'\`}}
	payload := map[string]string{"text": `NULL, "quoted" {braces} \back\slash 'single' ünï`}
	one, err := q.Enqueue(ctx, "t", payload, full)
	require.NoError(t, err)
	again, err := q.Enqueue(ctx, "t", payload, full)
	require.NoError(t, err)
	require.Equal(t, rebase.Enqueued{ID: one.ID, Duplicate: true}, again)
	many, err := q.EnqueueMany(ctx, []rebase.Item{{Task: "t", Payload: payload, Options: full}, {Task: "u"}, {Task: "v", Payload: "NULL", Options: &rebase.EnqueueOptions{IdempotencyKey: "NULL"}}})
	require.NoError(t, err)
	require.Equal(t, again, many[0])
	require.False(t, many[1].Duplicate)
	ids := []int64{one.ID, many[1].ID, many[2].ID}
	ids = append(ids, inTransactions(t, q, pool, one.ID)...)

	job, err := q.Job(ctx, one.ID)
	require.NoError(t, err)
	require.Equal(t, []any{full.IdempotencyKey, full.Lane, 4, full.Meta, at}, []any{job.IdempotencyKey, job.Lane, job.MaxAttempts, job.Meta, job.RunAt})
	require.JSONEq(t, `{"text": "NULL, \"quoted\" {braces} \\back\\slash 'single' ünï"}`, string(job.Payload))
	bare, err := q.Job(ctx, many[1].ID)
	require.NoError(t, err)
	require.Equal(t, []any{"", "", map[string]string(nil), "null"}, []any{bare.IdempotencyKey, bare.Lane, bare.Meta, string(bare.Payload)})
	require.ElementsMatch(t, ids, listed(t, q, rebase.Filter{}))
	require.Equal(t, []int64{one.ID}, listed(t, q, rebase.Filter{Status: rebase.StatusPending, Task: "t", Lane: full.Lane, IdempotencyKey: full.IdempotencyKey,
		Meta: full.Meta, CreatedAfter: at, CreatedBefore: time.Now().AddDate(1, 0, 0)}))

	require.NoError(t, q.PauseTask(ctx, "u"))
	work(t, q, pool, one.ID)
	require.NoError(t, q.ResumeTask(ctx, "u"))
	require.NoError(t, q.Cancel(ctx, many[1].ID, `why\`))
	stateErr := q.Cancel(ctx, one.ID, "")
	_, ok := errors.AsType[*rebase.StateError](stateErr)
	require.True(t, ok, "%v", stateErr)
	require.Equal(t, []int64{many[1].ID}, listed(t, q, rebase.Filter{Status: rebase.StatusCancelled, ErrorContains: `why\`}))
	require.NoError(t, q.Retry(ctx, many[1].ID))
	require.NoError(t, q.Delete(ctx, many[1].ID))
	n, err := q.Redrive(ctx, rebase.Filter{Task: "v"}, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = q.Redrive(ctx, rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = q.Stats(ctx)
	require.NoError(t, err)
	_, err = q.Explain(ctx, one.ID)
	require.NoError(t, err)
	schedules(t, q)
}

// schedules calls what a Queue has for them.
func schedules(t *testing.T, q *rebase.Queue) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, q.SetSchedule(ctx, rebase.Schedule{ID: `s\'`, Cron: "0 3 * * *", Zone: "Europe/Berlin", Task: "nightly", Payload: "NULL", Lane: "l", Meta: map[string]string{`m\`: "'"}}))
	require.NoError(t, q.FireSchedule(ctx, `s\'`))
	require.Len(t, listed(t, q, rebase.Filter{Task: "nightly"}), 1)
	require.NoError(t, q.PauseSchedule(ctx, `s\'`))
	require.NoError(t, q.ResumeSchedule(ctx, `s\'`))
	for s, err := range q.Schedules(ctx) {
		require.NoError(t, err)
		require.Equal(t, `s\'`, s.ID)
		require.True(t, s.NextRunAt.After(time.Now()))
	}
	require.NoError(t, q.DeleteSchedule(ctx, `s\'`))
	require.ErrorIs(t, q.FireSchedule(ctx, `s\'`), rebase.ErrNotFound)
}

// inTransactions enqueues and cancels in transactions of the caller's, and returns the ids.
func inTransactions(t *testing.T, q *rebase.Queue, pool *pgxpool.Pool, taken int64) (ids []int64) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		a, err := q.EnqueueTx(ctx, tx, "u", nil, &rebase.EnqueueOptions{Delay: time.Hour})
		require.NoError(t, err)
		b, err := q.EnqueueManyTx(ctx, tx, []rebase.Item{{Task: "u"}, {Task: "t", Options: keyed(`k\'"`)}})
		require.NoError(t, err)
		require.Equal(t, rebase.Enqueued{ID: taken, Duplicate: true}, b[1])
		require.NoError(t, q.CancelTx(ctx, tx, b[0].ID, `in\tx`))
		var c int64
		require.NoError(t, tx.QueryRow(ctx, `select rebase.enqueue('dead', '{"a": 1}')`).Scan(&c))
		var n, d int64
		require.NoError(t, tx.QueryRow(ctx, `select ord, id from rebase.enqueue_many('[{"task": "later", "delay": "1 h"}]')`).Scan(&n, &d))
		ids = []int64{a.ID, b[0].ID, c, d}
		return nil
	}))
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	e, err := q.EnqueueSQL(ctx, tx, "sql", nil, keyed("k"))
	require.NoError(t, err)
	again, err := q.EnqueueSQL(ctx, tx, "sql", nil, keyed("k"))
	require.NoError(t, err)
	require.Equal(t, rebase.Enqueued{ID: e.ID, Duplicate: true}, again)
	require.NoError(t, tx.Commit())
	return append(ids, e.ID)
}

func listed(t *testing.T, q *rebase.Queue, f rebase.Filter) (ids []int64) {
	t.Helper()
	for job, err := range q.Jobs(t.Context(), f) {
		require.NoError(t, err)
		ids = append(ids, job.ID)
	}
	return ids
}

// work takes jobs to every end: success, in the handler's transaction and without,
// failure, a dead letter, a snooze.
func work(t *testing.T, q *rebase.Queue, pool *pgxpool.Pool, first int64) {
	t.Helper()
	w := rebase.NewWorker(q, &rebase.WorkerOptions{Backoff: func(int) time.Duration { return time.Hour }})
	w.Register("t", func(ctx context.Context, job *rebase.Job) error {
		require.Equal(t, first, job.ID)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
	}, nil)
	w.Register("u", func(context.Context, *rebase.Job) error { panic("u is paused") }, nil)
	w.Register("v", func(context.Context, *rebase.Job) error { return rebase.Permanent(errors.New(`dead\ 'v'`)) }, nil)
	w.Register("dead", func(context.Context, *rebase.Job) error { return rebase.Permanent(errors.New("dead")) }, nil)
	w.Register("sql", func(_ context.Context, job *rebase.Job) error {
		if job.Attempts == 1 && job.Runs == 1 {
			return rebase.Snooze(0)
		}
		return nil
	}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := w.RunOnce(ctx)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	for task, want := range map[string]rebase.Status{"t": rebase.StatusSucceeded, "v": rebase.StatusFailed, "sql": rebase.StatusSucceeded} {
		require.Len(t, listed(t, q, rebase.Filter{Task: task, Status: want}), 1, task)
	}
}
