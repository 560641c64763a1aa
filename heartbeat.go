package rebase

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The heartbeat keeps the worker's row in rebase.workers, which tells others that it lives and
// what it serves. With it go the ping and a question about schedules.
//
// It is not part of the renewals, because it may meet what somebody else holds: a ping is a
// NOTIFY, whose commit takes a lock of the whole cluster, and waits for it while another such
// commit waits for its standby or its disk; it fails when the queue of notifications is full. What
// the server refuses here is tried again at the next renewal, and costs no lease.

// heartbeatSQL keeps the worker's row, and tells how many are alive, and whether there are
// claims that the reaper may have to look at (as expiredSQL does). A row that somebody has locked
// is passed over. "on conflict" alone would wait for it, hence the look whether there is one.
const heartbeatSQL = `
with beat as (
  update rebase.workers w
  set seen_at = now(), counters = $7::jsonb
  where w.ctid = any(array(
    select p.ctid
    from rebase.workers p
    where p.id = $1
    for no key update skip locked
  ))
), first as (
  insert into rebase.workers (id, host, tasks, concurrency, lease, limits, counters)
  select $1::text, $2::text, $3::text[], $4::integer, $5::interval, $6::jsonb, $7::jsonb
  where not exists (select from rebase.workers p where p.id = $1)
  on conflict (id) do nothing
)
select count(*), exists (select from rebase.claims k where k.locked_until < now() or k.locked_until > now() + 2 * k.lease)
from rebase.workers w
where w.seen_at > now() - interval '2 minutes'`

// sendBeat sends a heartbeat, and more along with it. What the server refuses is returned as refused,
// and nothing of it has happened.
func (e *engine) sendBeat(ctx context.Context, more ...statement) (refused, err error) {
	ping, nonce, held := e.pingStatement()
	statements := append(append(more, ping...), e.heartbeat(), e.dueStatement())
	err = e.results.round(ctx, e.roundLimit(), statements...)
	switch {
	case err == nil:
		e.pingSent(nonce)
		e.beatSaid = e.beatSaid && held
	case isRefused(err):
		e.pingRefused(nonce)
		return err, nil
	}
	return nil, err
}

// beatRefused sends a heartbeat that was refused once more, without the ping, which mostly was to
// blame. One line tells of it until all of it goes through again.
func (e *engine) beatRefused(ctx context.Context, refused error) error {
	if _, err := e.sendBeat(ctx); err != nil {
		return err
	}
	if !e.beatSaid {
		e.beatSaid = true
		e.log.Warn("rebase: a heartbeat or ping was refused; renewals go on, and it is tried again", "error", refused, "worker", e.id)
	}
	return nil
}

func (e *engine) heartbeat() statement {
	e.mu.Lock()
	defer e.mu.Unlock()
	host, _ := os.Hostname() // a label; "" will do
	args := []any{e.id, strings.ToValidUTF8(host, "?"), e.names, e.w.opts.Concurrency, interval(e.w.opts.VisibilityTimeout), e.w.limits(), e.countersJSON()}
	return statement{heartbeatSQL, args, func(rows pgx.Rows) error {
		var n int
		var expired bool
		if _, err := pgx.ForEachRow(rows, []any{&n, &expired}, func() error { return nil }); err != nil {
			return err
		}
		e.mu.Lock()
		e.peers = n
		if e.mu.Unlock(); expired {
			e.set(&e.duties.reap, time.Time{})
		}
		return nil
	}}
}
