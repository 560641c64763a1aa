package cli_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// The commands that change jobs and tasks: enqueue, retry, cancel, delete, pause, resume.

// J2, J3, J4, J21, J26: every option reaches the row.
func TestEnqueueTakesEveryOption(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out := d.ok("enqueue", "send-mail", `{"to": "ada"}`, "--delay", "2h", "--key", "k", "--lane", "acme", "--meta", "trace=1", "--meta", "by=a=b", "--max-attempts", "7")
	require.Equal(t, "enqueued job 1\n", out)
	j := d.job(1)
	require.JSONEq(t, `{"to": "ada"}`, string(j.Payload))
	require.Equal(t, map[string]string{"trace": "1", "by": "a=b"}, j.Meta)
	require.Equal(t, 7, j.MaxAttempts)
	require.Equal(t, "acme", j.Lane)
	require.WithinDuration(t, j.CreatedAt.Add(2*time.Hour), j.RunAt, time.Second)
	require.Equal(t, "no job made: job 1 has the key\n", d.ok("enqueue", "send-mail", "--key", "k"))
	require.JSONEq(t, `{"id": 1, "duplicate": true}`, d.ok("enqueue", "send-mail", "--key", "k", "--json"))

	d.stdin = `[1, 2]`
	d.ok("enqueue", "sum", "-", "--run-at", "2031-05-06T07:08:09Z")
	require.Equal(t, 1, d.count(`task = 'sum' and payload = '[1, 2]' and run_at = '2031-05-06 07:08:09Z'`))
	require.Equal(t, "note: no live worker serves task nothing\n", d.run("enqueue", "nothing").err)
	require.Equal(t, 1, d.count(`task = 'nothing' and payload = 'null'`))
}

// What can't be stored is a mistake of the command line, and is named.
func TestEnqueueRefusesWhatCantBeStored(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.stdin = strings.Repeat("1", 2<<20+1)
	for _, c := range [][]string{
		{`payload`, "t", "{"},
		{`payload`, "t", `"\u0000"`},
		{`payload "-": is longer than 2,097,152 bytes`, "t", "-"},
		{`task`, ""},
		{`--run-at "tomorrow": want a time`, "t", "--run-at", "tomorrow"},
		{`--run-at "2031-05-06T07:08:09Z": can't be used with --delay`, "t", "--run-at", "2031-05-06T07:08:09Z", "--delay", "1m"},
		{`--max-attempts "0": must be at least 1`, "t", "--max-attempts", "0"},
		{`--meta "x": want NAME=VALUE`, "t", "--meta", "x"},
		{`--meta "x=2": the name was given before`, "t", "--meta", "x=1", "--meta", "x=2"},
		{`"5 minutes" for "--delay"`, "t", "--delay", "5 minutes"},
		{`lane`, "t", "--lane", strings.Repeat("x", 256)},
	} {
		require.Contains(t, d.fails(2, append([]string{"enqueue"}, c[1:]...)...), c[0])
	}
	require.Zero(t, d.count("true"))
}

// J18.
func TestRetryCancelAndDeleteTellEachJobsFate(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dead, pending := d.enqueue("t", nil), d.enqueue("t", nil)
	d.end(dead, rebase.StatusFailed, time.Hour, "boom")
	require.Equal(t, "retried job 1\n", d.ok("retry", "1"))
	require.Equal(t, rebase.StatusPending, d.job(dead).Status)
	require.Equal(t, "rebase: retry: job 1 is pending\n", d.fails(4, "retry", "1"))

	r := d.run("cancel", "2", "999", "1", "--reason", "withdrawn", "--yes")
	require.Equal(t, result{3, "cancelled job 2\ncancelled job 1\n", "rebase: cancel: there is no job 999\n"}, r)
	require.Equal(t, "withdrawn", d.job(pending).LastError)

	r = d.run("delete", "1", "2", "2", "3", "--yes", "--json")
	require.Equal(t, 3, r.code)
	require.Equal(t, `{"id":1,"done":true,"dry_run":false,"error":null}
{"id":2,"done":true,"dry_run":false,"error":null}
{"id":3,"done":false,"dry_run":false,"error":"delete: there is no job 3"}
`, r.out)
	require.Zero(t, d.count("true"))
}

// J4, J18: a key that a newer job has taken meanwhile.
func TestRetryOfAJobWhoseKeyIsTakenIsAConflict(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.end(d.enqueue("t", &rebase.EnqueueOptions{IdempotencyKey: "k"}), rebase.StatusFailed, time.Hour, "boom")
	d.enqueue("t", &rebase.EnqueueOptions{IdempotencyKey: "k"})
	require.Contains(t, d.fails(4, "retry", "1"), "taken by job 2")
}

func TestSeveralJobsNeedAConfirmation(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"retry", "cancel", "delete"} {
		d := newDesk(t)
		for range 2 {
			id := d.enqueue("t", nil)
			if verb == "retry" {
				d.end(id, rebase.StatusFailed, time.Hour, "boom")
			}
		}
		before := d.ok("list", "--json", "--status", "all")
		require.Contains(t, d.fails(5, verb, "1", "2"), "no terminal to ask on: pass --yes")
		d.terminal = true
		for _, answer := range []string{"", "y\n", "no\n", "YES\n", "yes please\n"} {
			d.stdin = answer
			require.Contains(t, d.fails(5, verb, "1", "2"), fmt.Sprintf("This will %s 2 jobs. Type yes to go on: rebase: not confirmed: nothing was changed\n", verb), answer)
		}
		d.terminal = false
		require.Equal(t, before, d.ok("list", "--json", "--status", "all"))
		require.Equal(t, fmt.Sprintf("would %[1]s job 1\nwould %[1]s job 2\n", verb), d.ok(verb, "1", "2", "--dry-run"))
		require.Equal(t, before, d.ok("list", "--json", "--status", "all"), "a dry run changes nothing")

		d.terminal, d.stdin = true, "yes\n"
		d.ok(verb, "1", "2")
		d.terminal = false
		require.NotEqual(t, before, d.ok("list", "--json", "--status", "all"))
	}
}

// A dry run says what the command itself would say.
func TestDryRunForetellsConflicts(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("t", nil)
	d.end(d.enqueue("t", nil), rebase.StatusSucceeded, time.Hour, "")
	for _, c := range []struct {
		verb, id string
		code     int
	}{{"retry", "1", 4}, {"retry", "2", 0}, {"cancel", "1", 0}, {"cancel", "2", 4}, {"delete", "1", 0}, {"delete", "2", 0}, {"delete", "3", 3}} {
		dry := d.run(c.verb, c.id, "--dry-run")
		require.Equal(t, c.code, dry.code, "%v: %s", c, dry.err)
		if c.code != 0 {
			require.Equal(t, d.run(c.verb, c.id).err, dry.err, "%v", c)
		}
	}
}

// J18: everywhere, and visible.
func TestPauseAndResumeATask(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("mail", nil)
	require.Equal(t, result{0, "paused task mail\n", ""}, d.run("pause", "mail"))
	require.Contains(t, d.ok("show", "1"), "its task is paused")
	require.JSONEq(t, `{"task": "mail", "paused": false}`, d.ok("resume", "mail", "--json"))
	require.NotContains(t, d.ok("show", "1"), "paused")
	require.Equal(t, result{0, "paused task mial\n", "note: no job, worker or schedule has a task mial\n"}, d.run("pause", "mial"))
	require.Contains(t, d.fails(2, "pause", ""), "task")
}

// A name that nobody knows may be mistyped; one that a worker serves, or a duplicate, is not.
func TestEnqueueTellsOfATaskThatNobodyServes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	w := rebase.NewWorker(d.q, nil)
	w.Register("served", func(context.Context, *rebase.Job) error { return nil }, nil)
	d.work(w)
	d.until("the worker is known", func() bool { return strings.Contains(d.ok("stats"), "served") })
	require.Empty(t, d.run("enqueue", "served").err)
	require.Contains(t, d.run("enqueue", "severd", "--key", "k", "--json").err, "no live worker serves task severd")
	require.Empty(t, d.run("enqueue", "severd", "--key", "k").err)
}
