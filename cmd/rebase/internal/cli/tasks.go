package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// pause and resume, and the names of tasks: which there are, to complete them in a shell, and
// to say so when a name is mistyped. A pause of a task that nobody knows is taken all the
// same: the deploy that brings it may come later.

func (a *app) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pause TASK", Short: "Stop the claiming of a task's jobs",
		Long: "Stops the claiming of a task's jobs in every process, until it is resumed. Those that run\nalready run on, and enqueues go on.",
		Args: takes(1, 1), ValidArgsFunction: a.taskNames,
		RunE: a.with(func(ctx context.Context, d *db, args []string) error { return a.setPaused(ctx, d, args[0], true) }),
	}
}

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resume TASK", Short: "End a pause", Long: "Ends the pause of a task. Sleeping workers are woken.",
		Args: takes(1, 1), ValidArgsFunction: a.taskNames,
		RunE: a.with(func(ctx context.Context, d *db, args []string) error { return a.setPaused(ctx, d, args[0], false) }),
	}
}

func (a *app) setPaused(ctx context.Context, d *db, task string, paused bool) error {
	limited, cancel := d.limit(ctx)
	defer cancel()
	do, done := d.q.ResumeTask, "resumed"
	if paused {
		do, done = d.q.PauseTask, "paused"
	}
	if err := do(limited, task); err != nil {
		return err
	}
	known, err := d.taskNames(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(known, task) {
		fmt.Fprintf(a.Err, "note: no job, worker or schedule has a task %s\n", clean(task))
	}
	if a.json {
		return printJSON(a.out, struct {
			Task   string `json:"task"`
			Paused bool   `json:"paused"`
		}{task, paused})
	}
	_, err = fmt.Fprintf(a.out, "%s task %s\n", done, clean(task))
	return err
}

// taskNamesSQL are the tasks of unfinished jobs, by a loose scan of jobs_unfinished, those that
// live workers serve, and those of schedules. History is not looked at.
const taskNamesSQL = `
with recursive found (task) as (
  (select p.task from rebase.jobs p where p.finished_at is null and p.crashes = 0 order by p.task limit 1)
  union all
  select (
    select p.task from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task > f.task
    order by p.task limit 1)
  from found f
  where f.task is not null
)
(select f.task from found f where f.task is not null limit 1000)
union
(select d.task from (select p.task from rebase.jobs p where p.dead order by p.finished_at desc limit 1000) d)
union
(select t.task from rebase.workers w cross join lateral unnest(w.tasks) t (task))
union
(select s.task from rebase.schedules s limit 1000)
order by 1`

func (d *db) taskNames(ctx context.Context) (names []string, err error) {
	err = d.in(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, taskNamesSQL) // CollectRows tells the error
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return names, err
}

// completionTimeout is how long a shell waits for names before there are none.
const completionTimeout = 500 * time.Millisecond

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completing asks the database for names. In a shell there is nobody to tell an error to.
func (a *app) completing(cmd *cobra.Command, ask func(context.Context, *db) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	d, err := a.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer d.pool.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	names, err := ask(ctx, d)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	// What would need an escape can't be typed, and a tab or a line end would break the list.
	return slices.DeleteFunc(names, func(s string) bool { return clean(s) != s }), cobra.ShellCompDirectiveNoFileComp
}

// taskNames completes the first argument, or a flag.
func (a *app) taskNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.ValidArgsFunction != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completing(cmd, func(ctx context.Context, d *db) ([]string, error) { return d.taskNames(ctx) })
}

func (a *app) scheduleIDs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completing(cmd, func(ctx context.Context, d *db) (ids []string, err error) {
		for s, err := range d.q.Schedules(ctx) {
			if err != nil {
				return nil, err
			}
			ids = append(ids, s.ID)
		}
		return ids, nil
	})
}

func fixed(names ...string) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag panics for a flag that isn't there, as cobra's error says nothing else.
func (a *app) completeFlag(cmd *cobra.Command, flag string, f completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}
