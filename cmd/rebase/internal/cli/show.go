package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// show: one job with its whole story, and the sentence that says why it is where it is. Both
// come from one read, so they can't contradict each other.

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a job, its history, and why it is where it is",
		Long: "Shows a job: why it is where it is, its row, its attempts, and its payload.",
		Args: idArgs(takes(1, 1)),
		RunE: a.with(func(ctx context.Context, d *db, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			ctx, cancel := d.limit(ctx)
			defer cancel()
			x, err := d.q.Explain(ctx, ids[0])
			if errors.Is(err, rebase.ErrNotFound) {
				return &noJobError{"show", ids[0]}
			}
			if err != nil {
				return err
			}
			if a.json {
				return printJSON(a.out, struct {
					jobRecord
					Reason      rebase.Reason `json:"reason"`
					Explanation string        `json:"explanation"`
				}{recordOf(x.Job), x.Reason, x.String()})
			}
			a.show(x)
			return nil
		}),
	}
}

func (a *app) show(x *rebase.Explanation) {
	j := x.Job
	fmt.Fprintf(a.out, "%s\n\n", a.wrap(clean(x.String())))
	at := func(t *time.Time) string {
		if t == nil || t.IsZero() {
			return ""
		}
		return instant(*t) + "  " + a.paint(dim, since(x.At, *t))
	}
	a.fields(a.out,
		"id", fmt.Sprint(j.ID),
		"task", clean(j.Task),
		"lane", clean(j.Lane),
		"status", a.paint(statusCell(j.Status).style, string(j.Status)),
		"attempts", fmt.Sprintf("%d of %d, %s", j.Attempts, j.MaxAttempts, plural(j.Runs, "run")),
		"key", clean(j.IdempotencyKey),
		"meta", pairs(j.Meta),
		"slot", at(&j.Slot),
		"created", at(&j.CreatedAt),
		"run at", at(&j.RunAt),
		"started", at(j.StartedAt),
		"finished", at(j.FinishedAt),
		"locked by", clean(j.LockedBy),
		"locked until", at(j.LockedUntil),
	)
	a.block("last error", cleanLines(j.LastError))
	a.history(j)
	a.block("payload", payloadLines(j.Payload))
}

// block prints lines under a title, if there are any.
func (a *app) block(title string, lines []string) {
	if len(lines) == 1 && lines[0] == "" {
		return
	}
	fmt.Fprintf(a.out, "\n%s\n", a.paint(bold, title))
	for _, line := range lines {
		fmt.Fprintln(a.out, "  "+line)
	}
}

func (a *app) history(j *rebase.Job) {
	if len(j.History) == 0 {
		return
	}
	fmt.Fprintf(a.out, "\n%s\n", a.paint(bold, "history"))
	t := a.table(">  RUN", ">ATTEMPT", "ENDED", "OUTCOME", ">TOOK", "WORKER", "ERROR")
	for _, h := range j.History {
		took := ""
		if !h.StartedAt.IsZero() {
			took = age(h.EndedAt.Sub(h.StartedAt))
		}
		t.add(h.Run, h.Attempt, instant(h.EndedAt), outcomeCell(h.Outcome), took, clean(h.Worker), firstLine(h.Error))
	}
	t.flush(a.out)
}

func outcomeCell(outcome string) cell {
	styles := map[string]style{"succeeded": green, "failed": red, "dead": red, "crashed": red, "setback": yellow, "snoozed": yellow}
	return cell{clean(outcome), styles[outcome]}
}

// payloadLines is for reading; --json has the payload as it is.
func payloadLines(raw json.RawMessage) []string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return cleanLines(string(raw))
	}
	return cleanLines(b.String())
}

// wrap breaks a sentence at a terminal's edge.
func (a *app) wrap(s string) string {
	if !a.OutTTY {
		return s
	}
	width, _ := a.Size()
	var b strings.Builder
	at := 0
	for i, word := range strings.Split(s, " ") {
		n := widths.StringWidth(word)
		switch {
		case i > 0 && at+1+n > width:
			b.WriteByte('\n')
			at = 0
		case i > 0:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}
