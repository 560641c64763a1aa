package rebase_test

// What SECURITY.md says of texts: they are data. Whatever goes in comes out again or is refused
// by a typed error, and changes nothing beside its own row, because no SQL is made from it; and
// what a row or an error says stays inside the one record of the log that it belongs to.

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
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

// hostileTexts break out of quotes, casts, arrays, patterns and placeholders, where they can.
var hostileTexts = []string{
	`'; drop table rebase.jobs; --`, `' or '1'='1`, `\'; drop schema rebase cascade; --`, `\`, `'`, `''`, `"`, `"}'; delete from rebase.jobs; --`,
	`$1`, `$13`, `$$; create role hacked; $$`, `$q$`, `:name`, `@name`, `?`, `%`, `_`, `%' or task like '%`, `*/ delete from rebase.jobs; /*`, `--`,
	`E'\x27'`, `U&'\0027'`, "\u2019; drop table rebase.jobs", "\uff07; drop table rebase.jobs", `{}`, `{NULL,"a"}`, `NULL`, `null`, `a,b`, `(1,2)`,
	`'::regclass`, `${jndi:ldap://x}`, `%s%n%v`, `{{.}}`, `../../etc/passwd`, "\u202egnp.exe", strings.Repeat(`'`, 200),
}

// fingerprint is all that hostile texts must not change: the schema, its owners and grants, the
// roles that a text would make, and every row that was there before.
func (d *desk) fingerprint(upTo int64) []string {
	d.t.Helper()
	return append(d.schemaOf(),
		tell[string](d, `select coalesce(string_agg(c.relname || c.relowner || coalesce(c.relacl::text, ''), ',' order by c.relname), '') from pg_class c where c.relnamespace = 'rebase'::regnamespace`),
		tell[string](d, `select coalesce(string_agg(p.proname || p.proowner || coalesce(p.proacl::text, ''), ',' order by p.proname), '') from pg_proc p where p.pronamespace = 'rebase'::regnamespace`),
		tell[string](d, `select count(*)::text from pg_roles where rolname = 'hacked'`),
		tell[string](d, `select string_agg(j::text, ',' order by id) from rebase.jobs j where id <= $1`, upTo))
}

// J3, J4, J18, J20, J21, J23: each text through each input, in the modes in which pgx sends
// parameters and in the one in which it writes them into the statement.
func TestJ4HostileTextsAreDataInEveryInput(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d := deskOn(t, pgtest.NewWith(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }), nil)
			d.enqueue("bystander", keyed("k"))
			last := d.enqueue("bystander", &rebase.EnqueueOptions{Lane: "l", Meta: map[string]string{"a": "b"}}).ID
			before := d.fingerprint(last)
			for _, s := range hostileTexts {
				d.enqueues(s)
				d.works(s)
				d.schedulesText(s)
			}
			require.Equal(t, before, d.fingerprint(last))
		})
	}
}

// enqueues puts the text into every field of a job, in every way there is, and finds it again.
func (d *desk) enqueues(s string) {
	t, ctx := d.t, d.t.Context()
	t.Helper()
	options := func(key string) *rebase.EnqueueOptions {
		return &rebase.EnqueueOptions{IdempotencyKey: key, Lane: s, Meta: map[string]string{s: s}, Delay: time.Hour}
	}
	one, err := d.q.Enqueue(ctx, s, s, options(s))
	require.NoError(t, err, s)
	many, err := d.q.EnqueueMany(ctx, []rebase.Item{{Task: s, Payload: s, Options: options(s + "2")}, {Task: s, Payload: s, Options: options(s)}})
	require.NoError(t, err, s)
	require.Equal(t, rebase.Enqueued{ID: one.ID, Duplicate: true}, many[1], s)
	db := stdlib.OpenDBFromPool(d.pool)
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	std, err := d.q.EnqueueSQL(ctx, tx, s, s, options(s+"3"))
	require.NoError(t, err, s)
	require.NoError(t, tx.Commit())
	meta, err := json.Marshal(map[string]string{s: s})
	require.NoError(t, err)
	inSQL := tell[int64](d, `select rebase.enqueue($1, to_jsonb($1::text), lane => $1, idempotency_key => $2, meta => $3, delay => '1 h')`, s, s+"4", string(meta))
	for i, id := range []int64{one.ID, many[0].ID, std.ID, inSQL} {
		job, err := d.q.Job(ctx, id)
		require.NoError(t, err, s)
		var payload string
		require.NoError(t, json.Unmarshal(job.Payload, &payload))
		require.Equal(t, []any{s, s, s, map[string]string{s: s}, s + []string{"", "2", "3", "4"}[i]},
			[]any{job.Task, job.Lane, payload, job.Meta, job.IdempotencyKey})
		require.NoError(t, d.q.Cancel(ctx, id, s))
	}
	f := rebase.Filter{Task: s, Lane: s, IdempotencyKey: s, Meta: map[string]string{s: s}, ErrorContains: s}
	require.Equal(t, []int64{one.ID}, d.listed(f), s)
	for _, err := range d.q.Jobs(ctx, rebase.Filter{Status: rebase.Status(s)}) {
		require.ErrorContains(t, err, "unknown status", s)
	}
}

// works lets a worker of that name run a job of that task, which fails with that error.
func (d *desk) works(s string) {
	t, ctx := d.t, d.t.Context()
	t.Helper()
	id := d.enqueue(s, nil).ID
	require.NoError(t, d.q.PauseTask(ctx, s))
	w := func() int {
		w := rebase.NewWorker(d.q, &rebase.WorkerOptions{Name: s})
		w.Register(s, func(context.Context, *rebase.Job) error { return rebase.Permanent(errors.New(s)) }, nil)
		n, err := w.RunOnce(ctx)
		require.NoError(t, err, s)
		return n
	}
	require.Zero(t, w(), s)
	require.NoError(t, d.q.ResumeTask(ctx, s))
	require.Equal(t, 1, w(), s)
	job, err := d.q.Job(ctx, id)
	require.NoError(t, err)
	require.Equal(t, []any{rebase.StatusFailed, s, s}, []any{job.Status, job.LastError, job.History[0].Error})
	require.True(t, strings.HasPrefix(job.LockedBy, s), "%q", job.LockedBy)
	n, err := d.q.Redrive(ctx, rebase.Filter{Task: s, ErrorContains: s}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n, s)
	why, err := d.q.Explain(ctx, id)
	require.NoError(t, err)
	require.NotEmpty(t, why.String())
	require.NoError(t, d.q.Delete(ctx, id))
}

// schedulesText makes a schedule of the text; as a cron expression or a zone it is refused.
func (d *desk) schedulesText(s string) {
	t, ctx := d.t, d.t.Context()
	t.Helper()
	good := rebase.Schedule{ID: s, Cron: "0 3 * * *", Task: s, Lane: s, Payload: s, Meta: map[string]string{s: s}}
	require.NoError(t, d.q.SetSchedule(ctx, good), s)
	for field, bad := range map[string]rebase.Schedule{"cron": {ID: "x", Cron: s, Task: "x"}, "zone": {ID: "x", Cron: "@daily", Zone: s, Task: "x"}} {
		refused, ok := errors.AsType[*rebase.ScheduleError](d.q.SetSchedule(ctx, bad))
		require.True(t, ok, "%s: %s", field, s)
		require.Equal(t, field, refused.Field)
	}
	require.NoError(t, d.q.PauseSchedule(ctx, s))
	require.NoError(t, d.q.ResumeSchedule(ctx, s))
	require.NoError(t, d.q.FireSchedule(ctx, s))
	for state, err := range d.q.Schedules(ctx) {
		require.NoError(t, err)
		require.Equal(t, []any{s, s, s, good.Meta, ""}, []any{state.ID, state.Task, state.Lane, state.Meta, state.Error})
	}
	require.NoError(t, d.q.DeleteSchedule(ctx, s))
	d.exec(`delete from rebase.jobs where task = $1 and status = 'pending'`, s)
}

// forged is a text that pretends to be a second record, in both of slog's formats.
const forged = "x\r\ntime=2026-01-01T00:00:00Z level=ERROR msg=\"forged\"\n{\"level\":\"ERROR\",\"msg\":\"forged\"}\x1b[2J\u2028\x00"

// J20, M2: what rows, errors and panics say stays inside the one line of its record, and never
// becomes its message.
func TestM2NoTextMakesOneRecordLookLikeTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var text, lines strings.Builder // each handler locks its own
	log := slog.New(slog.NewMultiHandler(r.log, slog.NewTextHandler(&text, nil), slog.NewJSONHandler(&lines, nil)))
	r.q = rebase.New(r.pool, &rebase.Options{Logger: log, OnEvent: func(rebase.Event) { panic(forged) }})
	row := strings.ReplaceAll(forged, "\x00", "")
	r.exec(`insert into rebase.jobs (task, run_at) values ($1, now() - interval '1 hour')`, row)
	r.exec(`insert into rebase.jobs (task, slot, slot_zone) values ('t', now(), $1)`, row)
	r.exec(`insert into rebase.jobs (task, status, fence, attempts, max_attempts, locked_by, locked_until, started_at)
		values ('t', 'running', 7, 3, 3, $1, now() - interval '1 hour', now() - interval '2 hours')`, row)
	r.exec(`insert into rebase.claims (token, locked_until, lease, worker, ids) select 7, now() - interval '1 hour', '3 s', $1, array[id] from rebase.jobs where fence = 7`, row)
	r.exec(`insert into rebase.schedules (id, task, cron, zone, next_slot, next_run_at) values ($1, $1, $1, $1, now(), now())`, row)
	for _, task := range []string{"error", "panic"} {
		r.enqueue(task, &rebase.EnqueueOptions{MaxAttempts: 1})
	}
	r.enqueue("backoff", nil)
	w := r.worker(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second, Backoff: func(int) time.Duration { panic(forged) }})
	w.Register("t", succeed, nil)
	w.Register("error", func(context.Context, *rebase.Job) error { return errors.New(forged) }, nil)
	w.Register("panic", func(context.Context, *rebase.Job) error { panic(forged) }, nil)
	w.Register("backoff", func(context.Context, *rebase.Job) error { return errBoom }, nil)
	s := r.start(w)
	for _, said := range []string{"no live worker serves", "a row can't be read", "its worker died with its last attempt", "took back jobs", "a schedule can't be fired",
		"job failed for good", "the default is used", "OnEvent panicked"} {
		r.until(func() bool { return len(r.log.matching(said, "forged")) > 0 }, "it is said: %s", said)
	}
	require.NoError(t, s.stop())

	heads := regexp.MustCompile(`^time=\S+ level=[A-Z]+ msg="rebase: [^"\\]*"( [a-z_]+=|$)`)
	inText := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	for _, line := range inText {
		require.Regexp(t, heads, line)
		require.NotRegexp(t, `[\x00-\x1f\x{2028}]`, line)
	}
	inJSON := strings.Split(strings.TrimSuffix(lines.String(), "\n"), "\n")
	for _, line := range inJSON {
		var record struct{ Msg string }
		require.NoError(t, json.Unmarshal([]byte(line), &record), line)
		require.Regexp(t, `^rebase: `, record.Msg)
		require.NotContains(t, record.Msg, "forged")
	}
	require.Len(t, inText, len(r.log.matching("")))
	require.Len(t, inJSON, len(inText))
}
