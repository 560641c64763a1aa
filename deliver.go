package rebase

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// What becomes of a claim: its rows are read one by one, and count only once the reply to
// COMMIT is there. Then they go into the buffer, and what can start starts.

// readBatch reads jobs. One that can't be read doesn't disturb the others: it is
// noted, and given back when the claim has been committed.
func (e *engine) readBatch(rows pgx.Rows, b *batch) error {
	c := b.claim
	c.attempts = make([]attempt, 0, max(min(b.wanted, aheadRows), 1))
	for rows.Next() {
		raw := rows.RawValues()
		if len(raw) > jobColumnCount {
			r := rowReader{raw: raw, fields: rows.FieldDescriptions(), next: jobColumnCount}
			b.lastLane, b.seen = r.text(nil), int(r.int())
		}
		if raw[0] == nil {
			continue // the row that only tells of the scan
		}
		c.attempts = append(c.attempts, attempt{})
		a := &c.attempts[len(c.attempts)-1]
		if err := readJob(rows, &a.job, e.intern); err != nil {
			b.broken = append(b.broken, err)
			a.state = stateFinished
			a.outcome = outcome{kind: kindBroken, err: errorText(err)}
		}
	}
	return rows.Err()
}

// jobColumnCount is the number of jobColumns.
const jobColumnCount = 24

// claimRound sends the statements as one transaction and hands over what they bring.
// It runs on the bookkeeping context: once a claim is sent it is always read to its
// end, because rows that are claimed and unknown would wait for their lease.
func (e *engine) claimRound(ctx context.Context, batches []*batch, statements []statement) error {
	sent := time.Now()
	err := e.claims.round(ctx, e.roundLimit(), statements...)
	if err == nil {
		for _, b := range batches {
			b.claim.server = e.claims.server
		}
		e.deliver(batches, sent)
		return nil
	}
	if _, unsent := errors.AsType[*connectError](err); isLost(err) && !unsent {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, b := range batches {
			e.lostTokens = append(e.lostTokens, lostToken{token: b.token, lost: time.Now(), until: sent.Add(3 * e.roundLimit())})
		}
		e.duties.tokens = time.Time{}
		e.recordSignal.set()
	}
	return fmt.Errorf("claim: %w", err)
}

// deliver takes the jobs of committed claims into the buffer and starts what can
// start.
func (e *engine) deliver(batches []*batch, sent time.Time) {
	now := time.Now()
	var lost []*attempt
	e.mu.Lock()
	for _, b := range batches {
		lost = append(lost, e.superseded(b.claim)...)
		e.deliverBatch(b, sent, now)
		if e.events != nil {
			e.claimEvents(b.claim)
		}
	}
	e.counts.Claims += int64(len(batches))
	e.startSlots(now)
	e.mu.Unlock()
	e.logLost(lost, slices.Repeat([]error{ErrLeaseLost}, len(lost)))
	for _, b := range batches {
		for _, err := range b.broken {
			e.log.Error("rebase: a row can't be read and is put aside", "error", err, "worker", e.id)
		}
	}
}

// claimEvents tells that jobs are claimed; of those that overtake a result, once it is there.
func (e *engine) claimEvents(c *claim) {
	events := make([]Event, 0, len(c.attempts))
	for i := range c.attempts {
		a := &c.attempts[i]
		if ev := e.event(EventClaimed, a, nil); a.overtakes {
			e.overtaking = append(e.overtaking, ev)
		} else {
			events = append(events, ev)
		}
	}
	e.events.add(events...)
}

// overtaken tells of the claims that overtook the round of results that has just ended.
func (e *engine) overtaken() {
	e.events.add(e.overtaking...)
	e.overtaking = nil
}

// superseded ends older attempts of the jobs that c has claimed: whoever claims a job again has
// lost it before. Replies name jobs by their ids, so the second attempt's renewals and results
// would otherwise be taken for the first's. One whose result is on the wire is left to the reply:
// a job that was due again at once may be back before it. To a standby that has taken over and
// never heard of the older claim this may be the job's first run, too.
func (e *engine) superseded(c *claim) (lost []*attempt) {
	again := map[int64]*attempt{}
	anew := e.holdsOfAnother(c.server)
	for i := range c.attempts {
		if a := &c.attempts[i]; a.job.Runs > 1 || anew {
			again[a.job.ID] = a
		}
	}
	if len(again) == 0 {
		return nil
	}
	for _, old := range e.held {
		for i := range old.attempts {
			a := &old.attempts[i]
			next := again[a.job.ID]
			if next == nil || a.state == stateSettled {
				continue
			}
			if a.sending {
				next.overtakes = true
				continue
			}
			e.lose(a, ErrLeaseLost)
			lost = append(lost, a)
		}
	}
	return lost
}

// holdsOfAnother says whether something is held that was claimed on another server.
func (e *engine) holdsOfAnother(server time.Time) bool {
	for _, c := range e.held {
		if !c.server.Equal(server) {
			return true
		}
	}
	return false
}

// unsent takes attempts off the wire after a round that failed. Those whose job was claimed again
// meanwhile don't go with it once more, since the reply names it only once: their row is asked.
func (e *engine) unsent(sent []*attempt) (again []*attempt) {
	newest := map[int64]time.Time{}
	for _, c := range e.held {
		for i := range c.attempts {
			if a := &c.attempts[i]; a.arrived.After(newest[a.job.ID]) {
				newest[a.job.ID] = a.arrived
			}
		}
	}
	for _, a := range sent {
		if a.sending = false; a.arrived.Before(newest[a.job.ID]) {
			e.doubtful = append(e.doubtful, a)
		} else {
			again = append(again, a)
		}
	}
	return again
}

func (e *engine) deliverBatch(b *batch, sent, now time.Time) {
	c := b.claim
	if c.left = len(c.attempts); c.left == 0 {
		return
	}
	c.deadline = sent.Add(e.leaseLocal())
	e.held[c.token] = c
	e.counts.Claimed += int64(c.left)
	e.arm(now.Add(maxWait))
	for i := range c.attempts {
		a := &c.attempts[i]
		e.adopt(a, b, now)
		switch {
		case a.state == stateFinished: // unreadable
			e.save(a, a.outcome)
		case e.stopping:
			e.save(a, outcome{kind: kindReleased})
		default:
			e.enbuffer(a)
		}
	}
}

// adopt ties a job to its place in the engine.
func (e *engine) adopt(a *attempt, b *batch, now time.Time) {
	t := e.byName[a.job.Task]
	if t == nil { // an unreadable row's task, perhaps
		t = e.tasks[0]
	}
	a.claim, a.lane, a.arrived, a.ahead, a.timeout = b.claim, t.lane(a.job.Lane), now, b.ahead, t.timeout
	a.engine, a.job.attempt = e, a
	size := float64(len(a.job.Payload))
	t.bytes += (size - t.bytes) / 64
	if a.job.crashes != 0 {
		e.reaped++
	}
	if a.job.Lane != "" {
		t.laned = true
	}
}
