package rebase_test

// J19: why is this job not running? Every reason is made by SQL, as the tables would tell
// it, and its sentence is compared with docs/explain.md, which these tests write when they
// are run with -update. What varies from run to run, times and process numbers, is made the
// same first.

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

var update = flag.Bool("update", false, "write what is generated: the end of docs/explain.md, api/*.txt")

// The job that all sentences are about.
const invoice = 4711

// An explainCase is a state of the tables and what is said about it.
type explainCase struct {
	when   string // for the document
	row    string // columns of the job, as an update's set list
	worker string // values for the worker w, none if ""
	extra  func(d *desk)
	reason rebase.Reason
	also   func(t *testing.T, x *rebase.Explanation)
}

// A worker with five slots, and one with one, seen just now.
const (
	fiveSlots = `5, now(), '{}'`
	oneSlot   = `1, now(), '{}'`
)

var explainCases = []explainCase{
	{when: "It is due later", row: `run_at = now() + interval '42 s'`, reason: rebase.ReasonScheduled,
		also: func(t *testing.T, x *rebase.Explanation) {
			require.Greater(t, x.In, 20*time.Second)
			require.LessOrEqual(t, x.In, 42*time.Second)
		}},
	{when: "An attempt failed", row: `run_at = now() + interval '42 s', attempts = 1, last_error = E'421 try again later\nmore'`, reason: rebase.ReasonRetry},
	{when: "Infrastructure trouble", row: `run_at = now() + interval '42 s', setbacks = 3, last_error = 'connection refused'`, reason: rebase.ReasonSetback},
	// A crash keeps count of the setbacks before it, and costs an attempt.
	{when: "A worker died, after infrastructure trouble", row: `run_at = now() + interval '42 s', setbacks = 3, crashes = 1, attempts = 1, last_error = 'the worker w stopped renewing'`, reason: rebase.ReasonRetry},
	// Why it failed before is not why it waits.
	{when: "Its handler snoozed it", row: `run_at = now() + interval '42 s', attempts = 1, last_error = 'boom', history = '[{"outcome": "failed"}, {"outcome": "snoozed"}]'`, reason: rebase.ReasonScheduled},
	{when: "A slot is free", worker: fiveSlots, reason: rebase.ReasonWaiting,
		also: func(t *testing.T, x *rebase.Explanation) {
			require.Equal(t, []int{1, 5, 0}, []int{x.Workers, x.Slots, x.Busy})
		}},
	{when: "All slots are taken, by its task", worker: oneSlot, extra: func(d *desk) { d.busy("send-invoice", "") }, reason: rebase.ReasonSlotsBusy,
		also: func(t *testing.T, x *rebase.Explanation) {
			require.Equal(t, []int{1, 1}, []int{x.Slots, x.Busy})
		}},
	{when: "All slots are taken, by another task", worker: `2, now(), '{}'`, extra: func(d *desk) { d.busy("other", ""); d.busy("other", "") }, reason: rebase.ReasonSlotsBusy},
	{when: "The task's own limit is reached", worker: `5, now(), '{"send-invoice": {"slots": 1}}'`, extra: func(d *desk) { d.busy("send-invoice", "") }, reason: rebase.ReasonSlotsBusy},
	{when: "Its lane is at its limit", row: `lane = 'acme'`, worker: `5, now(), '{"send-invoice": {"lane": 1}}'`, extra: func(d *desk) { d.busy("send-invoice", "acme") }, reason: rebase.ReasonLaneBusy,
		also: func(t *testing.T, x *rebase.Explanation) {
			require.Equal(t, []int{1, 1}, []int{x.LaneLimit, x.LaneBusy})
		}},
	{when: "The task is paused", worker: fiveSlots, extra: func(d *desk) { require.NoError(d.t, d.q.PauseTask(d.t.Context(), "send-invoice")) }, reason: rebase.ReasonPaused},
	{when: "Nobody serves the task", reason: rebase.ReasonUnserved},
	{when: "Who served it is dead", worker: `5, now() - interval '91 s', '{}'`, reason: rebase.ReasonUnserved},
	{when: "Somebody locks the row", worker: fiveSlots, extra: func(d *desk) { d.locked() }, reason: rebase.ReasonLocked,
		also: func(t *testing.T, x *rebase.Explanation) { require.Len(t, x.Blockers, 1) }},
	{when: "Its worker died", row: `crashes = 1, attempts = 1`, worker: fiveSlots, reason: rebase.ReasonReaped},
	{when: "It is claimed ahead", row: held + `, started_at = null, attempts = 1`, worker: oneSlot, reason: rebase.ReasonClaimedAhead},
	{when: "It runs", row: held + `, started_at = now(), attempts = 1`, worker: fiveSlots, reason: rebase.ReasonRunning},
	{when: "It runs, and somebody locks the row", row: held + `, started_at = now(), attempts = 1`, worker: fiveSlots, extra: func(d *desk) { d.locked() }, reason: rebase.ReasonRunning},
	{when: "Its worker is silent", row: held + `, started_at = now(), attempts = 1`, worker: `5, now() - interval '2 min', '{}'`, extra: func(d *desk) { d.lives() }, reason: rebase.ReasonWorkerDied,
		also: func(t *testing.T, x *rebase.Explanation) {
			require.Positive(t, x.In)
			require.False(t, x.WorkerSeen.IsZero())
		}},
	{when: "Its worker is silent and unknown", row: held + `, started_at = now(), attempts = 1`, extra: func(d *desk) { d.lives() }, reason: rebase.ReasonWorkerDied},
	{when: "Its worker is silent, and so are all", row: held + `, started_at = now(), attempts = 1`, worker: `5, now() - interval '2 min', '{}'`, reason: rebase.ReasonWorkerDied},
	{when: "Its lease has ended", row: ended + `, started_at = now(), attempts = 1`, worker: fiveSlots, reason: rebase.ReasonWorkerDied,
		also: func(t *testing.T, x *rebase.Explanation) { require.Zero(t, x.In) }},
	{when: "Its lease has ended, and no worker lives", row: ended + `, started_at = now(), attempts = 1`, worker: `5, now() - interval '2 min', '{}'`, reason: rebase.ReasonWorkerDied},
	{when: "It has succeeded", row: `status = 'succeeded', finished_at = now(), attempts = 2, locked_by = 'w'`, reason: rebase.ReasonSucceeded},
	{when: "It has failed", row: `status = 'failed', dead = true, finished_at = now(), attempts = 3, locked_by = 'w', last_error = '550 no such mailbox'`, reason: rebase.ReasonFailed},
	{when: "It was cancelled", row: `last_error = '421 try again later'`, extra: func(d *desk) { d.cancel("cancelled by ann: the order was withdrawn") }, reason: rebase.ReasonCancelled},
	// The error of the attempt before is not why it was cancelled.
	{when: "It was cancelled without a reason", row: `last_error = '421 try again later'`, extra: func(d *desk) { d.cancel("") }, reason: rebase.ReasonCancelled},
}

// held is a claim of the worker w; of ended the lease is over.
const (
	held  = `status = 'running', fence = 1, locked_by = 'w', locked_until = now() + interval '5 min'`
	ended = `status = 'running', fence = 1, locked_by = 'w', locked_until = now() - interval '1 s'`
)

func (d *desk) cancel(reason string) {
	require.NoError(d.t, d.q.Cancel(d.t.Context(), invoice, reason))
}

// lives adds a worker of another task.
func (d *desk) lives() {
	d.exec(`insert into rebase.workers (id, host, tasks, lease, concurrency) values ('v', 'h', '{other}', '5 min', 5)`)
}

// busy makes a job that the worker w holds.
func (d *desk) busy(task, lane string) {
	d.t.Helper()
	d.claimed(d.enqueue(task, &rebase.EnqueueOptions{Lane: lane}).ID)
}

// locked takes a lock on the job's row until the test ends.
func (d *desk) locked() {
	d.t.Helper()
	tx := d.begin(pgx.TxOptions{})
	_, err := tx.Exec(d.t.Context(), `select from rebase.jobs where id = $1 for update`, invoice)
	require.NoError(d.t, err)
}

// J19: for every Reason, the fields and the sentence.
func TestJ19EveryReasonHasItsSentence(t *testing.T) {
	t.Parallel()
	sentences := make([]string, len(explainCases))
	t.Run("cases", func(t *testing.T) {
		for i, c := range explainCases {
			t.Run(c.when, func(t *testing.T) {
				t.Parallel()
				sentences[i] = plain(c.explain(t))
			})
		}
	})
	var b strings.Builder
	seen := map[rebase.Reason]bool{}
	fmt.Fprintf(&b, "| what is so | `Reason` | the sentence |\n|---|---|---|\n")
	for i, c := range explainCases {
		seen[c.reason] = true
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", c.when, c.reason, sentences[i])
	}
	require.Len(t, seen, 16, "a case for each Reason")
	compareDocument(t, b.String())
}

// explain makes the state and asks.
func (c explainCase) explain(t *testing.T) string {
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (id, task) values ($1, 'send-invoice')`, invoice)
	if c.row != "" {
		d.exec(`update rebase.jobs set `+c.row+` where id = $1`, invoice)
	}
	if c.worker != "" {
		d.exec(`insert into rebase.workers (id, host, tasks, lease, concurrency, seen_at, limits) values ('w', 'h', '{send-invoice,other}', '5 min', ` + c.worker + `)`)
	}
	if c.extra != nil {
		c.extra(d)
	}
	x, err := d.q.Explain(t.Context(), invoice)
	require.NoError(t, err)
	require.Equal(t, c.reason, x.Reason, x.String())
	require.EqualValues(t, invoice, x.Job.ID)
	if c.also != nil {
		c.also(t, x)
	}
	return x.String()
}

var (
	timeOfDay = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`)
	period    = regexp.MustCompile(`in [0-9.]+m?s|in \dm[0-9.]+s`)
	process   = regexp.MustCompile(`process \d+`)
)

// plain is the sentence without what varies.
func plain(s string) string {
	s = timeOfDay.ReplaceAllString(s, "2026-03-01 12:00:00Z")
	s = period.ReplaceAllString(s, "in 42s")
	return process.ReplaceAllString(s, "process 2718")
}

// compareDocument compares what stands between the document's marks, or writes it.
func compareDocument(t *testing.T, want string) {
	t.Helper()
	const file, begin, end = "docs/explain.md", "<!-- generated -->\n", "<!-- end -->\n"
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(raw), begin)
	require.True(t, found)
	got, tail, found := strings.Cut(rest, end)
	require.True(t, found)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644))
		return
	}
	require.Equal(t, want, got, "run the test with -update")
}

// J19: a real worker's job, asked about from its own handler, and others behind it.
func TestJ19ExplainKnowsARealWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began, release := make(chan int64), make(chan struct{})
	r.enqueueMany("x", 2, nil)
	s := r.handle("x", &rebase.WorkerOptions{Concurrency: 1}, func(_ context.Context, job *rebase.Job) error {
		began <- job.ID
		<-release
		return nil
	})
	first := await(t, began)
	x, err := r.q.Explain(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, rebase.ReasonRunning, x.Reason, x.String())
	require.Equal(t, []int{1, 1}, []int{x.Slots, x.Busy}, "the worker said its slots before its first claim")
	second := ask[int64](r, `select id from rebase.jobs where id <> $1`, first)
	x, err = r.q.Explain(t.Context(), second)
	require.NoError(t, err)
	require.Contains(t, []rebase.Reason{rebase.ReasonSlotsBusy, rebase.ReasonClaimedAhead}, x.Reason, x.String())
	close(release)
	require.Equal(t, second, await(t, began))
	r.ends(second, rebase.StatusSucceeded)
	require.NoError(t, s.stop())
	third := r.enqueue("x", nil)
	x, err = r.q.Explain(t.Context(), third)
	require.NoError(t, err)
	require.Equal(t, rebase.ReasonUnserved, x.Reason, "a worker that has ended is gone: %s", x)
	_, err = r.q.Explain(t.Context(), 404)
	require.ErrorIs(t, err, rebase.ErrNotFound)
}
