package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// enqueue: one job, by hand or from a script. What can't be stored is refused by the library
// before any SQL, and is a mistake in the command line.

// maxInput bounds what is read from a pipe; the library's own limit, 1 MiB, is what tells.
const maxInput = 2 << 20

type enqueueFlags struct {
	opts  rebase.EnqueueOptions
	delay ageFlag
	runAt string
	meta  []string
}

func (a *app) enqueueCommand() *cobra.Command {
	f := new(enqueueFlags)
	cmd := &cobra.Command{
		Use: "enqueue TASK [PAYLOAD|-]", Short: "Make a job",
		Long: `Makes a job. The payload is JSON; "-" reads it from standard input, and without one it is null.

If an unfinished job of the task has the key already, no job is made; that is no error. A note
says so when no live worker serves the task.`,
		Example:           "  rebase enqueue send-welcome '{\"email\": \"ada@example.org\"}'\n  jq .order order.json | rebase enqueue send-invoice - --key order-4711 --delay 10m",
		Args:              takes(1, 2),
		PreRunE:           func(cmd *cobra.Command, _ []string) error { return f.check(cmd) },
		ValidArgsFunction: a.taskNames,
		RunE:              a.with(func(ctx context.Context, d *db, args []string) error { return a.enqueue(ctx, d, f, args) }),
	}
	flags := cmd.Flags()
	flags.Var(&f.delay, "delay", "how long to wait, from now")
	flags.StringVar(&f.runAt, "run-at", "", "when to run, such as 2026-03-01T12:00:00Z")
	flags.StringVar(&f.opts.IdempotencyKey, "key", "", "idempotency key: one unfinished job for each task and key")
	flags.StringVar(&f.opts.Lane, "lane", "", "tenant, endpoint or customer that the job belongs to")
	flags.StringArrayVar(&f.meta, "meta", nil, "entry that travels with the job, `NAME=VALUE`; may be repeated")
	flags.IntVar(&f.opts.MaxAttempts, "max-attempts", 3, "how often the job is tried")
	return cmd
}

func (f *enqueueFlags) check(cmd *cobra.Command) (err error) {
	f.opts.Delay = time.Duration(f.delay)
	if f.runAt != "" {
		if f.opts.RunAt, err = time.Parse(time.RFC3339, f.runAt); err != nil {
			return &usageError{"--run-at", f.runAt, "want a time such as 2026-03-01T12:00:00Z"}
		}
		if cmd.Flags().Changed("delay") {
			return &usageError{"--run-at", f.runAt, "can't be used with --delay"}
		}
	}
	if f.opts.MaxAttempts < 1 {
		return &usageError{"--max-attempts", fmt.Sprint(f.opts.MaxAttempts), "must be at least 1"}
	}
	f.opts.Meta, err = parseMeta(f.meta)
	return err
}

func (a *app) enqueue(ctx context.Context, d *db, f *enqueueFlags, args []string) error {
	payload, err := a.payload(args[1:])
	if err != nil {
		return err
	}
	ctx, cancel := d.limit(ctx)
	defer cancel()
	done, err := d.q.Enqueue(ctx, args[0], payload, &f.opts)
	if err != nil {
		return err
	}
	a.noteUnserved(ctx, d, done)
	switch {
	case a.json:
		return printJSON(a.out, struct {
			ID        *int64 `json:"id"`
			Duplicate bool   `json:"duplicate"`
		}{orNull(done.ID), done.Duplicate})
	case done.Duplicate && done.ID == 0:
		_, err = fmt.Fprintln(a.out, "no job made: another had the key, and has ended meanwhile")
	case done.Duplicate:
		_, err = fmt.Fprintf(a.out, "no job made: job %d has the key\n", done.ID)
	default:
		_, err = fmt.Fprintf(a.out, "enqueued job %d\n", done.ID)
	}
	return err
}

// noteUnserved says so when nobody serves the job's task: a name that was mistyped waits for
// ever. The job is made, whether this can be looked up or not.
func (a *app) noteUnserved(ctx context.Context, d *db, done rebase.Enqueued) {
	if done.Duplicate {
		return
	}
	if x, err := d.q.Explain(ctx, done.ID); err == nil && x.Job.Status == rebase.StatusPending && x.Workers == 0 {
		fmt.Fprintf(a.Err, "note: no live worker serves task %s\n", clean(x.Job.Task))
	}
}

func (a *app) payload(args []string) (json.RawMessage, error) {
	if len(args) == 0 {
		return json.RawMessage("null"), nil
	}
	if args[0] != "-" {
		return json.RawMessage(args[0]), nil
	}
	raw, err := io.ReadAll(io.LimitReader(a.In, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read the payload: %w", err)
	}
	if len(raw) > maxInput {
		return nil, &usageError{"payload", "-", fmt.Sprintf("is longer than %s bytes", number(maxInput))}
	}
	return raw, nil
}
