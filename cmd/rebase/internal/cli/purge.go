package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// purge: finished rows that ended long ago, without waiting for a worker's retention. As there,
// small committed batches, each with its whole condition and its lock inside, so that a row that
// a retry makes pending meanwhile stays, and with a rest between batches that leaves the
// server to the queue.

const purgeLong = `Deletes jobs that ended more than --older-than ago: succeeded and cancelled ones, or those of
the statuses that are named. Unfinished jobs are never deleted.

Workers do this by themselves, after 3 days (failed jobs: 30). It goes by batches of 1,000 with
a rest as long as the batch took. An interrupt ends it; what was deleted stays deleted.`

type purgeFlags struct {
	olderThan ageFlag
	status    []string
}

func (a *app) purgeCommand() *cobra.Command {
	f := new(purgeFlags)
	cmd := a.guarded(&cobra.Command{
		Use: "purge", Short: "Delete jobs that ended long ago", Long: purgeLong, Args: takesFlags("delete ID..."),
		Example: "  rebase purge --older-than 7d\n  rebase purge --older-than 90d --status failed --yes",
		PreRunE: func(*cobra.Command, []string) error { return f.check() },
		RunE:    a.with(func(ctx context.Context, d *db, _ []string) error { return a.purge(ctx, d, f) }),
	})
	cmd.Flags().Var(&f.olderThan, "older-than", "how long ago they ended at least, such as 12h or 7d; required")
	cmd.Flags().StringSliceVar(&f.status, "status", []string{"succeeded", "cancelled"}, "`status` of the jobs; may be repeated")
	a.completeFlag(cmd, "status", fixed("succeeded", "cancelled", "failed"))
	return cmd
}

func (f *purgeFlags) check() error {
	if f.olderThan <= 0 {
		return errors.New("--older-than is missing or zero: say how long ago jobs ended at least, such as 7d")
	}
	for _, s := range f.status {
		if !slices.Contains([]string{"succeeded", "cancelled", "failed"}, s) {
			return &usageError{"--status", s, "want succeeded, cancelled or failed"}
		}
	}
	return nil
}

// A purgeRecord is what purge --json prints.
type purgeRecord struct {
	Matched int  `json:"matched"`
	AtLeast bool `json:"at_least"`
	Deleted int  `json:"deleted"`
	DryRun  bool `json:"dry_run"`
}

func (a *app) purge(ctx context.Context, d *db, f *purgeFlags) error {
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	cutoff := now.Add(-time.Duration(f.olderThan))
	counts, atLeast, err := d.purgeable(ctx, cutoff, f.status)
	if err != nil {
		return err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	what := plural(total, "job") + byName(counts)
	if atLeast {
		what = "at least " + what
	}
	what += " that ended before " + instant(cutoff)
	switch {
	case a.dryRun && a.json:
		return printJSON(a.out, purgeRecord{total, atLeast, 0, true})
	case a.dryRun:
		_, err := fmt.Fprintf(a.out, "would delete %s\n", what)
		return err
	case total > 0:
		if err := a.confirm(ctx, "This will delete "+what+"."); err != nil {
			return err
		}
	}
	n, err := a.purgeAll(ctx, d, cutoff, f.status)
	if a.json {
		return errors.Join(err, printJSON(a.out, purgeRecord{total, atLeast, n, false}))
	}
	fmt.Fprintf(a.out, "deleted %s\n", plural(n, "job"))
	return err
}

// purgeableSQL relies on jobs_finished_at and jobs_dead. It counts so many of each at most.
const (
	purgeCap     = 100_000
	purgeableSQL = `
select x.status, count(*)::int
from (
  (select p.status from rebase.jobs p
  where p.finished_at is not null and not p.dead and p.finished_at < $1 and p.status = any($2::text[])
  order by p.finished_at limit $3)
  union all
  (select p.status from rebase.jobs p
  where p.dead and p.finished_at < $1 and p.status = any($2::text[])
  order by p.finished_at limit $3)
) x
group by x.status`
)

func (d *db) purgeable(ctx context.Context, cutoff time.Time, status []string) (counts map[string]int, atLeast bool, err error) {
	counts = map[string]int{}
	err = d.in(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, purgeableSQL, cutoff, status, purgeCap) // ForEachRow tells the error
		var name string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error {
			counts[name] = n
			return nil
		})
		return err
	})
	return counts, counts["succeeded"]+counts["cancelled"] == purgeCap || counts["failed"] == purgeCap, err
}

const (
	purgeBatch = 1000
	purgeRest  = 20 * time.Millisecond // between batches, at the least

	// purgeSQL relies on jobs_finished_at, purgeDeadSQL on jobs_dead. $2 is where the last
	// batch ended, so that a sweep passes each dead entry of the index once.
	purgeSQL = `
with gone as (
  delete from rebase.jobs j
  where j.ctid = any(array(
    select p.ctid
    from rebase.jobs p
    where p.finished_at is not null and not p.dead
    and p.finished_at < $1
    and p.finished_at >= $2
    and p.status = any($3::text[])
    order by p.finished_at
    limit $4
    for update skip locked
  ))
  returning j.finished_at
)
select count(*)::int, coalesce(max(gone.finished_at), $2) from gone`

	purgeDeadSQL = `
with gone as (
  delete from rebase.jobs j
  where j.ctid = any(array(
    select p.ctid
    from rebase.jobs p
    where p.dead
    and p.finished_at < $1
    and p.finished_at >= $2
    and p.status = any($3::text[])
    order by p.finished_at
    limit $4
    for update skip locked
  ))
  returning j.finished_at
)
select count(*)::int, coalesce(max(gone.finished_at), $2) from gone`
)

func (a *app) purgeAll(ctx context.Context, d *db, cutoff time.Time, status []string) (n int, err error) {
	b := &bar{a: a}
	defer b.clear()
	for _, sql := range []string{purgeSQL, purgeDeadSQL} {
		if dead := slices.Contains(status, "failed"); sql == purgeDeadSQL && !dead || sql == purgeSQL && dead && len(status) == 1 {
			continue
		}
		from, oldest := time.Time{}, time.Time{}
		for {
			began, found := time.Now(), 0
			err := d.in(ctx, func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, sql, cutoff, from, status, purgeBatch).Scan(&found, &from)
			})
			if err != nil {
				return n, err
			}
			n += found
			if found < purgeBatch {
				break
			}
			oldest = cmp.Or(oldest, from)
			// Nobody has counted them all, but how much of the time is done is known.
			b.show(float64(from.Sub(oldest))/float64(max(cutoff.Sub(oldest), 1)), number(n)+" deleted")
			if err := pause(ctx, max(purgeRest, time.Since(began))); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// pause waits, or returns the cause when ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
