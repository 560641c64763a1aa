package rebase

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A lostToken is a claim whose reply was lost. If it was committed its rows are running
// and known to nobody; they are given back by its token. The statement may still be
// under way on the server, so this is tried until it can't be any more.
type lostToken struct {
	token int64
	lost  time.Time
	until time.Time
	asked bool // well after it was lost: it is hardly under way any more
}

// lostFor is the time after which a shutdown waits no longer for a claim that has not come up.
const lostFor = 2 * time.Second

// giveBackSQL gives back all jobs of the claims $1.
const giveBackSQL = `
with u as materialized (
  select x.*
  from unnest($1::bigint[]) t (token)
  join rebase.claims k on k.token = t.token
  cross join lateral unnest(k.ids) i (id)
  cross join lateral (
    select p.ctid
    from rebase.jobs p
    where p.id = i.id and p.fence = k.token
    limit 1
    for no key update skip locked
  ) x
), w as (
  update rebase.jobs j
  set status = 'pending', fence = 0, attempts = j.attempts - 1, locked_until = null, started_at = null, updated_at = now()
  from u
  where j.ctid = u.ctid
  returning j.task
), asked as materialized (
  select rebase.wake(t.task, $2::int) as answer
  from (select w.task from w group by w.task) t
)
select count(*), (select count(asked.answer) from asked) from w`

// tokenDuty gives back the rows of claims whose reply was lost.
func (e *engine) tokenDuty(ctx context.Context, now time.Time) error {
	e.mu.Lock()
	var tokens []int64
	for _, t := range e.lostTokens {
		tokens = append(tokens, t.token)
	}
	e.duties.tokens = never
	e.mu.Unlock()
	if len(tokens) == 0 {
		return nil
	}
	var n, asked int64
	gone := map[int64]bool{} // found, and given back
	err := e.results.round(ctx, e.roundLimit(),
		statement{giveBackSQL, []any{tokens, int32(e.q.notify)}, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&n, &asked}, func() error { return nil })
			return err
		}},
		statement{emptyClaimsSQL, []any{tokens}, func(rows pgx.Rows) error {
			var token int64
			_, err := pgx.ForEachRow(rows, []any{&token}, func() error {
				gone[token] = true
				return nil
			})
			return err
		}})
	if isRefused(err) { // results are not to wait for whoever stands in the way
		e.set(&e.duties.tokens, now.Add(time.Second))
		if !e.tokensSaid {
			e.log.Warn("rebase: a claim whose reply was lost can't be given back; it is tried again", "error", err, "worker", e.id)
		}
		e.tokensSaid = true
		return nil
	}
	e.tokensSaid = e.tokensSaid && err != nil
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.duties.tokens = now.Add(100 * time.Millisecond)
		return err
	}
	rest := e.lostTokens[:0]
	for _, t := range e.lostTokens {
		if now.Before(t.until) && !gone[t.token] {
			t.asked = t.asked || now.Sub(t.lost) >= lostFor
			rest = append(rest, t)
		}
	}
	if e.lostTokens = rest; len(rest) > 0 {
		e.duties.tokens = now.Add(min(e.roundLimit()/4, time.Second))
	}
	e.changed.set()
	if n > 0 {
		e.counts.Released += n
		e.look.woken = true
		e.claimSignal.set()
	}
	return nil
}

// missing says whether a claim may still come up. The engine's lock is held.
func (e *engine) missing() bool {
	return slices.ContainsFunc(e.lostTokens, func(t lostToken) bool { return !t.asked })
}
