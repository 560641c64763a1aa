package cli_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/cmd/rebase/internal/cli"
)

// watch: what is counted, and how it is drawn.

type watched struct {
	At      time.Time `json:"at"`
	Workers int       `json:"workers"`
	Dead    int       `json:"dead_letters"`
	AtLeast bool      `json:"rates_at_least"`
	Tasks   []struct {
		Task      string  `json:"task"`
		Ready     int     `json:"ready"`
		Scheduled int     `json:"scheduled"`
		Running   int     `json:"running"`
		Retrying  int     `json:"retrying"`
		Capped    bool    `json:"capped"`
		Oldest    float64 `json:"oldest_ready_seconds"`
		Enqueued  float64 `json:"enqueued_per_second"`
		Succeeded float64 `json:"succeeded_per_second"`
		Failed    float64 `json:"failed_per_second"`
	} `json:"tasks"`
}

// The first frame is a mean of the last ten seconds.
func TestWatchBeginsWithTheRatesOfTheLastTenSeconds(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, created_at, run_at) select 'old', now() - interval '1 minute', now() - interval '1 minute' from generate_series(1, 500)`)
	d.exec(`insert into rebase.jobs (task, created_at) select 'mail', now() - interval '5 s' from generate_series(1, 100)`)
	d.exec(`insert into rebase.jobs (task, status, dead, created_at, finished_at) select 'mail', case when i <= 20 then 'failed' else 'succeeded' end, i <= 20, now() - interval '1 minute', now() - interval '5 s'
		from generate_series(1, 80) i`)
	frames := decode[watched](t, d.ok("watch", "--count", "1", "--json"))
	require.Len(t, frames, 1)
	require.Len(t, frames[0].Tasks, 2)
	mail, old := frames[0].Tasks[0], frames[0].Tasks[1]
	require.Equal(t, "mail", mail.Task)
	require.InDelta(t, 18.0, mail.Enqueued, 0.01, "the 80 that follow in the order of ids count, too: they are new")
	require.InDelta(t, 6.0, mail.Succeeded, 0.01)
	require.InDelta(t, 2.0, mail.Failed, 0.01)
	require.Zero(t, old.Enqueued)
	require.Equal(t, 500, old.Ready)
	require.GreaterOrEqual(t, old.Oldest, 60.0)
	require.Equal(t, 20, frames[0].Dead)
}

// Every job is counted once, however the frames fall between its rows: the sum of the rates
// over all frames is what was enqueued and what has ended.
func TestWatchCountsEveryJobOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	w := rebase.NewWorker(d.q, nil)
	w.Register("mail", func(context.Context, *rebase.Job) error { return nil }, nil)
	d.work(w)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const jobs = 300
	made := make(chan error, 1)
	out := &notebook{}
	began := false
	out.wrote = func(text string) {
		if !began {
			began = true
			go func() { made <- d.stream("mail", jobs) }()
		}
		frames := decode[watched](t, text)
		last := frames[len(frames)-1]
		// With the tenth frame the first falls out of the window, so look while all are in it.
		if len(frames) >= 8 || len(last.Tasks) == 1 && last.Tasks[0].Succeeded*last.At.Sub(frames[0].At).Seconds() > 10*jobs {
			cancel()
		}
	}
	var errs strings.Builder
	require.Zero(t, cli.Run(ctx, []string{"watch", "--json", "--interval", "1s"}, d.streams(out, &errs)), errs.String())
	require.NoError(t, <-made)
	frames := decode[watched](t, out.text.String())
	last := frames[len(frames)-1]
	require.Len(t, last.Tasks, 1)
	seconds := 10 + last.At.Sub(frames[0].At).Seconds()
	require.InDelta(t, jobs, last.Tasks[0].Enqueued*seconds, 0.02*jobs, "%+v", frames)
	require.InDelta(t, jobs, last.Tasks[0].Succeeded*seconds, 0.02*jobs, "%+v", frames)
}

// Ids are drawn in order and committed in any: who commits late is counted, too.
func TestWatchCountsWhatIsCommittedLate(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, created_at) values ('old', now() - interval '1 minute')`)
	tx, err := d.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // it is committed by then
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	counted := 0.0
	out := &notebook{}
	out.wrote = func(text string) {
		frames := decode[watched](t, text)
		last := frames[len(frames)-1]
		switch len(frames) {
		case 1:
			_, err = tx.Exec(t.Context(), `insert into rebase.jobs (task) select 'late' from generate_series(1, 100)`)
			require.NoError(t, err)
			d.exec(`insert into rebase.jobs (task, created_at) values ('late', now() + interval '2 s')`) // it stays young, however slow the machine
		case 2:
			require.NoError(t, tx.Commit(t.Context()))
		case 10: // the window's last with the first frame in it
			cancel()
		}
		for _, task := range last.Tasks {
			if task.Task == "late" {
				counted = task.Enqueued * (10 + last.At.Sub(frames[0].At).Seconds())
			}
		}
	}
	var errs strings.Builder
	require.Zero(t, cli.Run(ctx, []string{"watch", "--json", "--interval", "500ms"}, d.streams(out, &errs)), errs.String())
	require.InDelta(t, 101, counted, 3)
}

// stream enqueues one by one.
func (d *desk) stream(task string, n int) error {
	for range n {
		if _, err := d.q.Enqueue(d.t.Context(), task, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// Without a terminal: a line for each task and frame.
func TestWatchPrintsPlainLinesForAPipe(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	require.Regexp(t, `^20\S+Z workers=0 dead=0 tasks=0\n$`, d.ok("watch", "--count", "1"))
	d.enqueue("b", nil)
	d.enqueue("a task", &rebase.EnqueueOptions{Delay: time.Hour})
	out := d.ok("watch", "--count", "2", "--interval", "100ms")
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 4)
	require.Regexp(t, `(?m)^20\S+Z task=b ready=1 oldest=\d+\.\ds running=0 scheduled=0 retrying=0 enqueued/s=\S+ succeeded/s=0.0 failed/s=0.0 workers=0 dead=0$`, out)
	require.Regexp(t, `(?m)^20\S+Z task="a task" ready=0 oldest=0.0s running=0 scheduled=1 `, out)
}

// On a terminal one picture is drawn over the last, and is never higher than the terminal.
func TestWatchRedrawsATerminal(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, task := range []string{"a", "b", "c", "d", "e", "f"} {
		d.enqueue(task, nil)
	}
	d.terminal, d.height = true, 7
	out := d.ok("watch", "--count", "3", "--interval", "100ms")
	frames := strings.Split(out, "\x1b[H")[1:]
	require.Len(t, frames, 3)
	for i, f := range frames {
		require.Equal(t, i == 0, strings.HasPrefix(f, "\x1b[2J"), "only the first clears the screen")
		require.True(t, strings.HasSuffix(f, "\x1b[J"))
		require.LessOrEqual(t, strings.Count(f, "\n"), 6)
		require.Contains(t, f, "… 4 lines more")
		require.Contains(t, f, "SUCCEEDED/s")
	}
	d.height = 50
	require.Contains(t, d.ok("watch", "--count", "1"), "no live worker")
}

func TestWatchEndsWithAnInterrupt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &notebook{wrote: func(text string) {
		if strings.Count(text, "\n") == 2 {
			cancel()
		}
	}}
	var errs bytes.Buffer
	require.Zero(t, cli.Run(ctx, []string{"watch", "--interval", "100ms"}, d.streams(out, &errs)))
	require.Empty(t, errs.String())
}
