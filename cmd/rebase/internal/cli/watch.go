package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// watch: the queue, live. On a terminal one picture that is drawn over and over, elsewhere a
// line for each task and frame, so that it can be kept in a file. An interrupt is how it is
// meant to end, so that is no failure.

const watchLong = `Shows the queue again and again: what waits, what runs, and how many jobs a second were enqueued,
have succeeded, and have failed for good, as a mean of the last 10 frames.

Rates lag by half a second, so that nothing committed late is missed. Where a frame would have
to count more than 20,000 rows it counts so many, and "+" says that there were more.`

// minInterval keeps a mistyped interval from being a load.
const minInterval = 100 * time.Millisecond

func (a *app) watchCommand() *cobra.Command {
	count, interval := 0, time.Second
	cmd := &cobra.Command{
		Use: "watch", Short: "Watch the queue, with rates", Long: watchLong, Args: takes(0, 0),
		PreRunE: func(*cobra.Command, []string) error {
			switch {
			case count < 0:
				return &usageError{"--count", fmt.Sprint(count), "must not be below zero"}
			case interval < minInterval:
				return &usageError{"--interval", interval.String(), "must be at least " + minInterval.String()}
			}
			return nil
		},
		RunE: a.with(func(ctx context.Context, d *db, _ []string) error { return a.watch(ctx, d, count, interval) }),
	}
	cmd.Flags().IntVar(&count, "count", 0, "end after so many frames; 0 goes on until it is interrupted")
	cmd.Flags().DurationVar(&interval, "interval", interval, "time from frame to frame")
	return cmd
}

func (a *app) watch(ctx context.Context, d *db, count int, interval time.Duration) error {
	var f flow
	for n := 1; ; n++ {
		began := time.Now()
		fr, err := a.frame(ctx, d, &f)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = a.draw(fr, n == 1)
		}
		if err == nil {
			err = a.out.Flush()
		}
		if err != nil || n == count {
			return err
		}
		if pause(ctx, interval-time.Since(began)) != nil {
			return nil
		}
	}
}

// A frame is what is drawn, and what watch --json prints.
type frame struct {
	At          time.Time     `json:"at"`
	Tasks       []frameRecord `json:"tasks"`
	Workers     int           `json:"workers"`
	DeadLetters int           `json:"dead_letters"`
	AtLeast     bool          `json:"rates_at_least"` // there was more than is counted
}

type frameRecord struct {
	Task        string  `json:"task"`
	Ready       int     `json:"ready"`
	Scheduled   int     `json:"scheduled"`
	Running     int     `json:"running"`
	Retrying    int     `json:"retrying"`
	Capped      bool    `json:"capped"`
	OldestReady float64 `json:"oldest_ready_seconds"`
	Enqueued    float64 `json:"enqueued_per_second"`
	Succeeded   float64 `json:"succeeded_per_second"`
	Failed      float64 `json:"failed_per_second"`
	state       cell
}

func (a *app) frame(ctx context.Context, d *db, f *flow) (*frame, error) {
	limited, cancel := d.limit(ctx)
	defer cancel()
	s, err := d.q.Stats(limited)
	if err != nil {
		return nil, err
	}
	if err := f.look(ctx, d); err != nil {
		return nil, err
	}
	byTask := map[string]frameRecord{}
	for _, t := range s.Tasks {
		byTask[t.Task] = frameRecord{Task: t.Task, Ready: t.Ready, Scheduled: t.Scheduled, Running: t.Running + t.ClaimedAhead,
			Retrying: t.Retrying, Capped: t.Capped, OldestReady: t.OldestReady.Seconds(), state: stateCell(t, s)}
	}
	rates, capped := f.rates()
	for task, r := range rates {
		t := byTask[task]
		t.Task, t.Enqueued, t.Succeeded, t.Failed = task, r[enqueued], r[succeeded], r[failed]
		byTask[task] = t
	}
	fr := &frame{At: s.At.UTC(), Tasks: []frameRecord{}, Workers: len(s.Workers), DeadLetters: s.DeadLetters, AtLeast: capped}
	for _, t := range byTask {
		fr.Tasks = append(fr.Tasks, t)
	}
	slices.SortFunc(fr.Tasks, func(x, y frameRecord) int { return strings.Compare(x.Task, y.Task) })
	return fr, nil
}

func (a *app) draw(fr *frame, first bool) error {
	switch {
	case a.json:
		return printJSON(a.out, fr)
	case !a.OutTTY:
		a.lines(fr)
		return nil
	}
	_, height := a.Size()
	picture := strings.SplitAfter(a.picture(fr), "\n")
	if len(picture) > height {
		picture = append(picture[:max(height-2, 1)], fmt.Sprintf("… %d lines more\n", len(picture)-height+1))
	}
	begin := "\x1b[H"
	if first {
		begin += "\x1b[2J"
	}
	// Each line clears what is left of the old one: a cleared screen would flicker.
	_, err := a.out.WriteString(begin + strings.ReplaceAll(strings.Join(picture, ""), "\n", "\x1b[K\n") + "\x1b[J")
	return err
}

// picture is a frame for a terminal.
func (a *app) picture(fr *frame) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s   %s   %s\n\n", a.paint(bold, instant(fr.At)),
		plural(fr.Workers, "live worker"), a.paint(warn("", fr.DeadLetters > 0, red).style, capped(fr.DeadLetters, rebase.StatsCap)+" dead letters"))
	t := a.table("TASK", ">READY", ">OLDEST", ">RUNNING", ">SCHEDULED", ">RETRYING", ">ENQUEUED/s", ">SUCCEEDED/s", ">FAILED/s", "STATE")
	plus := map[bool]string{true: "+"}
	more := plus[fr.AtLeast]
	for _, x := range fr.Tasks {
		oldest := ""
		if x.OldestReady > 0 {
			oldest = age(time.Duration(x.OldestReady * float64(time.Second)))
		}
		t.add(clean(x.Task), number(x.Ready)+plus[x.Capped], oldest, number(x.Running), number(x.Scheduled)+plus[x.Capped], number(x.Retrying),
			rate(x.Enqueued)+more, rate(x.Succeeded)+more, warn(rate(x.Failed)+more, x.Failed > 0, red), x.state)
	}
	if len(fr.Tasks) == 0 {
		fmt.Fprintln(&b, "no unfinished jobs, and nothing has ended lately")
	}
	t.flush(&b)
	return b.String()
}

// lines are a frame for a file or a pipe.
func (a *app) lines(fr *frame) {
	at := fr.At.Format(time.RFC3339)
	if len(fr.Tasks) == 0 {
		fmt.Fprintf(a.out, "%s workers=%d dead=%d tasks=0\n", at, fr.Workers, fr.DeadLetters)
	}
	for _, x := range fr.Tasks {
		fmt.Fprintf(a.out, "%s task=%s ready=%d oldest=%.1fs running=%d scheduled=%d retrying=%d enqueued/s=%.1f succeeded/s=%.1f failed/s=%.1f workers=%d dead=%d\n",
			at, word(x.Task), x.Ready, x.OldestReady, x.Running, x.Scheduled, x.Retrying, x.Enqueued, x.Succeeded, x.Failed, fr.Workers, fr.DeadLetters)
	}
}

// word quotes a name that is not one word.
func word(s string) string {
	if c := clean(s); c == s && !strings.ContainsAny(s, " \"=") {
		return s
	}
	return fmt.Sprintf("%+q", s)
}

// rate has a digit behind the point while that says something.
func rate(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 0.1:
		return "<0.1"
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return number(int64(x + 0.5))
}
