package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// retry, cancel and delete: what is done to jobs that are named. Each id is a transaction of
// its own. One that can't be done doesn't stop the others, and is told by its number.

// A change is one of the three.
type change struct {
	verb, done string // "retry", "retried"
	do         func(ctx context.Context, d *db, id int64) error
	// allowed is what the library would say, for --dry-run.
	allowed func(rebase.Status) bool
}

func finished(s rebase.Status) bool {
	return s != rebase.StatusPending && s != rebase.StatusRunning
}

func (a *app) retryCommand() *cobra.Command {
	c := change{"retry", "retried", func(ctx context.Context, d *db, id int64) error { return d.q.Retry(ctx, id) }, finished}
	return a.changeCommand(c, "Make finished jobs pending again",
		`Makes finished jobs pending again, due at once: dead letters after their cause was mended, or
jobs that are to run once more. They keep their ids and histories, and have all their attempts.`)
}

func (a *app) cancelCommand() *cobra.Command {
	var reason string
	c := change{"cancel", "cancelled", func(ctx context.Context, d *db, id int64) error { return d.q.Cancel(ctx, id, reason) },
		func(s rebase.Status) bool { return !finished(s) || s == rebase.StatusCancelled }}
	cmd := a.changeCommand(c, "Cancel jobs that have not ended",
		`Cancels jobs: pending ones at once; of running ones the row at once, and the handler's context
ends a moment later. Cancelling a cancelled job is no error.`)
	cmd.Flags().StringVar(&reason, "reason", "", "becomes the job's last error")
	return cmd
}

func (a *app) deleteCommand() *cobra.Command {
	c := change{"delete", "deleted", func(ctx context.Context, d *db, id int64) error { return d.q.Delete(ctx, id) },
		func(s rebase.Status) bool { return s != rebase.StatusRunning }}
	return a.changeCommand(c, "Delete jobs that are not running",
		`Deletes jobs that are not running, with their histories. Cancel a running one first.`)
}

func (a *app) changeCommand(c change, short, long string) *cobra.Command {
	return a.guarded(&cobra.Command{
		Use: c.verb + " ID...", Short: short, Long: long + "\n\nMore than one needs a confirmation.",
		Args: idArgs(takes(1, -1)),
		RunE: a.with(func(ctx context.Context, d *db, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.change(ctx, d, c, ids)
		}),
	})
}

func (a *app) change(ctx context.Context, d *db, c change, ids []int64) error {
	if len(ids) > 1 && !a.dryRun {
		if err := a.confirm(ctx, fmt.Sprintf("This will %s %s.", c.verb, plural(len(ids), "job"))); err != nil {
			return err
		}
	}
	code := codeOK
	for _, id := range ids {
		err := a.changeOne(ctx, d, c, id)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := a.tell(c, id, err); err != nil {
			return err
		}
		if err != nil && code == codeOK {
			code = codeOf(err)
		}
	}
	if code != codeOK {
		return &reportedError{code}
	}
	return nil
}

func (a *app) changeOne(ctx context.Context, d *db, c change, id int64) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	if !a.dryRun {
		return c.do(ctx, d, id)
	}
	job, err := d.q.Job(ctx, id)
	if err != nil {
		return err
	}
	if !c.allowed(job.Status) {
		return &rebase.StateError{ID: id, Status: job.Status, Operation: c.verb}
	}
	return nil
}

// A changeRecord is what became of one job.
type changeRecord struct {
	ID     int64   `json:"id"`
	Done   bool    `json:"done"`
	DryRun bool    `json:"dry_run"`
	Error  *string `json:"error"`
}

func (a *app) tell(c change, id int64, err error) error {
	text := ""
	if err != nil {
		if errors.Is(err, rebase.ErrNotFound) {
			err = &noJobError{c.verb, id}
		}
		text = a.words(err)
		fmt.Fprintln(a.Err, "rebase: "+clean(text))
	}
	switch {
	case a.json:
		return printJSON(a.out, changeRecord{id, err == nil && !a.dryRun, a.dryRun, orNull(text)})
	case err != nil:
		return nil
	case a.dryRun:
		_, err = fmt.Fprintf(a.out, "would %s job %d\n", c.verb, id)
	default:
		_, err = fmt.Fprintf(a.out, "%s job %d\n", c.done, id)
	}
	return err
}
