package rebase

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stats: how the queue is doing, from the tables alone, and cheap by construction. No
// statement counts history: live rows are counted over partial indexes up to a cap, what
// runs is listed in rebase.claims, and what was done is kept in counters. Besides it tells
// what makes a queue sick from outside: an old snapshot that keeps dead rows, a full
// notification queue, and waiting for locks.

// StatsCap is how many jobs Stats counts in all: with n tasks it stops after StatsCap ÷ n
// unfinished jobs of each, but not before 100. It is also where counting dead letters stops.
const StatsCap = 5_000

// Stats is what Queue.Stats returns.
type Stats struct {
	At      time.Time // the database's clock
	Tasks   []TaskStats
	Workers []WorkerStats // alive

	// DeadLetters is the number of failed jobs, up to StatsCap.
	DeadLetters int
	// LeaseExpirations are jobs taken back from workers that stopped renewing, in this
	// hour and the one before.
	LeaseExpirations int64
	// MissedSlots are the slots of schedules that did not fire, in all.
	MissedSlots int64
	// AbandonedHandlers run on although their attempt has timed out, was cancelled or
	// lost its lease, over all live workers.
	AbandonedHandlers int
	// Totals are counts since the counters began, by name, of all workers, alive, dead or
	// long gone: "claimed" jobs by "claims" statements; "succeeded", "dead" and
	// "cancelled" jobs; "failed" attempts that another followed; "snoozed", "setbacks" and
	// "released", which used none; "lost", "reaped" and "lease_expired".
	Totals map[string]int64

	// LockWaits are sessions that wait for a lock while they use the queue's tables.
	LockWaits int
	// NotificationQueue is how full PostgreSQL's notification queue is, from 0 to 1. At 1
	// enqueues that notify fail.
	NotificationQueue float64
	// Horizon is who holds the oldest snapshot: what has ended since can't be vacuumed.
	// Nil if nobody does.
	Horizon *Horizon
}

// TaskStats are the live jobs of a task. Counting ends with the first of its unfinished jobs
// beyond its share of StatsCap, and Capped says that it did. OldestReady is of all of them,
// in as many lanes as that share.
type TaskStats struct {
	Task         string
	Ready        int           // due, waiting for a slot
	Scheduled    int           // due later
	Running      int           // begun; see ClaimedAhead
	ClaimedAhead int           // held by a worker and not begun; or so it was claimed, and began less than 30 s ago
	Retrying     int           // of Ready and Scheduled: at least one attempt was used
	Capped       bool          // there are more unfinished jobs than were counted
	OldestReady  time.Duration // how long the oldest ready job has been due
	Attempts     map[int]int   // unfinished jobs by attempts used
	DeadLetters  int           // of the latest StatsCap dead letters
	Workers      int           // live workers that serve it
	Slots        int           // how many of its jobs can run at once, over all live workers
	Paused       bool
}

// WorkerStats is a live worker.
type WorkerStats struct {
	ID          string
	Host        string
	Tasks       []string
	Concurrency int
	StartedAt   time.Time
	SeenAt      time.Time
	Counters    map[string]int64
}

// A Horizon is the holder of the oldest snapshot.
type Horizon struct {
	Kind   string    // "session", "replication slot" or "prepared transaction"
	Holder string    // application name, slot or transaction identifier
	PID    int       // of the session, or of the one that reads the slot; 0 if there is none
	Since  time.Time // zero if unknown
	XIDs   int64     // transactions begun since
}

// Unserved are the tasks that have jobs which are due and no live worker.
func (s *Stats) Unserved() []string {
	var tasks []string
	for _, t := range s.Tasks {
		if (t.Ready > 0 || t.OldestReady > 0) && t.Workers == 0 {
			tasks = append(tasks, t.Task)
		}
	}
	return tasks
}

// statsTasksSQL and statsOldestSQL are parts of taskStatsSQL: the tasks, by a loose scan, and the
// oldest ready job of a task, by one of its lanes. reapedSQL makes them those of jobs that were
// reaped, which stand in jobs_reaped.
const (
	statsTasksSQL = `
  (select p.task from rebase.jobs p where p.finished_at is null and p.crashes = 0 order by p.task limit 1)
  union all
  select (
    select p.task from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task > f.task
    order by p.task limit 1)
  from found f
  where f.task is not null`
	statsOldestSQL = `
  with recursive lanes (lane) as (
    (select p.lane from rebase.jobs p
    where c.n > (select share.n from share) and p.finished_at is null and p.crashes = 0 and p.task = live.task
    order by p.lane limit 1)
    union all
    select (
      select p.lane from rebase.jobs p
      where p.finished_at is null and p.crashes = 0 and p.task = live.task and p.lane > l.lane
      order by p.lane limit 1)
    from lanes l
    where l.lane is not null
  )
  select min(h.run_at) as oldest
  from (select lanes.lane from lanes where lanes.lane is not null limit (select share.n from share)) l
  cross join lateral (
    select p.run_at
    from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = live.task and p.lane = l.lane and p.status = 'pending' and p.run_at <= now()
    order by p.run_at, p.id
    limit 1
  ) h`
)

func reapedSQL(part string) string {
	return strings.ReplaceAll(part, "p.crashes = 0", "p.crashes <> 0")
}

// taskStatsSQL finds the tasks by loose scans of jobs_unfinished and jobs_reaped and looks at the
// first jobs of each, $1 in all, reaped ones first; dead letters are few, and looked at as a
// whole. Those first jobs may be of one lane and all due later, so when there are more, the oldest
// of each lane is looked at, too: that relies on the two indexes again.
var taskStatsSQL = `
with recursive found (task) as (` + statsTasksSQL + `
), reaped (task) as (` + reapedSQL(strings.ReplaceAll(statsTasksSQL, "found", "reaped")) + `
), dead as materialized (
  select d.task, count(*)::int as n
  from (select p.task from rebase.jobs p where p.dead order by p.finished_at desc limit $1) d
  group by d.task
), live as (
  select f.task from found f where f.task is not null
  union
  select f.task from reaped f where f.task is not null
  union
  select dead.task from dead
), share as materialized (
  select greatest($1::int / greatest(count(*), 1), 100)::int as n from live
)
select live.task, c.ready, c.scheduled, c.running, c.ahead, c.retrying, c.n > (select share.n from share),
  coalesce((extract(epoch from now() - least(c.oldest, o.oldest, r.oldest)) * 1000000)::bigint, 0), coalesce(a.attempts, '{}'::jsonb),
  coalesce(dead.n, 0), coalesce(s.workers, 0), coalesce(s.slots, 0), exists (select from rebase.paused z where z.task = live.task)
from live
left join dead on dead.task = live.task
cross join lateral (
  select
    count(*)::int as n,
    (count(*) filter (where x.status = 'pending' and x.run_at <= now()))::int as ready,
    (count(*) filter (where x.status = 'pending' and x.run_at > now()))::int as scheduled,
    (count(*) filter (where x.status = 'running' and x.started_at is not null))::int as running,
    (count(*) filter (where x.status = 'running' and x.started_at is null))::int as ahead,
    (count(*) filter (where x.status = 'pending' and x.attempts > 0))::int as retrying,
    min(x.run_at) filter (where x.status = 'pending' and x.run_at <= now()) as oldest,
    array_agg(x.attempts) as attempts
  from (
    (select p.status, p.run_at, p.started_at, p.attempts
    from rebase.jobs p
    where p.finished_at is null and p.crashes <> 0 and p.task = live.task
    order by p.task, p.lane, p.run_at, p.id
    limit (select share.n + 1 from share))
    union all
    (select p.status, p.run_at, p.started_at, p.attempts
    from rebase.jobs p
    where p.finished_at is null and p.crashes = 0 and p.task = live.task
    order by p.task, p.lane, p.run_at, p.id
    limit (select share.n + 1 from share))
    limit (select share.n + 1 from share)
  ) x
) c
cross join lateral (` + statsOldestSQL + `
) o
cross join lateral (` + reapedSQL(statsOldestSQL) + `
) r
left join lateral (
  select jsonb_object_agg(g.attempts, g.n) as attempts
  from (select u.attempts, count(*) as n from unnest(c.attempts) u (attempts) group by u.attempts) g
) a on true
left join lateral (
  select count(*)::int as workers, sum(least(w.concurrency, coalesce((w.limits -> live.task ->> 'slots')::int, w.concurrency)))::int as slots
  from rebase.workers w
  where w.tasks @> array[live.task] and ` + aliveSQL + `
) s on true
order by live.task`

// aliveSQL: a worker says that it lives every 30 s, or at every third of its lease if that is
// shorter; three silences make it dead.
const aliveSQL = `w.seen_at > now() - least(w.lease, interval '90 seconds')`

const workerStatsSQL = `
select w.id, w.host, w.tasks, w.concurrency, w.started_at, w.seen_at, w.counters
from rebase.workers w
where ` + aliveSQL + `
order by w.id`

// totalsSQL adds the counters of workers that have a row to those that outlive them. A dead worker
// keeps its row for an hour or longer, so that all rows count, alive or not. It is one statement,
// hence one snapshot: a worker that says goodbye meanwhile is counted once.
const totalsSQL = `
select c.name, sum(c.value)::bigint, coalesce(sum(c.value) filter (where c.hour >= date_trunc('hour', now(), 'UTC') - interval '1 hour'), 0)::bigint
from (
  select k.hour, k.name, k.value
  from rebase.counters k
  union all
  select null, n.key, n.value::bigint
  from rebase.workers w
  cross join lateral jsonb_each_text(w.counters) n
  where n.key <> 'abandoned'
) c
group by c.name`

const healthSQL = `
select now(),
  (select count(*)::int from (select from rebase.jobs p where p.dead limit $1) d),
  (select count(distinct l.pid)::int
    from pg_locks l
    join pg_stat_activity a on a.pid = l.pid
    where a.wait_event_type = 'Lock'
    and l.database = (select d.oid from pg_database d where d.datname = current_database()) -- another may have tables of the same oid
    and l.relation in ('rebase.jobs'::regclass, 'rebase.claims'::regclass, 'rebase.workers'::regclass)),
  pg_notification_queue_usage(),
  (select coalesce(sum(s.missed), 0)::bigint from rebase.schedules s)`

// horizonSQL looks at what vacuum looks at: snapshots and open transactions of this
// database's sessions, walsenders, slots and prepared transactions. A session that has
// written and now idles has no snapshot and holds the horizon all the same. Vacuum itself
// doesn't, nor does the catalog's horizon of logical slots.
const horizonSQL = `
select h.kind, h.holder, h.pid, h.since, h.age
from (
  select 'session' as kind, coalesce(nullif(a.application_name, ''), a.backend_type, '') as holder, a.pid, a.xact_start as since,
    greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as age
  from pg_stat_activity a
  where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
  and (a.datname = current_database() or a.datid is null)
  and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid)
  union all
  select 'replication slot', s.slot_name::text, coalesce(s.active_pid, 0), null, age(s.xmin)::bigint
  from pg_replication_slots s
  where s.xmin is not null
  union all
  select 'prepared transaction', p.gid, 0, p.prepared, age(p.transaction)::bigint
  from pg_prepared_xacts p
  where p.database = current_database()
) h
where h.age > 0
order by h.age desc, h.since
limit 1`

// Stats returns how the queue is doing.
func (q *Queue) Stats(ctx context.Context) (*Stats, error) {
	s := &Stats{Totals: map[string]int64{}}
	err := q.round(ctx,
		statement{taskStatsSQL, []any{StatsCap}, s.readTasks},
		statement{workerStatsSQL, nil, s.readWorkers},
		statement{totalsSQL, nil, s.readTotals},
		statement{healthSQL, []any{StatsCap}, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&s.At, &s.DeadLetters, &s.LockWaits, &s.NotificationQueue, &s.MissedSlots}, func() error { return nil })
			return err
		}},
		statement{horizonSQL, nil, s.readHorizon},
	)
	if err != nil {
		return nil, fmt.Errorf("rebase: stats: %w", err)
	}
	return s, nil
}

func (s *Stats) readTasks(rows pgx.Rows) error {
	*s = Stats{Totals: map[string]int64{}}
	var t TaskStats
	var oldest int64
	_, err := pgx.ForEachRow(rows, []any{&t.Task, &t.Ready, &t.Scheduled, &t.Running, &t.ClaimedAhead, &t.Retrying, &t.Capped, &oldest,
		&t.Attempts, &t.DeadLetters, &t.Workers, &t.Slots, &t.Paused}, func() error {
		// A run time may lie so far back that no Duration holds it.
		t.OldestReady = time.Duration(min(oldest, math.MaxInt64/1000)) * time.Microsecond
		s.Tasks = append(s.Tasks, t)
		t = TaskStats{}
		return nil
	})
	return err
}

func (s *Stats) readWorkers(rows pgx.Rows) error {
	var w WorkerStats
	_, err := pgx.ForEachRow(rows, []any{&w.ID, &w.Host, &w.Tasks, &w.Concurrency, &w.StartedAt, &w.SeenAt, &w.Counters}, func() error {
		s.Workers = append(s.Workers, w)
		s.AbandonedHandlers += int(w.Counters["abandoned"])
		w = WorkerStats{}
		return nil
	})
	return err
}

func (s *Stats) readTotals(rows pgx.Rows) error {
	var name string
	var total, recent int64
	_, err := pgx.ForEachRow(rows, []any{&name, &total, &recent}, func() error {
		s.Totals[name] = total
		if name == "lease_expired" {
			s.LeaseExpirations = recent
		}
		return nil
	})
	return err
}

func (s *Stats) readHorizon(rows pgx.Rows) error {
	var h Horizon
	var since *time.Time
	_, err := pgx.ForEachRow(rows, []any{&h.Kind, &h.Holder, &h.PID, &since, &h.XIDs}, func() error {
		if since != nil {
			h.Since = since.UTC()
		}
		s.Horizon = &h
		return nil
	})
	return err
}
