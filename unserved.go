package rebase

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A task that no live worker serves, because its name is mistyped or its workers are not
// deployed yet, loses nothing: its jobs wait. But it must not be silent: each worker
// looks now and then, and warns once per change.

// unservedSQL finds tasks with a due job and no live worker: one probe a task, by a
// loose scan of jobs_unfinished. The case keeps the order: whether a job is due may mean
// to step over all the running ones of the task, so it is asked only if nobody serves it.
const unservedSQL = `
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
select f.task
from found f
where f.task is not null
and case
  when exists (select from rebase.workers w where w.tasks @> array[f.task] and ` + aliveSQL + `) then false
  else (
    select true from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.status = 'pending'
    and p.task = f.task and p.run_at <= now() - interval '1 second'
    limit 1)
end
limit 100`

// unservedPeriod is how often a worker looks at the least; mostly it does along with the
// reaper's look.
const unservedPeriod = 2 * time.Minute

// unservedStatement reads the tasks into tasks.
func unservedStatement(tasks *[]string) statement {
	return statement{unservedSQL, nil, func(rows pgx.Rows) (err error) {
		*tasks, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}}
}

func (e *engine) unservedDuty(ctx context.Context, now time.Time) error {
	e.set(&e.duties.unserved, now.Add(unservedPeriod))
	var tasks []string
	if err := e.results.round(ctx, e.roundLimit(), unservedStatement(&tasks)); err != nil {
		return err
	}
	e.tellUnserved(tasks)
	return nil
}

// tellUnserved logs what has changed since the last look. RunOnce looks before this worker's own
// row is there, so the table may not know yet that it serves a task.
func (e *engine) tellUnserved(tasks []string) {
	e.set(&e.duties.unserved, time.Now().Add(unservedPeriod))
	seen := map[string]bool{}
	for _, t := range tasks {
		if e.byName[t] != nil {
			continue
		}
		if seen[t] = true; !e.unserved[t] {
			e.log.Warn("rebase: jobs are due and no live worker serves their task", "task", t, "worker", e.id)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(e.unserved)) {
		if !seen[t] {
			e.log.Info("rebase: the task is served again, or has no jobs that are due", "task", t, "worker", e.id)
		}
	}
	e.unserved = seen
}
