package rebase

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Renewal: at every third of the visibility timeout the leases of everything that this
// engine holds, running or waiting, are extended. Something is sent also when nothing is
// held, because it proves that the database can be reached: only a process that has
// proved this for a whole period may reap others.
//
// It never waits for a row lock. A locked row can't be taken by anybody, so it is not
// lost; and one open transaction must not stop the renewals of the rest. Nor for what a
// heartbeat may meet (heartbeat.go): that goes in a transaction of its own, afterwards.

// renewSQL writes locked_until, which no index names: a HOT update. started_at is set
// for what was claimed ahead and has begun since.
const renewSQL = `
update rebase.jobs j
set locked_until = now() + $4::interval, started_at = coalesce(j.started_at, now() - x.took)
from (
  select y.ctid, u.took::interval as took
  from rows from (unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::text[])) as u (id, fence, took)
  cross join lateral (
    select p.ctid
    from rebase.jobs p
    where p.id = u.id and p.fence = u.fence
    limit 1
    for no key update skip locked
  ) y
) x
where j.ctid = x.ctid
returning j.id`

// renewClaimsSQL extends the ledger's rows: a claim lives as long as one of its jobs.
const renewClaimsSQL = `
update rebase.claims k
set locked_until = now() + $2::interval
where k.ctid = any(array(
  select c.ctid
  from rebase.claims c
  where c.token = any($1::bigint[])
  for no key update skip locked
))
returning k.token`

// A renewal is what one round is to extend.
type renewal struct {
	attempts  []*attempt
	outsiders []*attempt // whose rows are not part of it, see renew_refused.go; their claims are
	tokens    []int64
	renewed   map[int64]bool
	kept      map[int64]bool // tokens whose row in the ledger was extended
}

// renewRows bounds a round; more than that is held only for moments.
const renewRows = 2000

// renew extends all leases, and then lets others know that this worker lives. With nothing to
// extend, one round trip does for both; if it is refused, the renewal alone tells whether that
// was due to the tables that it needs.
func (e *engine) renew(ctx context.Context) error {
	r, began := e.takeRenewal(), time.Now()
	var also []statement
	idle := len(r.tokens) == 0
	if idle {
		also = e.renewStatements(r, began)
	} else if err := e.extend(ctx, r); err != nil {
		return err
	}
	refused, err := e.sendBeat(ctx, also...)
	if err == nil && refused == nil && idle {
		e.trust(began)
	}
	if err != nil || refused == nil {
		return err
	}
	if idle {
		if err := e.extend(ctx, r); err != nil {
			return err
		}
	}
	return e.beatRefused(ctx, refused)
}

// extend extends all leases, in parts if the server refuses to do it at once.
func (e *engine) extend(ctx context.Context, r *renewal) error {
	sent := time.Now()
	err := e.results.round(ctx, e.roundLimit(), e.renewStatements(r, sent)...)
	if isRefusal(err) {
		return e.renewApart(ctx, r, err)
	}
	if err != nil {
		return err
	}
	return e.taken(ctx, r, sent)
}

// taken takes in what went through, and what the rows say about those that it did not extend.
func (e *engine) taken(ctx context.Context, r *renewal, sent time.Time) error {
	if missing := append(e.renewed(r, sent), r.outsiders...); len(missing) > 0 {
		if err := e.askRenewal(ctx, missing); err != nil {
			return err
		}
	}
	e.trust(sent)
	return nil
}

// renewStatements name the table of jobs also when there is none to renew: a worker that didn't
// notice that nobody can renew would take back what others have when they can again.
func (e *engine) renewStatements(r *renewal, now time.Time) []statement {
	var all []statement
	if len(r.attempts) == 0 {
		all = append(all, e.renewStatement(r, nil, now))
	}
	for list := range slices.Chunk(r.attempts, renewRows) {
		all = append(all, e.renewStatement(r, list, now))
	}
	return append(all, e.ledgerStatement(r))
}

func (e *engine) ledgerStatement(r *renewal) statement {
	r.kept = map[int64]bool{}
	return statement{renewClaimsSQL, []any{r.tokens, interval(e.w.opts.VisibilityTimeout)}, func(rows pgx.Rows) error {
		var token int64
		_, err := pgx.ForEachRow(rows, []any{&token}, func() error {
			r.kept[token] = true
			return nil
		})
		return err
	}}
}

func (e *engine) takeRenewal() *renewal {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &renewal{tokens: []int64{}, renewed: map[int64]bool{}}
	for token, c := range e.held {
		r.tokens = append(r.tokens, token)
		for i := range c.attempts {
			a := &c.attempts[i]
			switch {
			case a.state == stateSettled:
			case e.split.outsiders[a] != nil:
				r.outsiders = append(r.outsiders, a)
			default:
				r.attempts = append(r.attempts, a)
			}
		}
	}
	return r
}

func (e *engine) renewStatement(r *renewal, list []*attempt, now time.Time) statement {
	ids, fences, tooks := make([]int64, len(list)), make([]int64, len(list)), make([]*string, len(list))
	e.mu.Lock()
	for i, a := range list {
		ids[i], fences[i] = a.job.ID, a.claim.token
		if a.ahead && !a.began.IsZero() {
			tooks[i] = new(interval(now.Sub(a.began)))
		}
	}
	e.mu.Unlock()
	return statement{renewSQL, []any{ids, fences, tooks, interval(e.w.opts.VisibilityTimeout)}, func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			r.renewed[id] = true
			return nil
		})
		return err
	}}
}

// renewed moves the local deadlines, counted from before the request was sent, and
// returns the jobs that were not extended.
func (e *engine) renewed(r *renewal, sent time.Time) (missing []*attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	tokens := r.tokens
	if len(r.outsiders) > 0 { // only the ledger keeps these
		tokens = slices.DeleteFunc(slices.Clone(tokens), func(t int64) bool {
			return !r.kept[t] && slices.ContainsFunc(r.outsiders, func(a *attempt) bool { return a.claim.token == t })
		})
	}
	e.extended(tokens, sent)
	for _, a := range r.attempts {
		if a.state != stateSettled && !r.renewed[a.job.ID] {
			missing = append(missing, a)
		}
	}
	return missing
}

// extended moves the local deadlines of claims. The engine's lock is held.
func (e *engine) extended(tokens []int64, sent time.Time) {
	for _, token := range tokens {
		if c := e.held[token]; c != nil {
			c.deadline = sent.Add(e.leaseLocal())
			e.arm(c.deadline)
		}
	}
}

// askRenewal finds out about jobs whose leases were not extended: locked by somebody, in
// which case nobody can take them; recorded by CompleteTx; or lost.
func (e *engine) askRenewal(ctx context.Context, list []*attempt) error {
	ids := make([]int64, len(list))
	for i, a := range list {
		ids[i] = a.job.ID
	}
	fences, statuses := make([]*int64, len(list)), make([]*string, len(list))
	if err := e.results.round(ctx, e.roundLimit(), answerStatement(ids, fences, statuses)); err != nil {
		return err
	}
	var lost []*attempt
	var causes []error
	e.mu.Lock()
	for i, a := range list {
		switch {
		case a.state == stateSettled:
		case fences[i] != nil && *fences[i] == a.claim.token:
			if at := time.Now().Add(time.Second); e.split.outsiders[a] == nil && at.Before(e.duties.renew) { // locked: ask again
				e.duties.renew = at
			}
		case fences[i] != nil && *fences[i] == -a.claim.token:
			// Recorded by CompleteTx, or by a round whose reply was lost: the handler
			// or the recorder will find out.
		default:
			if a.state == stateFinished && a.outcome.kind == kindReleased { // it was, and the reply was lost
				e.settle(a)
				continue
			}
			cause := ErrLeaseLost
			if statuses[i] != nil && Status(*statuses[i]) == StatusCancelled {
				cause = ErrCancelled
			}
			e.lose(a, cause)
			lost, causes = append(lost, a), append(causes, cause)
		}
	}
	e.mu.Unlock()
	e.logLost(lost, causes)
	return nil
}

// lose ends an attempt whose claim is gone. The engine's lock is held.
func (e *engine) lose(a *attempt, cause error) {
	switch {
	case a.state == stateRunning && !a.abandoned:
		a.lost = true
		e.abandon(a, cause)
	case a.state == stateBuffered:
		e.unbuffer(a)
	}
	e.settle(a)
	e.events.add(e.lostEvent(a, cause))
	e.startSlots(time.Now())
}

// lostEvent counts and tells of an attempt whose claim is gone.
func (e *engine) lostEvent(a *attempt, cause error) Event {
	if cause == ErrCancelled {
		e.counts.Cancelled++
		return e.event(EventCancelled, a, cause)
	}
	e.counts.Lost++
	return e.event(EventLeaseLost, a, cause)
}

// logLost logs them; a logger is the user's code, so the engine's lock is not held.
func (e *engine) logLost(lost []*attempt, causes []error) {
	for i, a := range lost {
		if causes[i] == ErrCancelled {
			e.log.Info("rebase: a running job was cancelled", "job_id", a.job.ID, "task", a.job.Task, "attempt", a.job.Attempts, "worker", e.id)
		} else {
			e.log.Warn("rebase: lease lost; the handler's context is cancelled", "job_id", a.job.ID, "task", a.job.Task, "attempt", a.job.Attempts, "worker", e.id)
		}
	}
}

// cancelled makes the recorder ask at once about the jobs that it holds, if the cancelled
// one is among them.
func (e *engine) cancelled(id int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.held {
		for i := range c.attempts {
			if c.attempts[i].job.ID == id {
				e.duties.renew = time.Time{}
				e.recordSignal.set()
				return
			}
		}
	}
}
