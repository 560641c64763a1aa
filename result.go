package rebase

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// How outcomes get into rows. An outcome is written where id and fence still agree,
// whatever the status; that the fence is this claim's is all that the right to write
// rests on. No statement here waits for a row lock: a row that somebody has locked
// stays for the next round.
//
// The subquery that locks, joined by ctid, is the form that PostgreSQL plans by index
// in every state of the table; a plain join reads the whole index of a young one.

// succeedSQL ends first attempts that went well, which are nearly all. What was claimed
// ahead has no started_at yet; it began $3 ago at the earliest.
const succeedSQL = `
with w as (
  update rebase.jobs j
  set status = 'succeeded', fence = -j.fence, finished_at = now(), updated_at = now(), locked_until = null,
    started_at = coalesce(j.started_at, now() - $3::interval), crashes = 0, setbacks = 0
  where j.ctid = any(array(
    select x.ctid
    from rows from (unnest($1::bigint[]), unnest($2::bigint[])) as u (id, fence)
    cross join lateral (
      select p.ctid
      from rebase.jobs p
      where p.id = u.id and p.fence = u.fence
      limit 1
      for no key update skip locked
    ) x
  ))
  returning j.id
)
select w.id from w`

// recordSQL writes any outcome. The row decides whether a failure was the last
// attempt. Jobs that are pending again ask the gate, once a task.
const recordSQL = `
with u as materialized (
  select x.*, u.kind, u.error, u.delay::interval as delay, u.took::interval as took,
    case
      when u.kind in ('succeeded', 'cancelled') then u.kind
      when u.kind = 'dead' or u.kind = 'failed' and x.attempts >= x.max_attempts then 'failed'
      else 'pending'
    end as ends
  from rows from (unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]), unnest($6::text[]))
    as u (id, fence, kind, error, delay, took)
  cross join lateral (
    select p.ctid, p.attempts, p.max_attempts
    from rebase.jobs p
    where p.id = u.id and p.fence = u.fence
    limit 1
    for no key update skip locked
  ) x
), w as (
  update rebase.jobs j
  set status = u.ends,
    dead = u.ends = 'failed',
    fence = case when u.kind = 'released' then 0 else -j.fence end,
    finished_at = case when u.ends <> 'pending' then now() end,
    run_at = case when u.ends = 'pending' and u.delay is not null then now() + u.delay else j.run_at end,
    attempts = j.attempts - case when u.kind in ('snoozed', 'setback', 'released', 'broken') then 1 else 0 end,
    crashes = case when u.kind = 'released' then j.crashes else 0 end,
    setbacks = case when u.kind in ('setback', 'broken') then least(j.setbacks + 1, 1000) when u.kind = 'released' then j.setbacks else 0 end,
    locked_until = null,
    started_at = case when u.took is null then null else coalesce(j.started_at, now() - u.took) end,
    last_error = case when u.kind = 'released' then j.last_error else coalesce(u.error, j.last_error) end,
    history = case
      when u.took is null or u.kind = 'succeeded' and j.attempts = 1 and j.history is null then j.history
      else (case when jsonb_array_length(j.history) >= 20 then j.history - 0 else coalesce(j.history, '[]') end) ||
        jsonb_build_object('attempt', j.attempts, 'run', j.runs, 'started_at', coalesce(j.started_at, now() - u.took),
          'ended_at', now(), 'worker', j.locked_by, 'outcome', u.kind, 'error', left(coalesce(u.error, ''), 500))
    end,
    updated_at = now()
  from u
  where j.ctid = u.ctid
  returning j.id, j.task, j.status
), asked as materialized (
  select rebase.wake(t.task, $7::int) as answer
  from (select w.task from w where w.status = 'pending' group by w.task) t
)
select w.id, w.status, (select count(asked.answer) from asked) from w`

// overSQL deletes the ledger's rows of claims whose last job has ended. One that somebody has
// locked stays, until a reaper finds it empty. The claims were made on a server that started at
// $2. If this is another, a standby has taken over or the server has crashed, and results that
// were confirmed may be gone: then a row stays while a job has its token, since without it no
// reaper would find that job.
const overSQL = `
delete from rebase.claims k
where k.ctid = any(array(
  select c.ctid
  from rebase.claims c
  where c.token = any($1::bigint[])
  and (pg_postmaster_start_time() = $2::timestamptz or ` + nobodyHas + `)
  for update skip locked
))`

// A record is one round of results.
type record struct {
	quick  []*attempt // first attempts that succeeded
	others []*attempt
	// What the server says: the ids of quick that were written, and the others' states.
	succeeded []int64
	ended     map[int64]Status
}

// missed moves those of quick that were not written to others; mostly there are none.
func (r *record) missed() {
	if len(r.succeeded) == len(r.quick) {
		return
	}
	written := make(map[int64]bool, len(r.succeeded))
	for _, id := range r.succeeded {
		written[id] = true
	}
	all := r.quick
	r.quick = nil
	for _, a := range all {
		if written[a.job.ID] {
			r.quick = append(r.quick, a)
		} else {
			r.others = append(r.others, a)
		}
	}
}

const (
	recordRows  = 2000
	recordBytes = 64 << 10
)

// takeRecord takes finished jobs from the outbox, at most a round's worth. The engine's
// lock is held.
func (e *engine) takeRecord() *record {
	r := &record{ended: map[int64]Status{}}
	limit, bytes := recordRows, recordBytes
	if far := int(min(e.results.rtt/pace, 3)); far > 0 { // over a slow link fewer, larger rounds
		limit, bytes = limit*(1+far), bytes*(1+far)
	}
	limit = e.most.of(limit)
	if e.alone > 0 {
		e.alone--
		limit = 1
	}
	size, n := 0, 0
	for _, a := range e.outbox {
		size += 32 + 2*len(a.outcome.err)
		if n == limit || n > 0 && size > bytes {
			break
		}
		n++
		if a.state != stateFinished {
			continue // lost while it waited
		}
		a.sending = true
		if a.outcome.kind == kindSucceeded && a.job.Attempts == 1 && a.job.History == nil {
			r.quick = append(r.quick, a)
		} else {
			r.others = append(r.others, a)
		}
	}
	rest := copy(e.outbox, e.outbox[n:])
	clear(e.outbox[rest:])
	e.outbox = e.outbox[:rest]
	return r
}

// record writes a round of results. What could not be written goes back into the
// outbox.
func (e *engine) record(ctx context.Context, r *record, over []*claim) error {
	statements := make([]statement, 0, 3)
	if len(r.quick) > 0 {
		statements = append(statements, e.succeedStatement(r))
	}
	if len(r.others) > 0 {
		statements = append(statements, e.recordStatement(r))
	}
	if len(over) > 0 {
		statements = append(statements, overStatement(over))
	}
	began, n := time.Now(), len(r.quick)+len(r.others)
	err := e.results.round(ctx, e.roundLimit(), statements...)
	e.sized(n, began, err)
	if err != nil {
		return e.unrecorded(r, over, err)
	}
	e.recorded(r)
	if len(over) > 0 {
		e.mu.Lock()
		e.ledger = postponed{}
		e.mu.Unlock()
	}
	e.changed.set()
	return nil
}

// sized lets the next rounds be smaller or larger than this one of n results was.
func (e *engine) sized(n int, began time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		e.most.grow(n, time.Since(began), e.roundLimit(), 4*recordRows)
	case e.tookTooLong(began, err):
		e.most.shrink(n)
	}
}

func overStatement(over []*claim) statement {
	tokens, server := make([]int64, len(over)), &over[0].server
	for i, c := range over {
		if tokens[i] = c.token; !c.server.Equal(over[0].server) {
			server = nil // some other
		}
	}
	return statement{sql: overSQL, args: []any{tokens, server}}
}

func (e *engine) succeedStatement(r *record) statement {
	ids, fences := make([]int64, len(r.quick)), make([]int64, len(r.quick))
	oldest := time.Time{}
	for i, a := range r.quick {
		ids[i], fences[i] = a.job.ID, a.claim.token
		if a.ahead {
			oldest = earlier(oldest, a.began)
		}
	}
	ago := time.Duration(0)
	if !oldest.IsZero() {
		ago = time.Since(oldest)
	}
	return statement{succeedSQL, []any{ids, fences, interval(ago)}, func(rows pgx.Rows) error {
		r.succeeded = ids[:0] // sent already
		for rows.Next() {
			value := rowReader{raw: rows.RawValues(), fields: rows.FieldDescriptions()}
			r.succeeded = append(r.succeeded, value.int())
		}
		return rows.Err()
	}}
}

func (e *engine) recordStatement(r *record) statement {
	n := len(r.others)
	ids, fences, kinds := make([]int64, n), make([]int64, n), make([]string, n)
	errs, delays, tooks := make([]*string, n), make([]*string, n), make([]*string, n)
	for i, a := range r.others {
		o := &a.outcome
		ids[i], fences[i], kinds[i] = a.job.ID, a.claim.token, o.kind
		if o.err != "" {
			errs[i] = &o.err
		}
		if o.kind == kindBroken {
			delays[i] = new(interval(time.Minute))
		} else if o.kind != kindReleased {
			delays[i] = new(interval(o.delay))
		}
		if !a.began.IsZero() {
			tooks[i] = new(interval(time.Since(a.began)))
		}
	}
	return statement{recordSQL, []any{ids, fences, kinds, errs, delays, tooks, int32(e.q.notify)}, func(rows pgx.Rows) error {
		var id, asked int64
		var status string
		_, err := pgx.ForEachRow(rows, []any{&id, &status, &asked}, func() error {
			r.ended[id] = Status(status)
			return nil
		})
		return err
	}}
}

// recorded settles what the server has confirmed, and asks about the rest.
func (e *engine) recorded(r *record) {
	now := time.Now()
	var events []Event
	r.missed()
	e.mu.Lock()
	e.suspected = e.suspected && e.alone > 0
	for _, a := range r.quick {
		a.sending = false
		if a.state == stateFinished {
			events = e.conclude(a, StatusSucceeded, now, events)
		}
	}
	for _, a := range r.others {
		a.sending = false
		status, ok := r.ended[a.job.ID]
		switch {
		case a.state != stateFinished: // settled by a renewal in the meantime
		case ok:
			events = e.conclude(a, status, now, events)
		default:
			e.doubtful = append(e.doubtful, a)
		}
	}
	e.events.add(events...)
	e.overtaken()
	e.mu.Unlock()
}

// conclude takes a recorded outcome into account.
func (e *engine) conclude(a *attempt, status Status, now time.Time, events []Event) []Event {
	e.settle(a)
	o := &a.outcome
	kind := EventKind("")
	switch {
	case status == StatusSucceeded:
		e.counts.Succeeded++
		kind = EventSucceeded
	case status == StatusFailed:
		e.counts.Dead++
		kind = EventDead
		e.died = append(e.died, a)
	case status == StatusCancelled:
		e.counts.Cancelled++
		kind = EventCancelled
	case o.kind == kindFailed:
		e.counts.Failed++
		kind = EventFailed
	case o.kind == kindSnoozed:
		e.counts.Snoozed++
		kind = EventSnoozed
	case o.kind == kindSetback:
		e.counts.Setbacks++
		kind = EventSetback
	default:
		e.counts.Released++
	}
	if status == StatusPending && !e.stopping {
		e.look.by(now.Add(o.delay + time.Millisecond))
		e.claimSignal.set()
	}
	if e.events != nil && kind != "" {
		cause := o.cause
		if kind == EventSucceeded || kind == EventSnoozed { // of the former what was said after CompleteTx
			cause = nil
		}
		events = append(events, e.event(kind, a, cause))
	}
	return events
}

// logDead writes the one Error line of each dead letter.
func (e *engine) logDead() {
	e.mu.Lock()
	died := e.died
	e.died = nil
	e.mu.Unlock()
	for _, a := range died {
		e.log.Error("rebase: job failed for good", "job_id", a.job.ID, "task", a.job.Task, "attempt", a.job.Attempts,
			"max_attempts", a.job.MaxAttempts, "worker", e.id, "error", storable(a.outcome.err, 500))
	}
}
