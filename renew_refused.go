package rebase

import (
	"context"
	"slices"
	"time"
)

// Renewals that the server refuses: a trigger of the user's raises for one row, or waits for a lock
// that somebody holds. Whose row it is only smaller rounds can tell. First the ledger is extended,
// by itself: the reaper goes by it, so that all jobs stay this worker's meanwhile. Then follow the
// jobs, in parts that are halved until the one is alone that is refused; that one is asked about
// again later, by itself. Each part is a turn of the recorder's, and results go in between.

// An outsider is an attempt that goes apart from the others' renewal: it is in one of the parts, or
// was refused alone and is postponed.
type outsider struct {
	postponed
	told bool
}

// A splitting is what is known of renewals that were refused. The engine's lock guards it.
type splitting struct {
	parts     [][]*attempt // still to be sent
	outsiders map[*attempt]*outsider
	trusted   time.Time // engine.trusted as it was, until something goes through
	said      time.Time // when a refusal was last told
}

// renewApart extends the ledger, and leaves the jobs to partDuty.
func (e *engine) renewApart(ctx context.Context, r *renewal, refused error) error {
	if len(r.tokens) == 0 {
		return refused
	}
	e.mu.Lock()
	if !e.trusted.IsZero() {
		e.split.trusted, e.trusted = e.trusted, time.Time{}
	}
	if e.split.outsiders == nil {
		e.split.outsiders = map[*attempt]*outsider{}
	}
	for _, a := range r.attempts {
		e.split.outsiders[a] = &outsider{}
	}
	e.split.parts = slices.AppendSeq(e.split.parts, slices.Chunk(r.attempts, renewRows))
	e.planParts()
	e.mu.Unlock()
	sent := time.Now()
	if err := e.results.round(ctx, e.roundLimit(), e.ledgerStatement(r)); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.extended(slices.DeleteFunc(slices.Clone(r.tokens), func(t int64) bool { return !r.kept[t] }), sent)
	return nil
}

// partDuty sends one part.
func (e *engine) partDuty(ctx context.Context, now time.Time) error {
	r := e.takePart(now)
	if r == nil {
		return nil
	}
	sent := time.Now()
	err := e.results.round(ctx, e.roundLimit(), e.renewStatement(r, r.attempts, sent))
	switch {
	case err == nil:
		e.partRenewed(r)
		return e.taken(ctx, r, sent)
	case isRefusal(err):
		e.partRefused(r.attempts, err)
		return nil
	}
	return err
}

// takePart returns the next part, or one attempt that is due again; nil if there is nothing.
func (e *engine) takePart(now time.Time) *renewal {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a, o := range e.split.outsiders {
		switch {
		case a.state == stateSettled:
			delete(e.split.outsiders, a)
		case len(e.split.parts) == 0 && o.refused > 0 && !o.at.After(now):
			e.split.parts = append(e.split.parts, []*attempt{a})
		}
	}
	for len(e.split.parts) > 0 {
		e.split.parts[0] = slices.DeleteFunc(e.split.parts[0], func(a *attempt) bool { return a.state == stateSettled })
		if len(e.split.parts[0]) > 0 {
			return &renewal{attempts: e.split.parts[0], tokens: coveredTokens(e.split.parts[0]), renewed: map[int64]bool{}}
		}
		e.split.parts = e.split.parts[1:]
	}
	e.planParts()
	return nil
}

// coveredTokens are those of the claims that have none but these jobs left. The engine's lock is held.
func coveredTokens(list []*attempt) (tokens []int64) {
	n := map[*claim]int{}
	for _, a := range list {
		if n[a.claim]++; n[a.claim] == a.claim.left {
			tokens = append(tokens, a.claim.token)
		}
	}
	return tokens
}

// partRenewed returns a part that went through to the others. Trust goes on if the last renewal
// isn't too long ago, see trust.
func (e *engine) partRenewed(r *renewal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range r.attempts {
		delete(e.split.outsiders, a)
	}
	if e.trusted.IsZero() {
		e.trusted = e.split.trusted
	}
	e.split.parts = e.split.parts[1:]
	e.planParts()
}

// partRefused halves a part, or postpones the one that it consists of. Halves go behind the other
// parts, which may all be innocent.
func (e *engine) partRefused(list []*attempt, err error) {
	now := time.Now()
	e.mu.Lock()
	e.split.parts = e.split.parts[1:]
	tell := false
	if n := len(list) / 2; n > 0 {
		e.split.parts = append(e.split.parts, list[:n:n], list[n:])
	} else if o := e.split.outsiders[list[0]]; o != nil {
		o.refuse()
		if tell = !o.told && now.Sub(e.split.said) >= time.Minute; tell {
			o.told, e.split.said = true, now
		}
	}
	e.planParts()
	e.mu.Unlock()
	if a := list[0]; tell {
		e.log.Warn("rebase: a lease can't be renewed in its job's row; it is tried again", "job_id", a.job.ID, "task", a.job.Task,
			"attempt", a.job.Attempts, "error", err, "worker", e.id)
	}
}

// planParts plans the next turn. The engine's lock is held.
func (e *engine) planParts() {
	e.duties.parts = never
	if len(e.split.parts) > 0 {
		e.duties.parts = time.Time{}
		return
	}
	for _, o := range e.split.outsiders {
		e.duties.parts = earlier(e.duties.parts, o.at)
	}
}

// rejoin ends all parts: after a lost connection one round is to renew everything, except what was
// refused alone. The engine's lock is held.
func (e *engine) rejoin() {
	for a, o := range e.split.outsiders {
		if o.refused == 0 {
			delete(e.split.outsiders, a)
		}
	}
	e.split.parts, e.split.trusted = nil, time.Time{}
	e.planParts()
}
