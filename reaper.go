package rebase

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The reaper takes back the jobs of workers that died. It looks at rebase.claims, one
// small row for each claim statement, and goes from there to the jobs by id and fence.
//
// It must never take from the living. So it takes a job only if its own lease has run
// out, checked under the row's lock; and a process reaps only when its own renewals
// have gone through without a break for as long as anybody alive needs to be back: after
// an outage of the database everybody's leases have run out, and nobody is dead.

// expiredSQL lists claims whose lease has ended. One that ends later than two leases
// from now was written before the clock was set back; whether its worker is alive shows
// in whether it changes. $1 is for how long this process has been able to renew: a claim
// is left alone until its own worker must have been able to as well. After an outage that
// takes a renewal period, and before it a try to connect that hangs for a round's limit and
// the pause until the next (maxRedial).
const expiredSQL = `
select k.token, k.locked_until, k.locked_until < now(), (extract(epoch from k.lease) * 1000000)::bigint
from rebase.claims k
where (k.locked_until < now() or k.locked_until > now() + 2 * k.lease)
and k.lease / 3 + least(k.lease / 3, interval '10 s') + interval '1.5 s' <= $1::interval
limit 1000`

// reapSQL takes back the jobs of the claims $1. A job that had not begun gets its
// attempt back and is due at once; one that had begun waits by the default backoff,
// or is dead if it has no attempt left. $2: also leases that end in a far future. $4, if
// not null: only these jobs, of the one claim.
const reapSQL = `
with u as materialized (
  select x.*, x.started_at is not null and x.attempts >= x.max_attempts as ends
  from unnest($1::bigint[]) t (token)
  join rebase.claims k on k.token = t.token
  cross join lateral unnest(coalesce($4::bigint[], k.ids)) i (id)
  cross join lateral (
    select p.ctid, p.attempts, p.max_attempts, p.started_at
    from rebase.jobs p
    where p.id = i.id and p.fence = k.token
    and (p.locked_until < now() or $2::boolean and p.locked_until > now() + 2 * k.lease)
    and (k.locked_until < now() or $2::boolean and k.locked_until > now() + 2 * k.lease)
    limit 1
    for no key update skip locked
  ) x
), w as (
  update rebase.jobs j
  set status = case when u.ends then 'failed' else 'pending' end,
    dead = u.ends,
    fence = 0,
    attempts = j.attempts - case when j.started_at is null then 1 else 0 end,
    crashes = least(j.crashes + 1, 1000),
    run_at = case
      when u.ends then j.run_at
      when j.started_at is null then now()
      else now() + least(power(5, least(j.attempts, 10) - 1), 3600) * interval '1 second'
    end,
    finished_at = case when u.ends then now() end,
    locked_until = null,
    last_error = case
      when j.started_at is null then j.last_error
      else format('the worker %s stopped renewing its lease while the job was running (%s %s in a row): the process was killed, crashed or cut off',
        j.locked_by, j.crashes + 1, case when j.crashes = 0 then 'time' else 'times' end)
    end,
    history = (case when jsonb_array_length(j.history) >= 20 then j.history - 0 else coalesce(j.history, '[]') end) ||
      jsonb_build_object('attempt', j.attempts, 'run', j.runs, 'started_at', coalesce(j.started_at, '0001-01-01 00:00Z'), 'ended_at', now(),
        'worker', j.locked_by, 'outcome', 'crashed',
        'error', case when j.started_at is null then 'claimed ahead, not known to have begun' else 'lease expired at ' || to_char(j.locked_until at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') end),
    updated_at = now()
  from u
  where j.ctid = u.ctid
  returning j.id, j.task, j.lane, j.attempts, j.status, j.locked_by
), asked as materialized (
  select rebase.wake(t.task, $3::int) as answer
  from (select w.task from w where w.status = 'pending' group by w.task) t
)
select w.id, w.task, w.lane, w.attempts, w.status, coalesce(w.locked_by, ''), (select count(asked.answer) from asked) from w`

// nobodyHas is true of a claim c whose token no job has. Relies on jobs_pkey.
const nobodyHas = `not exists (
    select
    from unnest(c.ids) i (id)
    cross join lateral (
      select
      from rebase.jobs p
      where p.id = i.id and p.fence = c.token
      limit 1
    ) j
  )`

// emptyClaimsSQL deletes what no job refers to any more.
const emptyClaimsSQL = `
delete from rebase.claims k
where k.ctid = any(array(
  select c.ctid
  from rebase.claims c
  where c.token = any($1::bigint[])
  and ` + nobodyHas + `
  for update skip locked
))
returning k.token`

// deadWorkersSQL forgets workers that have not been seen for long, and keeps their counts.
const deadWorkersSQL = `
with gone as (
  delete from rebase.workers w
  where w.seen_at < now() - greatest(3 * w.lease, interval '1 hour')
  returning w.counters
)` + foldSQL

// foldSQL adds the counters of workers that are gone to those that stay.
const foldSQL = `
insert into rebase.counters as c (hour, name, value)
select date_trunc('hour', now(), 'UTC'), n.key, sum(n.value::bigint)
from gone
cross join lateral jsonb_each_text(gone.counters) n
where n.value <> '0' and n.key <> 'abandoned'
group by n.key
on conflict (hour, name) do update
set value = c.value + excluded.value`

// expiredCountSQL counts leases that ran out where the count outlives this worker.
const expiredCountSQL = `
insert into rebase.counters as c (hour, name, value)
values (date_trunc('hour', now(), 'UTC'), 'lease_expired', $1)
on conflict (hour, name) do update
set value = c.value + excluded.value`

// A farClaim is a claim whose lease ends too far in the future.
type farClaim struct {
	until time.Time
	since time.Time // local clock
}

// reapPeriod is a quarter of the visibility timeout. If the heartbeat comes more often, it
// sees earlier that something has expired; the duty then only does what goes along with it.
func (e *engine) reapPeriod() time.Duration {
	if e.w.opts.VisibilityTimeout/4 > pingPeriod {
		return unservedPeriod
	}
	return e.w.opts.VisibilityTimeout / 4
}

// reapDuty looks for expired claims.
func (e *engine) reapDuty(ctx context.Context, now time.Time) error {
	e.set(&e.duties.reap, now.Add(e.reapPeriod()))
	e.mu.Lock()
	trusted := e.trusted
	e.mu.Unlock()
	if trusted.IsZero() {
		e.reaping.expired, e.reaping.far = nil, nil // they may be renewed before it is this one's turn again
		return nil
	}
	if wait := trusted.Add(e.w.opts.VisibilityTimeout/3 + e.roundLimit() + maxRedial); now.Before(wait) {
		e.reaping.expired, e.reaping.far = nil, nil
		e.set(&e.duties.reap, wait)
		return nil
	}
	err := e.reap(ctx, now.Sub(trusted))
	if e.reaping.left() {
		e.set(&e.duties.reap, time.Now().Add(reapPause))
	}
	return err
}

// After reapTurn the reaper lets others have the connection, for reapPause at least: when a fleet has
// died there may be a hundred thousand jobs to take back, and its own leases are to be renewed.
const (
	reapTurn  = 250 * time.Millisecond
	reapPause = 10 * time.Millisecond
	reapRows  = 50 // claims in a batch
)

// A reaping is what the reaper knows of claims. Only its loop uses it.
type reaping struct {
	seen         map[int64]farClaim // that end in a far future
	expired, far []int64            // found, and to be taken back in the next turns
	rows         int                // claims in a batch, since one was refused; 0 is reapRows
	parted       map[int64]*parted  // by token, those that were refused alone
	said, kept   []int64            // jobs that were refused alone: at the last reap, at this one
}

func (r *reaping) left() bool { return len(r.expired)+len(r.far) > 0 }

// reap takes back what has expired, for a turn; trusted is for how long renewals have been
// possible.
func (e *engine) reap(ctx context.Context, trusted time.Duration) (err error) {
	r := &e.reaping
	if !r.left() {
		r.rows, r.parted = 0, nil
		r.said, r.kept = r.kept, nil
		if r.expired, r.far, _, err = e.expiredClaims(ctx, trusted); err != nil {
			return err
		}
	}
	began := time.Now()
	if r.expired, err = e.reapClaims(ctx, r.expired, false, began); err == nil {
		r.far, err = e.reapClaims(ctx, r.far, true, began)
	}
	return err
}

// expiredClaims lists the claims that have expired, those that end in a far future, and the longest
// lease of the former.
func (e *engine) expiredClaims(ctx context.Context, trusted time.Duration) (expired, far []int64, longest time.Duration, err error) {
	seen := map[int64]farClaim{}
	var unserved []string
	err = e.results.round(ctx, e.roundLimit(), statement{expiredSQL, []any{interval(trusted)}, func(rows pgx.Rows) error {
		now := time.Now()
		var token, lease int64
		var until time.Time
		var over bool
		_, err := pgx.ForEachRow(rows, []any{&token, &until, &over, &lease}, func() error {
			if over {
				expired, longest = append(expired, token), max(longest, time.Duration(lease)*time.Microsecond)
				return nil
			}
			f, ok := e.reaping.seen[token]
			if !ok || !f.until.Equal(until) {
				f = farClaim{until, now}
			}
			if seen[token] = f; now.Sub(f.since) > time.Duration(lease)*time.Microsecond {
				far = append(far, token)
			}
			return nil
		})
		return err
	}}, unservedStatement(&unserved))
	if err == nil {
		e.reaping.seen = seen
		e.tellUnserved(unserved)
	}
	return expired, far, longest, err
}

// reapClaims goes in batches, until its turn is over; it returns what is left. When the database
// refuses one, or it takes too long, batches are halved, down to one claim, so that a row that can't
// be written holds up no other claim's. They stay so until all that was found is done. The claim
// with that row is then taken back by parts, behind the others.
func (e *engine) reapClaims(ctx context.Context, tokens []int64, evenFar bool, began time.Time) (rest []int64, err error) {
	for len(tokens) > 0 && time.Since(began) < reapTurn {
		if e.reaping.parted[tokens[0]] != nil {
			done, err := e.reapPart(ctx, tokens[0], evenFar)
			if err != nil {
				return tokens, err
			}
			if done {
				tokens = tokens[1:]
			}
			continue
		}
		n := min(len(tokens), cmp.Or(e.reaping.rows, reapRows))
		err := e.reapBatch(ctx, tokens[:n], nil, evenFar)
		refused := isRefusal(err)
		if refused && n > 1 {
			e.reaping.rows = n / 2
			continue
		}
		var parts bool
		if refused {
			parts, err = e.part(ctx, tokens[0], err)
		}
		if err != nil {
			return tokens, err
		}
		if parts {
			tokens = slices.Concat(tokens, tokens[:1])
		}
		tokens = tokens[n:]
	}
	return tokens, nil
}

// reapBatch takes back the claims; or if ids isn't nil, these jobs of the one claim, which stays.
func (e *engine) reapBatch(ctx context.Context, tokens, ids []int64, evenFar bool) error {
	var reaped []Job
	statements := []statement{{reapSQL, []any{tokens, evenFar, int32(e.q.notify), ids}, func(rows pgx.Rows) error {
		var j Job
		var asked int64
		_, err := pgx.ForEachRow(rows, []any{&j.ID, &j.Task, &j.Lane, &j.Attempts, &j.Status, &j.LockedBy, &asked}, func() error {
			reaped = append(reaped, j)
			return nil
		})
		return err
	}}, {sql: emptyClaimsSQL, args: []any{tokens}}}
	if ids != nil {
		statements = statements[:1]
	}
	err := e.results.round(ctx, e.roundLimit(), statements...)
	if err != nil || len(reaped) == 0 {
		return err
	}
	e.tellReaped(reaped)
	err = e.results.round(ctx, e.roundLimit(), statement{sql: expiredCountSQL, args: []any{len(reaped)}})
	if isRefused(err) { // somebody has the count locked: it is not worth a failure
		e.log.Warn("rebase: expired leases could not be counted", "count", len(reaped), "error", err, "worker", e.id)
		return nil
	}
	return err
}

// tellReaped logs, and wakes this engine for what it may run itself.
func (e *engine) tellReaped(reaped []Job) {
	events := e.diedHeld(reaped, "its worker died with its last attempt")
	if len(reaped) > 0 {
		e.log.Warn("rebase: took back jobs whose worker is gone", "count", len(reaped), "worker", reaped[0].LockedBy, "by", e.id)
		e.mu.Lock()
		e.counts.Reaped += int64(len(reaped))
		e.mu.Unlock()
		e.wake("")
	}
	e.events.add(events...)
}

// reapedDueSQL asks whether a job that was reaped is due; the claimer then stops
// claiming ahead, so that it gets a slot with nothing beside it in the buffer.
const reapedDueSQL = `
select exists (
  select
  from unnest($1::text[]) l (task)
  cross join lateral (
    select
    from rebase.jobs p
    where p.finished_at is null and p.crashes <> 0
    and p.status = 'pending'
    and p.task = l.task
    and p.run_at <= now()
    limit 1
  ) x
)`

// reapedDuty is of use only while claims go on without an idle look, which asks too.
func (e *engine) reapedDuty(ctx context.Context, now time.Time) error {
	e.mu.Lock()
	e.duties.reapedAt = now.Add(250 * time.Millisecond)
	ask := (e.buffered > 0 || e.look.more) && e.reaped == 0 && !e.reapedDue
	e.mu.Unlock()
	if !ask {
		return nil
	}
	var due bool
	err := e.results.round(ctx, e.roundLimit(), statement{reapedDueSQL, []any{e.names}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&due}, func() error { return nil })
		return err
	}})
	if err == nil && due {
		e.mu.Lock()
		e.reapedDue = true
		e.mu.Unlock()
	}
	return err
}

// diedHeld logs those that were taken back from whoever held them and have no attempt left, and
// returns their events.
func (e *engine) diedHeld(jobs []Job, why string) (events []Event) {
	for _, j := range jobs {
		if j.Status == StatusFailed {
			e.log.Error("rebase: job failed for good: "+why, "job_id", j.ID, "task", j.Task, "attempt", j.Attempts, "worker", j.LockedBy)
			events = append(events, Event{Kind: EventDead, ID: j.ID, Task: j.Task, Lane: j.Lane, Worker: j.LockedBy, Attempt: j.Attempts, Err: ErrLeaseLost})
		}
	}
	return events
}
