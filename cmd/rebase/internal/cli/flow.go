package cli

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// How many jobs come and go a second, by task. Nothing counts this for us, so each look reads
// what is new since the last: rows with higher ids, and rows that ended later, both by an
// index and both up to a limit, so that a look costs what happened since the last one and
// never what is in the table.
//
// The invariant: between two looks every row is counted once. A look therefore ends half a
// second ago, when whoever was about to commit has done so.

// The kinds of what is counted.
const (
	enqueued = iota
	succeeded
	failed
	kinds
)

// flowCap is how many rows of a kind a look reads at most.
const flowCap = 20_000

// flowWindow is how many looks a rate is the mean of.
const flowWindow = 10

// A sample is what one look found.
type sample struct {
	seconds float64
	counts  map[string]*[kinds]int
	capped  bool
}

type flow struct {
	upto    time.Time // what ended until then is counted
	mark    int64     // and what has an id up to this
	samples []sample
}

const (
	flowNowSQL = `select now() - interval '500 ms'`

	// flowBeginSQL finds the id behind which jobs are less than ten seconds old, among the
	// newest. Relies on the primary key.
	flowBeginSQL = `
select coalesce(min(x.id) filter (where x.created_at > $1::timestamptz) - 1, max(x.id), 0)
from (select p.id, p.created_at from rebase.jobs p order by p.id desc limit $2) x`

	// flowSQL relies on the primary key, jobs_finished_at and jobs_dead. Ids are drawn in order
	// but committed in any: counting ends with the highest id that is half a second old.
	flowSQL = `
with fresh as materialized (
  select p.id, p.task, p.created_at from rebase.jobs p
  where p.id > $1::bigint
  order by p.id
  limit $4::int
), edge as (
  select coalesce(max(f.id), $1::bigint) as id from fresh f where f.created_at <= $3::timestamptz
), ended as materialized (
  (select p.task, p.status from rebase.jobs p
  where p.finished_at is not null and not p.dead and p.finished_at > $2::timestamptz and p.finished_at <= $3::timestamptz
  order by p.finished_at
  limit $4::int)
  union all
  (select p.task, p.status from rebase.jobs p
  where p.dead and p.finished_at > $2::timestamptz and p.finished_at <= $3::timestamptz
  order by p.finished_at
  limit $4::int)
)
select 'enqueued', f.task, count(*)::int, edge.id
from fresh f, edge
where f.id <= edge.id
group by f.task, edge.id
union all
select e.status, e.task, count(*)::int, 0
from ended e
where e.status in ('succeeded', 'failed')
group by e.status, e.task`

	flowEndSQL = `select coalesce(max(p.id), 0) from rebase.jobs p`
)

// look counts what is new.
func (f *flow) look(ctx context.Context, d *db) error {
	return d.in(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var upto time.Time
		if err := tx.QueryRow(ctx, flowNowSQL).Scan(&upto); err != nil {
			return err
		}
		if f.upto.IsZero() {
			f.upto = upto.Add(-10 * time.Second)
			if err := tx.QueryRow(ctx, flowBeginSQL, f.upto, flowCap).Scan(&f.mark); err != nil {
				return err
			}
		}
		if !upto.After(f.upto) {
			return nil // the clock was set back
		}
		s := sample{seconds: upto.Sub(f.upto).Seconds(), counts: map[string]*[kinds]int{}}
		if err := f.count(ctx, tx, upto, &s); err != nil {
			return err
		}
		f.upto = upto
		f.samples = append(f.samples, s)
		if len(f.samples) > flowWindow {
			f.samples = f.samples[1:]
		}
		return nil
	})
}

func (f *flow) count(ctx context.Context, tx pgx.Tx, upto time.Time, s *sample) error {
	rows, _ := tx.Query(ctx, flowSQL, f.mark, f.upto, upto, flowCap) // ForEachRow tells the error
	var kind, task string
	var n int
	var edge int64
	var sums [kinds]int
	_, err := pgx.ForEachRow(rows, []any{&kind, &task, &n, &edge}, func() error {
		k := map[string]int{"enqueued": enqueued, "succeeded": succeeded, "failed": failed}[kind]
		if s.counts[task] == nil {
			s.counts[task] = new([kinds]int)
		}
		s.counts[task][k] += n
		sums[k] += n
		f.mark = max(f.mark, edge)
		return nil
	})
	if err != nil {
		return err
	}
	if sums[enqueued] >= flowCap { // what is left behind would be counted too late
		if err := tx.QueryRow(ctx, flowEndSQL).Scan(&f.mark); err != nil {
			return err
		}
	}
	s.capped = max(sums[enqueued], sums[succeeded], sums[failed]) >= flowCap
	return nil
}

// rates are the means over the window, by task and kind.
func (f *flow) rates() (byTask map[string][kinds]float64, capped bool) {
	byTask = map[string][kinds]float64{}
	seconds := 0.0
	for _, s := range f.samples {
		seconds += s.seconds
	}
	for _, s := range f.samples {
		capped = capped || s.capped
		for task, counts := range s.counts {
			r := byTask[task]
			for k, n := range counts {
				r[k] += float64(n) / seconds
			}
			byTask[task] = r
		}
	}
	return byTask, capped
}
