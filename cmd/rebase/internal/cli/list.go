package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// list: jobs by filter. Without a status it shows what is unfinished and what has failed,
// because that is what people look for, and because each of the two has an index that history
// is not in.

const listLong = `Lists jobs: unfinished and failed ones, or those of the statuses that are named.

Unfinished jobs come by task, lane and run time, finished ones in the order in which they
ended. A filter for what is rare in a long history reads all of that history: narrow it with
--finished-after, which has an index.`

var statuses = []string{"pending", "running", "failed", "succeeded", "cancelled"}

type listFlags struct {
	filterFlags
	status []string
	limit  int
}

func (a *app) listCommand() *cobra.Command {
	f := new(listFlags)
	cmd := &cobra.Command{
		Use: "list", Short: "List jobs", Long: listLong, Args: takesFlags("show ID"),
		Example: "  rebase list --status failed --task send-invoice\n  rebase list --status succeeded --finished-after 10m --json",
		PreRunE: func(*cobra.Command, []string) error { return f.check() },
		RunE:    a.with(func(ctx context.Context, d *db, _ []string) error { return a.list(ctx, d, f) }),
	}
	a.addFilter(cmd, &f.filterFlags)
	cmd.Flags().StringSliceVar(&f.status, "status", nil, "jobs with this `status`, or 'all'; may be repeated (default pending,running,failed)")
	cmd.Flags().IntVar(&f.limit, "limit", 50, "how many jobs at most; 0 for all")
	a.completeFlag(cmd, "status", fixed(append(slices.Clone(statuses), "all")...))
	return cmd
}

func (f *listFlags) check() error {
	if f.limit < 0 {
		return &usageError{"--limit", fmt.Sprint(f.limit), "must not be below zero"}
	}
	for _, s := range f.status {
		if s != "all" && !slices.Contains(statuses, s) {
			return &usageError{"--status", s, "want " + strings.Join(statuses, ", ") + " or all"}
		}
	}
	_, err := parseMeta(f.meta)
	return err
}

// wanted are the statuses to list one after the other; "" is all of them in one go.
func (f *listFlags) wanted() []string {
	switch {
	case slices.Contains(f.status, "all"), len(f.status) == 0 && f.ended():
		return []string{""}
	case len(f.status) == 0:
		return []string{"pending", "running", "failed"}
	}
	return slices.Compact(slices.SortedFunc(slices.Values(f.status), func(x, y string) int {
		return cmp.Compare(slices.Index(statuses, x), slices.Index(statuses, y))
	}))
}

func (a *app) list(ctx context.Context, d *db, f *listFlags) error {
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	filter, err := f.filter(now)
	if err != nil {
		return err
	}
	t, n := a.table(">ID", "STATUS", "TASK", "LANE", ">ATTEMPTS", "WHEN", "LAST ERROR"), 0
	for _, status := range f.wanted() {
		if f.limit > 0 && n >= f.limit {
			break
		}
		filter.Status, filter.Limit = rebase.Status(status), max(f.limit-n, 0)
		err := d.each(ctx, filter, func(j *rebase.Job) error {
			n++
			if a.json {
				return printJSON(a.out, recordOf(j))
			}
			t.job(j, now)
			if len(t.rows) == 200 {
				t.flush(a.out)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if !a.json {
		t.flush(a.out)
		a.listed(n, f.limit)
	}
	return nil
}

// listed says what the table doesn't: that there was nothing, or perhaps more.
func (a *app) listed(n, limit int) {
	switch {
	case n == 0:
		fmt.Fprintln(a.Err, "no such jobs")
	case n == limit:
		_ = a.out.Flush() // the table comes first; its error is told at the end
		fmt.Fprintf(a.Err, "%s shown, there may be more: --limit 0 shows all\n", plural(n, "job"))
	}
}

func (t *table) job(j *rebase.Job, now time.Time) {
	t.add(j.ID, statusCell(j.Status), clean(j.Task), clean(j.Lane), fmt.Sprintf("%d/%d", j.Attempts, j.MaxAttempts), when(j, now), firstLine(j.LastError))
}

func statusCell(s rebase.Status) cell {
	styles := map[rebase.Status]style{"running": cyan, "succeeded": green, "failed": red, "cancelled": dim}
	return cell{clean(string(s)), styles[s]}
}
