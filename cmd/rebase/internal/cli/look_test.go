package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// The commands that only look: list, show, stats and schedules.

// A row is what programs read of a job; decoding refuses fields that it lacks.
type row struct {
	ID             int64             `json:"id"`
	Task           string            `json:"task"`
	Lane           string            `json:"lane"`
	Payload        json.RawMessage   `json:"payload"`
	Meta           map[string]string `json:"meta"`
	Status         string            `json:"status"`
	RunAt          time.Time         `json:"run_at"`
	Attempts       int               `json:"attempts"`
	MaxAttempts    int               `json:"max_attempts"`
	Runs           int               `json:"runs"`
	IdempotencyKey *string           `json:"idempotency_key"`
	LockedBy       *string           `json:"locked_by"`
	LockedUntil    *time.Time        `json:"locked_until"`
	StartedAt      *time.Time        `json:"started_at"`
	LastError      *string           `json:"last_error"`
	History        []rebase.Attempt  `json:"history"`
	Slot           *time.Time        `json:"slot"`
	FinishedAt     *time.Time        `json:"finished_at"`
	CreatedAt      time.Time         `json:"created_at"`
	UpdatedAt      time.Time         `json:"updated_at"`
}

func ids(rows []row) (list []int64) {
	for _, r := range rows {
		list = append(list, r.ID)
	}
	return list
}

// J18: each field of rebase.Filter is a flag.
func TestListSelectsByEveryFieldOfTheFilter(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	mail := d.enqueue("mail", &rebase.EnqueueOptions{Lane: "acme", IdempotencyKey: "k", Meta: map[string]string{"trace": "1"}})
	sms := d.enqueue("sms", nil)
	old := d.enqueue("sms", nil)
	d.end(old, rebase.StatusFailed, 48*time.Hour, "550 no such mailbox")
	done := d.enqueue("mail", nil)
	d.end(done, rebase.StatusSucceeded, time.Hour, "")
	d.exec(`update rebase.jobs set created_at = now() - interval '10 days' where id = $1`, old)
	date := time.Now().UTC().Add(-72 * time.Hour).Format(time.DateOnly)
	for _, c := range []struct {
		want []int64
		args string
	}{
		{[]int64{mail, sms, old}, ""},
		{[]int64{mail, sms, old, done}, "--status all"},
		{[]int64{old}, "--status failed"},
		{[]int64{sms, old}, "--status failed,pending --task sms"},
		{[]int64{done}, "--status succeeded"},
		{[]int64{mail}, "--task mail"},
		{[]int64{mail}, "--lane acme"},
		{[]int64{mail}, "--key k"},
		{[]int64{old}, "--error no_such"},
		{[]int64{mail}, "--meta trace=1"},
		{nil, "--meta trace=2"},
		{[]int64{mail, sms}, "--created-after 1d"},
		{[]int64{old}, "--created-before " + date},
		{[]int64{done}, "--finished-after 2h"},
		{[]int64{old}, "--finished-before 1d12h"},
		{[]int64{mail, sms}, "--limit 2"},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		require.Equal(t, c.want, ids(decode[row](t, d.ok(append([]string{"list", "--json"}, args...)...))), c.args)
	}
}

func TestListShowsATableAndSaysWhenThereMayBeMore(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dead := d.enqueue("send-invoice", nil)
	d.end(dead, rebase.StatusFailed, 2*time.Hour, "550 no such mailbox\nand more")
	d.enqueue("a", &rebase.EnqueueOptions{Delay: time.Hour})
	r := d.run("list", "--limit", "2")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	require.Len(t, lines, 3, r.out)
	require.Regexp(t, `^ID  STATUS   TASK          LANE  ATTEMPTS  WHEN +LAST ERROR$`, lines[0])
	require.Regexp(t, `^ 2  pending  a +0/3  due in 59m5\ds$`, lines[1])
	require.Regexp(t, `^ 1  failed   send-invoice +3/3  2h ago +550 no such mailbox …$`, lines[2])
	require.Equal(t, "2 jobs shown, there may be more: --limit 0 shows all\n", r.err)
	require.Equal(t, result{0, "", "no such jobs\n"}, d.run("list", "--task", "none"))
}

// All rows come, in the order of the library, also past the pages that a table is printed in.
func TestListWithoutLimitShowsAll(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(450, "t", rebase.StatusFailed, time.Hour)
	r := d.run("list", "--limit", "0", "--status", "failed")
	require.Len(t, strings.Split(strings.TrimSpace(r.out), "\n"), 451)
	require.Empty(t, r.err)
	require.Len(t, decode[row](t, d.ok("list", "--limit", "0", "--status", "failed", "--json")), 450)
	d.enqueue("t", nil)
	require.Len(t, decode[row](t, d.ok("list", "--limit", "3", "--json")), 3, "the limit is that of all statuses together")
}

// J1: the names are the columns', and what is null there is null here.
func TestJSONOfAJobHasTheColumnsOfItsRow(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	done, err := d.q.Enqueue(t.Context(), "t", json.RawMessage(`{"n": 12345678901234567890}`), nil)
	require.NoError(t, err)
	out := d.ok("list", "--json")
	var got map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	var columns []string
	require.NoError(t, d.pool.QueryRow(t.Context(), `select array_agg(attname::text) from pg_attribute
		where attrelid = 'rebase.jobs'::regclass and attnum > 0
		and attname not in ('fence', 'crashes', 'setbacks', 'dead', 'key_hash', 'slot_zone')`).Scan(&columns))
	require.Len(t, got, len(columns))
	for _, c := range columns {
		require.Contains(t, got, c)
	}
	for _, c := range []string{"meta", "idempotency_key", "locked_by", "locked_until", "started_at", "last_error", "history", "slot", "finished_at"} {
		require.Equal(t, "null", string(got[c]), c)
	}
	require.JSONEq(t, `""`, string(got["lane"]))
	require.Equal(t, `{"n":12345678901234567890}`, string(got["payload"]), "a number beyond 2^53 survives")
	require.Equal(t, fmt.Sprint(done.ID), string(got["id"]))
}

// J19, J20: the sentence of Explain, the row, the history, the payload.
func TestShowTellsTheWholeStoryOfAJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	done, err := d.q.Enqueue(t.Context(), "send-invoice", map[string]any{"order": 4711}, &rebase.EnqueueOptions{
		MaxAttempts: 2, Lane: "acme", IdempotencyKey: "order-4711", Meta: map[string]string{"trace": "abc"}})
	require.NoError(t, err)
	w := rebase.NewWorker(d.q, &rebase.WorkerOptions{Name: "mail", Backoff: func(int) time.Duration { return 0 }})
	w.Register("send-invoice", func(context.Context, *rebase.Job) error { return errors.New("550 no such mailbox") }, nil)
	_, err = w.RunOnce(t.Context())
	require.NoError(t, err)

	out := d.ok("show", fmt.Sprint(done.ID))
	x, err := d.q.Explain(t.Context(), done.ID)
	require.NoError(t, err)
	require.Equal(t, rebase.ReasonFailed, x.Reason)
	require.Contains(t, out, x.String()+"\n")
	for _, want := range []string{`lane +acme`, `status +failed`, `attempts +2 of 2, 2 runs`, `key +order-4711`, `meta +trace=abc`,
		`finished +20\d\d-\S+ \S+Z  \d+m?s ago`, `RUN  ATTEMPT  ENDED`, `(?m)^ +2 +2  20.* failed +\d+ms  mail-\S+ +550 no such mailbox$`, `"order": 4711`} {
		require.Regexp(t, want, out)
	}
	type shown struct {
		row
		Reason      string `json:"reason"`
		Explanation string `json:"explanation"`
	}
	got := decode[shown](t, d.ok("show", fmt.Sprint(done.ID), "--json"))[0]
	require.Equal(t, "failed", got.Reason)
	require.Equal(t, x.String(), got.Explanation)
	require.Len(t, got.History, 2)
	require.Contains(t, d.fails(3, "show", "999"), "rebase: show: there is no job 999\n")
}

// M1.
func TestStatsShowsTasksWorkersAndWhatIsWrong(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("unserved", nil)
	d.enqueue("held", nil)
	require.NoError(t, d.q.PauseTask(t.Context(), "held"))
	d.ended(3, "dead", rebase.StatusFailed, time.Hour)
	out := d.ok("stats")
	require.Regexp(t, `(?m)^TASK +READY +SCHEDULED +RUNNING +AHEAD +RETRYING +OLDEST +DEAD +WORKERS +SLOTS +STATE$`, out)
	require.Regexp(t, `(?m)^dead +0 +0 +0 +0 +0 +3 +0 +0$`, out)
	require.Regexp(t, `(?m)^held +1 .* paused$`, out)
	require.Regexp(t, `(?m)^unserved +1 .* no live worker$`, out)
	require.Contains(t, out, "no live workers\n")
	require.Regexp(t, `(?m)^dead letters +3$`, out)
	var got struct {
		Tasks []struct {
			Task  string `json:"task"`
			Ready int    `json:"ready"`
		} `json:"tasks"`
		Unserved    []string         `json:"unserved"`
		DeadLetters int              `json:"dead_letters"`
		Workers     []string         `json:"workers"`
		Totals      map[string]int64 `json:"totals"`
	}
	require.NoError(t, json.Unmarshal([]byte(d.ok("stats", "--json")), &got))
	require.Equal(t, 3, got.DeadLetters)
	require.Equal(t, []string{"held", "unserved"}, got.Unserved)
	require.Len(t, got.Tasks, 3)
	require.NotNil(t, got.Workers, "an empty list is [], not null")
}

// S2.
func TestSchedulesAreListedPausedResumedFiredAndDeleted(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	require.NoError(t, d.q.SetSchedule(t.Context(), rebase.Schedule{ID: "report", Cron: "0 6 * * 1-5", Zone: "Europe/Berlin", Task: "make-report", Payload: 7, CatchUp: rebase.CatchUpAll(5)}))
	type schedule struct {
		ID      string          `json:"id"`
		Paused  bool            `json:"paused"`
		Cron    string          `json:"cron"`
		CatchUp string          `json:"catch_up"`
		Next    *time.Time      `json:"next_run_at"`
		Payload json.RawMessage `json:"payload"`
	}
	state := func() (s schedule) {
		require.NoError(t, json.Unmarshal([]byte(d.ok("schedules", "--json")), &s))
		return s
	}
	require.Regexp(t, `(?m)^report  make-report  0 6 \* \* 1-5  Europe/Berlin  in \S+ +never +0  run time$`, d.ok("schedules"))
	require.Equal(t, "all 5", state().CatchUp)
	require.Equal(t, "paused schedule report\n", d.ok("schedules", "pause", "report"))
	require.True(t, state().Paused)
	require.Nil(t, state().Next)
	require.Regexp(t, `paused$`, strings.TrimSpace(d.ok("schedules")))
	d.ok("schedules", "resume", "report")
	require.False(t, state().Paused)
	require.JSONEq(t, `{"id": "report", "done": true}`, d.ok("schedules", "fire", "report", "--json"))
	require.Equal(t, 1, d.count("task = 'make-report'"))
	d.ok("schedules", "delete", "report")
	for _, verb := range []string{"pause", "resume", "fire", "delete"} {
		require.Contains(t, d.fails(3, "schedules", verb, "report"), "rebase: schedules "+verb+": there is no schedule \"report\"\n")
	}
	require.Equal(t, "no schedules\n", d.run("schedules").err)
	require.Empty(t, d.ok("schedules", "--json"))
}
