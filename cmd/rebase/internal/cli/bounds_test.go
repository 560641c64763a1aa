package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/cmd/rebase/internal/cli"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// What holds for every command: how it ends, what it never shows, and how long it takes.

// everything are all commands, with arguments that they accept.
var everything = [][]string{
	{"migrate"}, {"check"}, {"stats"}, {"watch", "--count", "1"}, {"list", "--status", "all"}, {"show", "1"}, {"enqueue", "t"}, {"retry", "1"},
	{"redrive", "--yes"}, {"cancel", "1"}, {"delete", "1"}, {"purge", "--older-than", "1d", "--yes"}, {"pause", "t"}, {"resume", "t"},
	{"schedules"}, {"schedules", "pause", "s"}, {"schedules", "resume", "s"}, {"schedules", "fire", "s"}, {"schedules", "delete", "s"},
}

// The list above has every command there is.
func TestEverythingIsEverything(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for _, args := range everything {
		listed[args[0]] = true
		if len(args) > 1 {
			listed[args[0]+" "+args[1]] = true
		}
	}
	for _, c := range cli.Root().Commands() {
		require.True(t, listed[c.Name()], c.Name())
		for _, sub := range c.Commands() {
			require.True(t, listed[c.Name()+" "+sub.Name()], sub.CommandPath())
		}
	}
}

func TestMistakesOfTheCommandLineEndWithTwo(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, c := range [][]string{
		{`unknown command "lst"`, "lst"},
		{`unknown command "stop"`, "schedules", "stop"},
		{`unknown flag: --nope`, "list", "--nope"},
		{`show: an argument is missing, want 'rebase show ID'`, "show"},
		{`cancel: an argument is missing, want 'rebase cancel ID...'`, "cancel"},
		{`enqueue: argument "2": is one too many, want 'rebase enqueue TASK [PAYLOAD|-]'`, "enqueue", "t", "1", "2"},
		{`stats: argument "now": is one too many, want 'rebase stats'`, "stats", "now"},
		{`redrive: argument "4": jobs are chosen by flags here; for single ones see 'rebase retry ID...'`, "redrive", "4"},
		{`purge: argument "4": jobs are chosen by flags here; for single ones see 'rebase delete ID...'`, "purge", "4"},
		{`list: argument "4": jobs are chosen by flags here; for single ones see 'rebase show ID'`, "list", "4"},
		{`--older-than is missing or zero: say how long ago`, "purge", "--older-than", "0s"},
		{`id "x1": want the number of a job`, "show", "x1"},
		{`id "0"`, "cancel", "7", "0"},
		{`--limit "-1"`, "list", "--limit", "-1"},
		{`--limit "-1"`, "redrive", "--limit", "-1"},
		{`--status "dead": want pending`, "list", "--status", "dead"},
		{`"soon" for "--created-after"`, "list", "--created-after", "soon"},
		{`--timeout "-1s"`, "stats", "--timeout", "-1s"},
		{`--interval "1ms"`, "watch", "--interval", "1ms"},
		{`--count "-1"`, "watch", "--count", "-1"},
		{`--after "2": needs --sql`, "migrate", "--after", "2"},
	} {
		said := d.fails(2, c[1:]...)
		require.Contains(t, said, c[0])
		require.Contains(t, said, "--help'.\n")
	}
	require.Contains(t, d.fails(2, "show", "x1"), "See 'rebase show --help'.\n")
	require.Contains(t, d.fails(2, "schedules", "stop"), "See 'rebase schedules --help'.\n")
}

// The address is in no output, whatever goes wrong with it. Only the server itself may name a
// role or a database that it doesn't know.
func TestTheDatabasesAddressIsNeverShown(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	d := newDesk(t)
	wrong, err := url.Parse(pgtest.URL(t, d.pool))
	require.NoError(t, err)
	wrong.Path = "/hush_database"
	query := wrong.Query()
	query.Set("user", "hush_user")
	query.Set("password", "hush_password")
	wrong.RawQuery, wrong.User = query.Encode(), nil
	for _, c := range []struct {
		url  string
		code int
	}{
		{"", 2},
		{"postgres://hush_user:hush_pass word@localhost:port/hush_database", 2},
		{"postgres://hush_user:hush_password@[::1/hush_database", 2},
		{"hush_password", 2},
		{"host=localhost port=99999999 password='hush_password", 2},
		{"postgres://hush_user:hush_password@" + closed.Addr().String() + "/hush_database", 1},
		{wrong.String(), 1},
	} {
		for _, args := range everything {
			r := d.run(append(args, "--database-url", c.url)...)
			if c.url == "" {
				r = func() result {
					d := *d
					var out, errs strings.Builder
					s := d.streams(&out, &errs)
					s.Env = func(string) string { return "" }
					return result{cli.Run(t.Context(), args, s), out.String(), errs.String()}
				}()
			}
			require.Equal(t, c.code, r.code, "%v %s", args, r.err)
			require.Empty(t, r.out, args)
			said := strings.ReplaceAll(r.err, `role "hush_user" does not exist`, "")
			require.NotContains(t, strings.ReplaceAll(said, `database "hush_database" does not exist`, ""), "hush", args)
			require.NotEmpty(t, r.err, args)
		}
	}
}

// A database without the schema: what to do, and an exit code of its own.
func TestWithoutTheSchemaEveryCommandSaysSo(t *testing.T) {
	t.Parallel()
	d := newDeskOn(t, pgtest.Empty(t))
	for _, args := range everything[1:] {
		require.Regexp(t, `^rebase: (the schema is missing or too old: run 'rebase migrate'|schema: the schema is missing)`, d.fails(6, args...), args)
	}
	require.Equal(t, "made the schema, version 3\n", d.ok("migrate"))
	require.Equal(t, "nothing to do: the schema is at version 3\n", d.ok("migrate"))
	require.JSONEq(t, `{"before": 3, "version": 3}`, d.ok("migrate", "--json"))
	require.Contains(t, d.ok("check"), "ok: the schema is at version 3")
	require.JSONEq(t, `{"ok": true, "version": 3}`, d.ok("check", "--json"))
}

// A role without privileges: the server's words, and the exit code of the documents.
func TestARoleWithoutPrivilegesIsToldSo(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var role string
	require.NoError(t, d.pool.QueryRow(t.Context(), `select 'cli_' || right(current_database(), 12)`).Scan(&role))
	d.exec("create role " + role)
	t.Cleanup(func() { // roles are the whole server's
		_, err := d.pool.Exec(context.Background(), "drop role "+role)
		require.NoError(t, err)
	})
	address, err := url.Parse(pgtest.URL(t, d.pool))
	require.NoError(t, err)
	query := address.Query()
	query.Set("options", "-crole="+role)
	address.RawQuery = query.Encode()
	for _, args := range everything {
		said := d.fails(6, append(args, "--database-url", address.String())...)
		if args[0] == "migrate" {
			require.Contains(t, said, "rebase: the role may not make or change the schema (permission denied for schema rebase): let the schema's owner migrate")
			continue
		}
		require.Regexp(t, `(the role lacks privileges: permission denied for |schema: no permission on )`, said, args)
	}
}

// J25: what --sql prints makes the schema, without a database's address.
func TestMigrateSQLMakesTheSchema(t *testing.T) {
	t.Parallel()
	d := newDeskOn(t, pgtest.Empty(t))
	out := d.ok("migrate", "--sql")
	conn, err := d.pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Conn().PgConn().Exec(t.Context(), out).ReadAll()
	conn.Release()
	require.NoError(t, err)
	d.ok("check")
	require.Equal(t, "nothing to do: the schema is at version 3\n", d.ok("migrate"))
	later := d.ok("migrate", "--sql", "--after", "2")
	require.NotContains(t, later, "create table rebase.jobs")
	require.True(t, strings.HasSuffix(out, later))
}

// nasty has what a terminal would obey: an escape sequence, both kinds of control characters, a
// right-to-left override.
const nasty = "a\x1b]0;owned\a\x1b[2J\r\u009b31m\u202eb\x7f"

// Text of rows reaches no terminal unescaped, in tables or in JSON, on stdout or stderr.
func TestTextOfRowsIsNoCommandToTheTerminal(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, lane, status, dead, finished_at, last_error, idempotency_key, key_hash, meta, payload, locked_by, history)
		select $1, $1, s, s = 'failed', case when s = 'pending' then null else now() end, $1, $1, '\x00', jsonb_build_object($1::text, $1::text), to_jsonb($1::text), $1,
		jsonb_build_array(jsonb_build_object('attempt', 1, 'run', 1, 'started_at', now(), 'ended_at', now(), 'worker', $1::text, 'outcome', 'failed', 'error', $1::text))
		from unnest(array['pending', 'failed', 'succeeded']) s`, nasty)
	d.exec(`insert into rebase.workers (id, host, tasks, concurrency, lease) values ($1, $1, array[$1], 1, '1 h')`, nasty)
	d.exec(`insert into rebase.schedules (id, task, cron, zone, error) values ($1, $1, $1, $1, $1)`, nasty)
	d.exec(`insert into rebase.counters (hour, name, value) values (now(), $1, 1)`, nasty)
	var told strings.Builder
	for _, args := range append([][]string{{"show", "2"}, {"redrive", "--dry-run"}, {"schedules", "fire", nasty}, {"pause", nasty}, {"pause", nasty + "x"}, {"lst" + nasty}, {"list", "--no" + nasty},
		{"list", "--status", nasty}, {"schedules", "pause", "gone" + nasty}, {"enqueue", "t", nasty}}, everything[2:]...) {
		for _, how := range []string{"--json", "--json=false"} {
			r := d.run(append(args, how)...)
			told.WriteString(r.out + r.err)
			for _, c := range r.out + r.err {
				require.False(t, unicode.IsControl(c) && c != '\n' || c == 0x202e, "%v prints %q", args, r.out+r.err)
			}
		}
	}
	require.Contains(t, told.String(), `a\x1b]0;owned\x07\x1b[2J\x0d\x9b31m\u202eb\x7f`, "it is shown, as escapes")
	var got row
	require.NoError(t, json.Unmarshal([]byte(d.ok("list", "--json", "--status", "pending", "--limit", "1")), &got))
	require.Equal(t, nasty, got.Task, "the JSON means the same")
}

// A statement has --timeout, and the server stops it, too.
func TestTimeoutEndsAStatementAndTheServersWork(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("t", nil)
	tx, err := d.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = tx.Exec(t.Context(), `lock table rebase.jobs in access exclusive mode`)
	require.NoError(t, err)
	for _, args := range everything[2:15] {
		if args[0] == "pause" || args[0] == "resume" || args[0] == "schedules" {
			continue // they need no job
		}
		said := d.fails(1, append(args, "--timeout", "100ms")...)
		require.Regexp(t, `longer than 100ms|lock timeout|statement timeout`, said, args)
	}
	require.Contains(t, d.fails(1, "list", "--timeout", "20ms"), "it took longer than 20ms: raise --timeout")
	d.until("no statement waits any more", func() bool {
		var n int
		require.NoError(t, d.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n))
		return n == 0
	})
}

func TestAnInterruptEndsACommandCleanly(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range everything {
		r := d.runCtx(ctx, args...)
		if args[0] == "watch" {
			require.Equal(t, result{}, r, "that is how it ends")
			continue
		}
		require.Equal(t, result{130, "", "rebase: interrupted\n"}, r, args)
	}
}

// Shells: names of tasks and schedules come from the database, within half a second.
func TestShellsCompleteNames(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("send-mail", nil)
	d.ended(1, "dead-task", rebase.StatusFailed, time.Hour)
	d.exec(`insert into rebase.jobs (task) values ($1)`, nasty)
	require.NoError(t, d.q.SetSchedule(t.Context(), rebase.Schedule{ID: "report", Cron: "@daily", Task: "make-report"}))
	tasks := "dead-task\nmake-report\nsend-mail\n:4\n"
	for _, c := range [][]string{
		{tasks, "pause", ""}, {tasks, "resume", ""}, {tasks, "enqueue", ""}, {":4\n", "enqueue", "send-mail", ""},
		{tasks, "list", "--task", ""}, {tasks, "redrive", "--task", ""},
		{"report\n:4\n", "schedules", "fire", ""}, {":4\n", "schedules", "fire", "report", ""},
		{"pending\nrunning\nfailed\nsucceeded\ncancelled\nall\n:4\n", "list", "--status", ""},
		{"succeeded\ncancelled\nfailed\n:4\n", "purge", "--status", ""},
	} {
		require.Equal(t, c[0], d.ok(append([]string{"__complete"}, c[1:]...)...), c)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.Contains(t, d.ok("completion", shell), "rebase")
	}
}

// A database that doesn't answer leaves a shell without names, not without a prompt.
func TestCompletionGivesUpSoon(t *testing.T) {
	t.Parallel()
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, deaf.Close()) }()
	d := newDesk(t)
	began := time.Now()
	require.Equal(t, ":4\n", d.ok("__complete", "--database-url", "postgres://x@"+deaf.Addr().String()+"/x", "pause", ""))
	require.Less(t, time.Since(began), 20*time.Second)
}

func TestWriteErrorsAreTold(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var errs strings.Builder
	s := d.streams(nil, &errs)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	defer func() { _ = full.Close() }() // what was written to it is gone anyway
	s.Out = full
	require.Equal(t, 1, cli.Run(t.Context(), []string{"stats"}, s))
	require.Contains(t, errs.String(), "write the output")
}

// A colour is for a terminal that wants it.
func TestColourIsOnlyForTerminals(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(1, "t", rebase.StatusFailed, time.Hour)
	require.NotContains(t, d.ok("list"), "\x1b")
	d.terminal = true
	coloured := d.ok("list")
	require.Contains(t, coloured, "\x1b[31mfailed\x1b[0m")
	require.NotContains(t, d.ok("list", "--json"), "\x1b")
	var out, errs strings.Builder
	s := d.streams(&out, &errs)
	env := s.Env
	s.Env = func(name string) string {
		if name == "NO_COLOR" {
			return "1"
		}
		return env(name)
	}
	require.Zero(t, cli.Run(t.Context(), []string{"list"}, s))
	require.NotContains(t, out.String(), "\x1b")
	require.Equal(t, len(strings.Split(coloured, "\n")), len(strings.Split(out.String(), "\n")), fmt.Sprint(out.String()))
}
