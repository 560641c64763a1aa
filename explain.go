package rebase

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Explain answers the question that people page others for: why is this job not running?
// It reads the job's row and what surrounds it once, and then decides in pure code, so that
// every sentence can be tested.

// A Reason is why a job is where it is.
type Reason string

const (
	ReasonScheduled    Reason = "scheduled"     // due later
	ReasonRetry        Reason = "retry"         // waits for its next attempt
	ReasonSetback      Reason = "setback"       // infrastructure trouble, tried again later
	ReasonWaiting      Reason = "waiting"       // due; a slot is free, so it starts any moment
	ReasonSlotsBusy    Reason = "slots_busy"    // due; all slots for its task are taken
	ReasonLaneBusy     Reason = "lane_busy"     // due; its lane is at its limit
	ReasonPaused       Reason = "paused"        // due; the task is paused
	ReasonUnserved     Reason = "unserved"      // due; no live worker serves the task
	ReasonLocked       Reason = "locked"        // due; somebody holds a lock on its row
	ReasonReaped       Reason = "reaped"        // due; its worker died, so it is run alone
	ReasonClaimedAhead Reason = "claimed_ahead" // a worker holds it and hasn't begun, or began less than 30 s ago
	ReasonRunning      Reason = "running"
	ReasonWorkerDied   Reason = "worker_died" // running, but nobody renews its lease
	ReasonSucceeded    Reason = "succeeded"
	ReasonFailed       Reason = "failed"
	ReasonCancelled    Reason = "cancelled"
)

// An Explanation is why a job is where it is. String is the sentence.
type Explanation struct {
	Job    *Job
	At     time.Time // the database's clock when it was read
	Reason Reason
	// In is the time until the job is due, or until its lease ends; 0 if that is past or
	// doesn't matter.
	In time.Duration
	// Workers and Slots are the live workers that serve the task, and how many of its
	// jobs they can run at once; Busy is how many of these slots are taken, by jobs of any
	// task.
	Workers, Slots, Busy int
	// LaneLimit and LaneBusy are the smallest limit of the job's lane (0: none), and how
	// many of its jobs are held.
	LaneLimit, LaneBusy int
	Paused              bool
	// WorkerSeen is when the worker that has the job was last heard of; zero if it is
	// unknown.
	WorkerSeen time.Time
	// Blockers are the processes of PostgreSQL that hold a lock on the job's row.
	Blockers []int

	deserted bool // no worker of whatever task lives, to take back what a dead one held
}

// explainSQL reads what surrounds the job $1.
const explainSQL = `
select now(),
  exists (select from rebase.paused z where z.task = j.task),
  not exists (select from rebase.workers w where ` + aliveSQL + `),
  s.workers, s.slots, s.lane_limit,
  s.busy, b.lane_busy,
  (select w.seen_at from rebase.workers w where w.id = j.locked_by),
  l.pids,
  ` + jobColumns + `
from rebase.jobs j
cross join lateral (
  select count(*)::int as workers,
    coalesce(sum(o.slots), 0)::int as slots,
    coalesce(sum(o.slots - greatest(least(o.concurrency - o.held, o.slots - o.mine), 0)), 0)::int as busy,
    coalesce(min(nullif(o.lane_limit, 0)), 0) as lane_limit
  from (
    select w.concurrency, least(w.concurrency, coalesce((w.limits -> j.task ->> 'slots')::int, w.concurrency)) as slots,
      (w.limits -> j.task ->> 'lane')::int as lane_limit, h.held, h.mine
    from rebase.workers w
    cross join lateral (
      select count(*) as held, count(*) filter (where x.task = j.task) as mine
      from rebase.claims k
      cross join lateral unnest(k.ids) i (id)
      join rebase.jobs x on x.id = i.id and x.fence = k.token
      where k.worker = w.id
    ) h
    where w.tasks @> array[j.task] and ` + aliveSQL + `
  ) o
) s
cross join lateral (
  select count(*)::int as lane_busy
  from rebase.claims k
  cross join lateral unnest(k.ids) i (id)
  join rebase.jobs x on x.id = i.id and x.fence = k.token
  where x.task = j.task and x.lane = j.lane
) b
cross join lateral (
  select coalesce(array_agg(distinct h.pid), '{}'::int[]) as pids
  from pg_locks h
  where h.locktype = 'transactionid' and h.granted
  and h.transactionid = j.xmax
) l
where j.id = $1`

// Explain says why the job is where it is. It returns ErrNotFound if there is none.
func (q *Queue) Explain(ctx context.Context, id int64) (*Explanation, error) {
	var x *Explanation
	err := q.round(ctx, statement{explainSQL, []any{id}, func(rows pgx.Rows) error {
		if rows.Next() {
			x = new(Explanation)
			if err := x.read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}})
	if err != nil {
		return nil, fmt.Errorf("rebase: explain: job %d: %w", id, err)
	}
	if x == nil {
		return nil, fmt.Errorf("rebase: explain: job %d: %w", id, ErrNotFound)
	}
	x.decide()
	return x, nil
}

// explainColumns come before the job's own.
const explainColumns = 10

func (x *Explanation) read(rows pgx.Rows) error {
	x.Job = new(Job)
	if err := viewJob(rows, explainColumns, x.Job); err != nil {
		return err
	}
	r := rowReader{raw: rows.RawValues(), fields: rows.FieldDescriptions(), types: rows.Conn().TypeMap()}
	x.At, x.Paused, x.deserted = r.time(), r.bool(), r.bool()
	x.Workers, x.Slots, x.LaneLimit = int(r.int()), int(r.int()), int(r.int())
	x.Busy, x.LaneBusy = int(r.int()), int(r.int())
	x.WorkerSeen = r.time()
	r.scan(&x.Blockers)
	return r.err
}

// decide finds the reason. The order is that of what stands in the way first.
func (x *Explanation) decide() {
	j := x.Job
	switch j.Status {
	case StatusSucceeded:
		x.Reason = ReasonSucceeded
	case StatusFailed:
		x.Reason = ReasonFailed
	case StatusCancelled:
		x.Reason = ReasonCancelled
	case StatusRunning:
		x.decideRunning()
	default:
		x.decidePending()
	}
}

func (x *Explanation) decideRunning() {
	j := x.Job
	if j.LockedUntil != nil {
		x.In = max(j.LockedUntil.Sub(x.At), 0)
	}
	silent := x.WorkerSeen.IsZero() || x.At.Sub(x.WorkerSeen) > 90*time.Second
	switch {
	case x.In == 0 || silent && len(x.Blockers) == 0:
		x.Reason = ReasonWorkerDied
	case j.StartedAt == nil:
		x.Reason = ReasonClaimedAhead
	default:
		x.Reason = ReasonRunning
	}
}

func (x *Explanation) decidePending() {
	j := x.Job
	x.In = max(j.RunAt.Sub(x.At), 0)
	switch {
	case x.In > 0 && j.lastOutcome() == kindSnoozed:
		x.Reason = ReasonScheduled
	case x.In > 0 && j.setbacks > 0 && j.crashes == 0: // a crash comes after its setbacks
		x.Reason = ReasonSetback
	case x.In > 0 && (j.Attempts > 0 || j.crashes != 0):
		x.Reason = ReasonRetry
	case x.In > 0:
		x.Reason = ReasonScheduled
	case x.Paused:
		x.Reason = ReasonPaused
	case x.Workers == 0:
		x.Reason = ReasonUnserved
	case len(x.Blockers) > 0:
		x.Reason = ReasonLocked
	case j.Lane != "" && x.LaneLimit > 0 && x.LaneBusy >= x.LaneLimit:
		x.Reason = ReasonLaneBusy
	case j.crashes != 0:
		x.Reason = ReasonReaped
	case x.Busy >= x.Slots:
		x.Reason = ReasonSlotsBusy
	default:
		x.Reason = ReasonWaiting
	}
}

// String is the answer in words.
func (x *Explanation) String() string {
	j := x.Job
	s := fmt.Sprintf("job %d (%s) ", j.ID, j.Task)
	switch x.Reason {
	case ReasonSucceeded:
		return s + fmt.Sprintf("succeeded at %s, with attempt %d, by %s", clock(j.FinishedAt), max(j.Attempts, 1), j.LockedBy)
	case ReasonFailed:
		return s + fmt.Sprintf("failed for good at %s, after %s, because: %s", clock(j.FinishedAt), plural(j.Attempts, "attempt"), firstLine(j.LastError))
	case ReasonCancelled:
		return s + "was cancelled at " + clock(j.FinishedAt) + because(j.cancelReason())
	case ReasonRunning:
		return s + fmt.Sprintf("has been running since %s, attempt %d of %d, by %s%s", clock(j.StartedAt), j.Attempts, j.MaxAttempts, j.LockedBy, x.blocked())
	case ReasonClaimedAhead:
		return s + fmt.Sprintf("was claimed ahead by %s; it waits for a free slot there, or has begun less than 30 s ago", j.LockedBy)
	case ReasonWorkerDied:
		return s + x.died()
	}
	return s + x.pending()
}

// cancelReason is what the cancel itself said: LastError may be of an attempt before it.
func (j *Job) cancelReason() string {
	if j.lastOutcome() == kindCancelled {
		return j.History[len(j.History)-1].Error
	}
	return j.LastError
}

// lastOutcome is that of the latest entry of the history, "" if there is none.
func (j *Job) lastOutcome() string {
	if len(j.History) == 0 {
		return ""
	}
	return j.History[len(j.History)-1].Outcome
}

func (x *Explanation) died() string {
	j := x.Job
	seen := "which is not known any more"
	if !x.WorkerSeen.IsZero() {
		seen = "last seen at " + clock(&x.WorkerSeen)
	}
	if x.In == 0 {
		reaped := "a reaper takes it back shortly"
		if x.deserted {
			reaped = "it is taken back as soon as a worker runs"
		}
		return fmt.Sprintf("was run by %s, %s; its lease ended at %s and %s%s", j.LockedBy, seen, clock(j.LockedUntil), reaped, x.blocked())
	}
	s := fmt.Sprintf("is held by %s, %s; if that has died it comes back when its lease ends, in %s at the latest", j.LockedBy, seen, round(x.In))
	if x.deserted {
		s += ", or as soon after that as a worker runs"
	}
	return s
}

func (x *Explanation) pending() string {
	j := x.Job
	switch x.Reason {
	case ReasonScheduled:
		if j.lastOutcome() == kindSnoozed {
			return "is due in " + round(x.In) + ": its handler snoozed it"
		}
		return "is due in " + round(x.In)
	case ReasonRetry:
		return fmt.Sprintf("is due in %s, for attempt %d of %d, after: %s", round(x.In), j.Attempts+1, j.MaxAttempts, firstLine(j.LastError))
	case ReasonSetback:
		return fmt.Sprintf("is due in %s, after infrastructure trouble %s in a row that cost no attempt: %s", round(x.In), plural(j.setbacks, "time"), firstLine(j.LastError))
	}
	due := "has been due since " + clock(&j.RunAt) + "; "
	switch x.Reason {
	case ReasonPaused:
		return due + "its task is paused"
	case ReasonUnserved:
		return due + fmt.Sprintf("no live worker serves task %q", j.Task)
	case ReasonLocked:
		return due + "its row is locked by PostgreSQL process " + x.pids()
	case ReasonLaneBusy:
		return due + fmt.Sprintf("lane %q is at its limit of %d", j.Lane, x.LaneLimit)
	case ReasonReaped:
		return due + fmt.Sprintf("a worker died while it held it (%s in a row), so it waits for a free slot with nothing claimed ahead beside it", plural(j.crashes, "time"))
	case ReasonSlotsBusy:
		return due + fmt.Sprintf("the slots for its task are busy, %d of %d", x.Busy, x.Slots)
	}
	return due + fmt.Sprintf("%d of %s for its task on %s are busy, so it starts when its turn comes", x.Busy, plural(x.Slots, "slot"), plural(x.Workers, "live worker"))
}

func (x *Explanation) blocked() string {
	if len(x.Blockers) == 0 {
		return ""
	}
	return " (its row is locked by PostgreSQL process " + x.pids() + ")"
}

func (x *Explanation) pids() string { return strings.Trim(fmt.Sprint(x.Blockers), "[]") }

func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + firstLine(text)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return storable(line, 300)
}

func clock(t *time.Time) string {
	if t == nil {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// round shows a duration as people say it.
func round(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
