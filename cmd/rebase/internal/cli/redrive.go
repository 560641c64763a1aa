package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// redrive: many dead letters at once. They are taken window by window of the time at which
// they ended, so that each is looked at once, each window has --timeout, and an interrupt
// leaves whole windows behind. What fails again meanwhile ended after the command began and is
// not taken a second time.

const redriveLong = `Makes dead letters pending again, the oldest first, as retry does with one. It says how many
there are and asks before it begins; try a few with --limit before all.

A job whose idempotency key a newer one has stays where it is, and so does one whose row
somebody has locked. An interrupt ends it; what was done stays done.`

func (a *app) redriveCommand() *cobra.Command {
	f, limit := new(filterFlags), 0
	cmd := a.guarded(&cobra.Command{
		Use: "redrive", Short: "Make many dead letters pending again", Long: redriveLong, Args: takesFlags("retry ID..."),
		Example: "  rebase redrive --task send-invoice --error 'connection refused' --limit 10",
		PreRunE: func(*cobra.Command, []string) error {
			if limit < 0 {
				return &usageError{"--limit", fmt.Sprint(limit), "must not be below zero"}
			}
			_, err := parseMeta(f.meta)
			return err
		},
		RunE: a.with(func(ctx context.Context, d *db, _ []string) error {
			now, err := d.now(ctx)
			if err != nil {
				return err
			}
			filter, err := f.filter(now)
			if err != nil {
				return err
			}
			filter.Status = rebase.StatusFailed
			if filter.FinishedBefore.IsZero() || filter.FinishedBefore.After(now) {
				filter.FinishedBefore = now
			}
			return a.redrive(ctx, d, filter, limit)
		}),
	})
	a.addFilter(cmd, f)
	cmd.Flags().IntVar(&limit, "limit", 0, "how many at most; 0 for all")
	return cmd
}

// A redriveRecord is what redrive --json prints.
type redriveRecord struct {
	Matched  int  `json:"matched"`
	Redriven int  `json:"redriven"`
	DryRun   bool `json:"dry_run"`
}

func (a *app) redrive(ctx context.Context, d *db, f rebase.Filter, limit int) error {
	tasks := map[string]int{}
	total := 0
	counted := f
	counted.Limit = limit
	err := d.each(ctx, counted, func(j *rebase.Job) error {
		tasks[j.Task]++
		total++
		return nil
	})
	if err != nil {
		return err
	}
	what := plural(total, "dead letter") + byName(tasks)
	switch {
	case a.dryRun && a.json:
		return printJSON(a.out, redriveRecord{total, 0, true})
	case a.dryRun:
		_, err := fmt.Fprintf(a.out, "would redrive %s\n", what)
		return err
	case total > 0:
		if err := a.confirm(ctx, "This will redrive "+what+"."); err != nil {
			return err
		}
	}
	n, err := a.redriveAll(ctx, d, f, total, limit)
	if a.json {
		return errors.Join(err, printJSON(a.out, redriveRecord{total, n, false}))
	}
	fmt.Fprintf(a.out, "redriven %s of %s\n", number(n), plural(total, "dead letter"))
	return err
}

// redriveWindow is how many dead letters are taken at a time.
const redriveWindow = 1000

func (a *app) redriveAll(ctx context.Context, d *db, f rebase.Filter, total, limit int) (n int, err error) {
	b := &bar{a: a}
	defer b.clear()
	for seen := 0; limit == 0 || n < limit; {
		window := f
		window.Limit = redriveWindow
		found, last := 0, time.Time{}
		err := d.each(ctx, window, func(j *rebase.Job) error {
			found++
			last = *j.FinishedAt
			return nil
		})
		if err != nil || found == 0 {
			return n, err
		}
		window.Limit, window.FinishedBefore = 0, last.Add(time.Microsecond) // PostgreSQL's resolution
		if f.FinishedBefore.Before(window.FinishedBefore) {
			window.FinishedBefore = f.FinishedBefore
		}
		m, err := d.redrive(ctx, window, limit, n)
		n += m
		if err != nil {
			return n, err
		}
		seen += found
		f.FinishedAfter = window.FinishedBefore
		b.show(float64(min(seen, total))/float64(total), fmt.Sprintf("%s of %s redriven", number(n), number(total)))
	}
	return n, nil
}

func (d *db) redrive(ctx context.Context, window rebase.Filter, limit, done int) (int, error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	return d.q.Redrive(ctx, window, max(limit-done, 0))
}

// byName writes counts, the largest first.
func byName(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		if c := counts[y] - counts[x]; c != 0 {
			return c
		}
		return strings.Compare(x, y)
	})
	var parts []string
	for i, name := range names {
		if i == 5 {
			parts = append(parts, fmt.Sprintf("%d more", len(names)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s %s", clean(name), number(counts[name])))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
