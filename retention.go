package rebase

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Retention deletes what ended long ago, at a worker's start and then hourly: in small
// committed batches between other work of the recorder, so that it is never in the way,
// and never anything unfinished, however old.

// Retention says how long finished jobs are kept. Every zero field is the default; a
// negative one keeps them for ever.
//
// A worker deletes the jobs of all tasks by its own Retention, also of tasks that it has no
// handler for: give every worker of a database the same one, Archive included. [Queue.Delete]
// and `rebase purge` delete without Archive.
type Retention struct {
	Succeeded time.Duration // of succeeded and cancelled jobs; if zero, 3 days
	Failed    time.Duration // of failed jobs, the dead letters; if zero, 30 days
	// Archive, if not nil, is called with the jobs that are about to be deleted, in the
	// transaction that deletes them: what it writes with tx is there exactly if they are
	// gone. If it returns an error they stay, and are tried again within a minute. It gets
	// 1,000 jobs at most and has 10 seconds, or a third of VisibilityTimeout if that is less,
	// deleting included; a server that hears nothing from it for three quarters of that ends
	// the transaction. A batch that failed is halved, down to one job; later ones grow again. One
	// job that fails alone is left until the next hour.
	// The rows of each tx.Query must be closed before it returns. It must obey ctx: when the time
	// is over the worker closes the connection beneath tx and goes on. One that runs on keeps
	// its goroutine, also after Run has returned, and this worker deletes nothing until it returns.
	Archive func(ctx context.Context, tx pgx.Tx, jobs []*Job) error
}

func (r Retention) withDefaults() Retention {
	if r.Succeeded == 0 {
		r.Succeeded = 3 * 24 * time.Hour
	}
	if r.Failed == 0 {
		r.Failed = 30 * 24 * time.Hour
	}
	return r
}

const (
	purgeRows   = 1000
	purgePeriod = time.Hour
	purgeGap    = 20 * time.Millisecond // between batches, at the least
)

// The whole predicate and the lock stand inside the subquery: a Retry that commits while
// the purge waits must not lose its job. $3 is where the last batch ended, so that a
// sweep passes each dead entry of the index once; $4 are those that were stepped over there.
const (
	// purgeSQL relies on jobs_finished_at. What it returns is added to it.
	purgeSQL = `
delete from rebase.jobs j
where j.ctid = any(array(
  select p.ctid` + endedSQL + `
))
returning `

	// oldestSQL is the first that purgeSQL would delete.
	oldestSQL = `
  select p.finished_at, p.id` + endedSQL

	endedSQL = `
  from rebase.jobs p
  where p.finished_at is not null and not p.dead
  and p.finished_at < now() - $1::interval
  and p.finished_at >= $3::timestamptz
  and p.status in ('succeeded', 'cancelled')
  and p.id <> all($4::bigint[])
  order by p.finished_at
  limit $2
  for update skip locked`

	// purgeDeadSQL relies on jobs_dead.
	purgeDeadSQL = `
delete from rebase.jobs j
where j.ctid = any(array(
  select p.ctid` + deadSQL + `
))
returning `

	// oldestDeadSQL is the first that purgeDeadSQL would delete.
	oldestDeadSQL = `
  select p.finished_at, p.id` + deadSQL

	deadSQL = `
  from rebase.jobs p
  where p.dead
  and p.finished_at < now() - $1::interval
  and p.finished_at >= $3::timestamptz
  and p.status = 'failed'
  and p.id <> all($4::bigint[])
  order by p.finished_at
  limit $2
  for update skip locked`
)

// A sweep is one pass over what may be deleted.
type sweep struct {
	dead    bool // the second half: dead letters
	from    time.Time
	over    []int64 // jobs that ended at from and can't be deleted
	rows    int     // in a batch; 0 is purgeRows
	refused int     // batches in a row
	stuck   int     // jobs of this half that were stepped over
}

// A place is where a job stands in a sweep.
type place struct {
	at time.Time
	id int64
}

// batch is how many rows the next batch may have.
func (s *sweep) batch() int { return cmp.Or(s.rows, purgeRows) }

// reach goes on from there.
func (s *sweep) reach(at time.Time) {
	if at.After(s.from) {
		s.from, s.over = at, nil
	}
}

// stepOver leaves a job to the next sweep. Others may have ended in the same instant: they are
// left as well only if very many of them can't be deleted either.
func (s *sweep) stepOver(p place) {
	s.reach(p.at)
	s.over = append(s.over, p.id)
	if len(s.over) > purgeRows {
		s.reach(p.at.Add(time.Microsecond))
	}
	s.stuck++
}

// args are those of the statements above.
func (s *sweep) args(keep time.Duration) []any {
	return []any{interval(keep), s.batch(), s.from, append([]int64{}, s.over...)}
}

// purgeDuty deletes one batch.
func (e *engine) purgeDuty(ctx context.Context, now time.Time) error {
	s := &e.sweep
	keep, sql, oldest := e.w.opts.Retention.Succeeded, purgeSQL, oldestSQL
	if s.dead {
		keep, sql, oldest = e.w.opts.Retention.Failed, purgeDeadSQL, oldestDeadSQL
	}
	n, size := 0, s.batch()
	if keep >= 0 {
		if e.w.archiving.Load() { // the last batch's, that ignores its context
			e.set(&e.duties.purge, now.Add(time.Minute))
			return nil
		}
		var err error
		if n, err = e.purge(ctx, sql, s.args(keep)); err != nil {
			return e.purgeFailed(ctx, now, statement{sql: oldest, args: s.args(keep)}, err)
		}
		s.refused = 0
	}
	if n < size && s.stuck > stuckSaid {
		e.log.Error("rebase: many old jobs can't be deleted", "jobs", s.stuck, "worker", e.id)
	}
	switch {
	case n == size:
		s.rows = min(size+size/64+1, purgeRows)
		e.set(&e.duties.purge, rest(now))
	case !s.dead:
		*s = sweep{dead: true, from: lowest, rows: s.rows}
		e.set(&e.duties.purge, rest(now))
	default:
		if err := e.results.round(ctx, e.roundLimit(), statement{sql: deadWorkersSQL}); err != nil && !isRefused(err) {
			return err
		}
		*s = sweep{from: lowest, rows: s.rows}
		e.set(&e.duties.purge, now.Add(purgePeriod))
	}
	return nil
}

// purgeFailed makes the next batch smaller: an Archive, or a slow disk, may need more time for
// this one than there is, or one of its jobs can't be deleted. When that one is alone, it is
// stepped over. What the recorder takes for a connection that was merely idle and
// broke, it doesn't log; that old jobs stay is told here. One that failed at once was indeed idle.
func (e *engine) purgeFailed(ctx context.Context, began time.Time, oldest statement, err error) error {
	s := &e.sweep
	err = asRefused(err)
	e.set(&e.duties.purge, began.Add(time.Minute))
	_, unsent := errors.AsType[*connectError](err)
	archive, ours := errors.AsType[*archiveError](err)
	idle := isLost(err) && !ours && time.Since(began) < e.roundLimit()/4
	if unsent || idle || ctx.Err() != nil {
		return err
	}
	alone := s.batch() == 1
	s.rows = max(s.batch()/2, 1)
	if isLost(err) {
		e.log.Warn("rebase: deleting old jobs took too long or was cut off; the next batch is smaller", "batch", s.rows, "error", err, "worker", e.id)
		if alone && ours && time.Since(began) >= e.roundLimit() { // it won't have more time the next time
			e.leave(archive.first, err)
		}
		return err
	}
	ofRow := isOfRow(err)
	if ofRow {
		e.set(&e.duties.purge, rest(began))
	} else {
		e.set(&e.duties.purge, time.Now().Add(refusal(s.refused)))
		s.refused++
	}
	switch {
	case alone && ours:
		e.leave(archive.first, err)
		return nil
	case alone:
		return e.leaveOldest(ctx, oldest, err)
	case ofRow: // which one, will be told
		return nil
	}
	return err
}

// isOfRow recognises what the server holds against one row, mostly: a constraint (class 23), or
// what a trigger raises. Anything else may be the matter with all of them.
func isOfRow(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && len(pgErr.Code) == 5 && (pgErr.Code[:2] == "23" || pgErr.Code == "P0001")
}

// stuckSaid is how many jobs of half a sweep are named; more are counted.
const stuckSaid = 10

// leave steps over a job until the next sweep.
func (e *engine) leave(p place, err error) {
	e.sweep.stepOver(p)
	if e.sweep.stuck <= stuckSaid {
		e.log.Error("rebase: an old job can't be deleted; it is tried again in an hour", "job_id", p.id, "error", err, "worker", e.id)
	}
}

// leaveOldest steps over the job that the server has just refused to delete.
func (e *engine) leaveOldest(ctx context.Context, oldest statement, refused error) error {
	oldest.rows = func(rows pgx.Rows) error {
		var p place
		_, err := pgx.ForEachRow(rows, []any{&p.at, &p.id}, func() error {
			e.leave(p, refused)
			return nil
		})
		return err
	}
	return e.results.round(ctx, e.roundLimit(), oldest)
}

// rest is when a piece of upkeep that began then may go on: it takes a tenth of the recorder's
// time at most, also while there are always results to be written, so that it neither holds
// them up nor never has its turn.
func rest(began time.Time) time.Time {
	took := time.Since(began)
	return began.Add(took + max(purgeGap, 9*took))
}

// purge deletes a batch and returns its size.
func (e *engine) purge(ctx context.Context, sql string, args []any) (n int, err error) {
	from := e.sweep.from
	if archive := e.w.opts.Retention.Archive; archive != nil {
		n, from, err = e.purgeArchived(ctx, sql, args, archive)
	} else {
		err = e.results.round(ctx, e.roundLimit(), statement{sql + "j.finished_at", args, func(rows pgx.Rows) error {
			var at time.Time
			_, err := pgx.ForEachRow(rows, []any{&at}, func() error {
				n++
				if at.After(from) {
					from = at
				}
				return nil
			})
			return err
		}})
	}
	if err != nil {
		return 0, err
	}
	e.sweep.reach(from)
	return n, nil
}
