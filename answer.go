package rebase

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Doubt: a result that found no row to write may have been recorded before, may have met a
// locked row, or may have lost its claim. The row tells, by its fence.

// answerSQL tells what has become of rows that an outcome did not reach.
const answerSQL = `
select u.ord::int, j.fence, j.status
from unnest($1::bigint[]) with ordinality u (id, ord)
left join lateral (select x.fence, x.status from rebase.jobs x where x.id = u.id limit 1) j on true`

// ask finds out why results found no row to write.
func (e *engine) ask(ctx context.Context, list []*attempt) error {
	ids := make([]int64, len(list))
	for i, a := range list {
		ids[i] = a.job.ID
	}
	fences, statuses := make([]*int64, len(list)), make([]*string, len(list))
	err := e.results.round(ctx, e.roundLimit(), answerStatement(ids, fences, statuses))
	if err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.doubtful = append(list, e.doubtful...)
		return err
	}
	e.answered(list, fences, statuses)
	return nil
}

func answerStatement(ids []int64, fences []*int64, statuses []*string) statement {
	return statement{answerSQL, []any{ids}, func(rows pgx.Rows) error {
		var ord int
		var fence *int64
		var status *string
		_, err := pgx.ForEachRow(rows, []any{&ord, &fence, &status}, func() error {
			fences[ord-1], statuses[ord-1] = fence, status
			fence, status = nil, nil
			return nil
		})
		return err
	}}
}

// answered: a fence of minus the token says that the result stands in the row already
// (the reply to it was lost, or CompleteTx wrote it). The token itself says that the row
// was locked. Anything else is a lost lease.
func (e *engine) answered(list []*attempt, fences []*int64, statuses []*string) {
	now := time.Now()
	var events []Event
	var lost, cancelled []*attempt
	e.mu.Lock()
	for i, a := range list {
		switch {
		case a.state != stateFinished:
		case fences[i] != nil && *fences[i] == -a.claim.token:
			events = e.conclude(a, Status(*statuses[i]), now, events)
		case fences[i] != nil && *fences[i] == a.claim.token:
			e.later = append(e.later, deferred{a, now.Add(retryLocked)})
		default:
			e.settle(a)
			switch {
			case a.outcome.kind == kindReleased:
			case statuses[i] != nil && Status(*statuses[i]) == StatusCancelled:
				cancelled = append(cancelled, a)
				events = append(events, e.lostEvent(a, ErrCancelled))
			default:
				lost = append(lost, a)
				events = append(events, e.lostEvent(a, ErrLeaseLost))
			}
		}
	}
	e.events.add(events...)
	e.mu.Unlock()
	for _, a := range cancelled {
		e.log.Info("rebase: a job was cancelled before its result was written, which was dropped", "job_id", a.job.ID, "task", a.job.Task,
			"attempt", a.job.Attempts, "worker", e.id, "outcome", a.outcome.kind)
	}
	for _, a := range lost {
		e.log.Warn("rebase: lease lost; the result was dropped", "job_id", a.job.ID, "task", a.job.Task, "attempt", a.job.Attempts,
			"worker", e.id, "outcome", a.outcome.kind)
	}
}

// retryLocked is the time until a result whose row was locked is sent again.
const retryLocked = 200 * time.Millisecond
