package rebase_test

// The table whose plans are looked at, and what is wanted of each statement's plan.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// A planTable knows what its arguments need of the table: fifty running jobs with their
// tokens, and what is to be found above and below the floor.
type planTable struct {
	pool    *pgxpool.Pool
	rows    int
	running string // ids of running jobs, an SQL array
	tokens  string // their fences
	due     string // ids of pending jobs that are due
	expired string // tokens of claims whose lease has ended
	dead    int    // entries at the head of the lane
}

func (f *planTable) exec(t *testing.T, sql string, args ...any) {
	_, err := f.pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// fill makes jobs of every kind: ended, running, due, due of a task that nobody serves,
// far in the future, in lanes, once reaped; and the claims of the running ones.
func (f *planTable) fill(t *testing.T) {
	f.exec(t, `
		insert into rebase.jobs (task, lane, status, dead, fence, run_at, finished_at, attempts, runs, crashes, locked_by, locked_until, started_at, payload, idempotency_key, key_hash)
		select
			case k when 'busy' then 'busy' when 'nobody' then 'nobody' when 'laned' then 'laned' when 'paused' then 'paused' else 'plain' end,
			case k when 'laned' then 'lane' || i % 200 else '' end,
			case when k in ('succeeded', 'failed') then k when k = 'busy' then 'running' else 'pending' end,
			k = 'failed',
			case k when 'busy' then 1000 + i / 500 else 0 end,
			case k when 'future' then now() + interval '1 day' else now() - interval '30 minutes' + i * interval '1 millisecond' end,
			case when k in ('succeeded', 'failed') then now() - interval '2 days' - i % 997 * interval '1 hour' end,
			case k when 'busy' then 1 else 0 end, case k when 'busy' then 1 else 0 end, case k when 'reaped' then 1 else 0 end,
			case k when 'busy' then 'w' end,
			case k when 'busy' then now() + case when i / 500 % 20 = 0 then interval '-1 minute' else '5 minutes' end end,
			case k when 'busy' then now() end,
			jsonb_build_object('text', repeat('x', 200)),
			case when i % 10 = 0 then 'key' || i end, case when i % 10 = 0 then substring(sha256(convert_to('key' || i, 'UTF8')) from 1 for 16) end
		from (
			select i, case
				when i % 50 < 20 then 'succeeded' when i % 50 < 25 then 'failed' when i % 50 < 30 then 'busy' when i % 50 < 35 then 'future'
				when i % 50 < 42 then 'nobody' when i % 50 < 45 then 'laned' when i % 5000 = 4999 then 'reaped' when i % 50 = 48 then 'paused' else 'due' end as k
			from generate_series(0, $1::int - 1) i
		) s`, f.rows)
	f.exec(t, `
		insert into rebase.claims (token, locked_until, lease, worker, ids)
		select fence, min(locked_until), '5 minutes', 'w', array_agg(id) from rebase.jobs where fence > 0 group by fence`)
	f.exec(t, `insert into rebase.paused (task) values ('paused')`)
	f.exec(t, `
		insert into rebase.workers (id, host, tasks, concurrency, lease) select 'w' || i, 'h', '{plain,laned,busy}', 5, '5 minutes' from generate_series(1, 50) i`)
	f.look(t)
}

// look learns ids from the table, or invents some while there are none.
func (f *planTable) look(t *testing.T) {
	array := func(sql string) (s string) {
		require.NoError(t, f.pool.QueryRow(t.Context(), sql).Scan(&s))
		return "'" + s + "'::bigint[]"
	}
	f.running = array(`select coalesce(array_agg(id), '{1,2,3}')::text from (select id from rebase.jobs where fence > 0 order by id limit 50) s`)
	f.tokens = array(`select coalesce(array_agg(fence), '{1,2,3}')::text from (select fence from rebase.jobs where fence > 0 order by id limit 50) s`)
	f.due = array(`select coalesce(array_agg(id), '{1,2,3}')::text from (
		select id from rebase.jobs where task = 'plain' and crashes = 0 and status = 'pending' and run_at <= now() order by id limit 50) s`)
	f.expired = array(`select coalesce(array_agg(token), '{1,2,3}')::text from (select token from rebase.claims where locked_until < now() order by token limit 5) s`)
}

// holdSnapshot keeps what is deleted from now on from being removed.
func (f *planTable) holdSnapshot(t *testing.T) {
	tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	_, err = tx.Exec(t.Context(), "select from rebase.jobs limit 1")
	require.NoError(t, err)
}

// bury makes n jobs at the head of the lane, and claims of theirs, that have come and gone.
func (f *planTable) bury(t *testing.T, n int) {
	f.exec(t, `
		insert into rebase.jobs (task, run_at, payload)
		select 'plain', now() - interval '2 hours', jsonb_build_object('text', repeat('x', 200)) from generate_series(1, $1::int)`, n)
	f.exec(t, `insert into rebase.claims (token, locked_until, lease, worker, ids)
		select 1000000 + i, now(), '5 minutes', 'w', '{1}' from generate_series(1, $1::int / 500) i`, n)
	f.exec(t, `update rebase.jobs set status = 'succeeded', finished_at = now() where task = 'plain' and run_at < now() - interval '1 hour'`)
	f.exec(t, `delete from rebase.claims where token > 1000000`)
	f.dead = n
}

// A planWant is what a statement's plan has to be.
type planWant struct {
	args    func(*planTable) string
	indexes []string // of rebase.jobs that may be used
	cond    string   // what the conditions on the first of them must hold
	sorts   bool     // sorts what it has found, by design
	running bool     // looks at every running job
	buffers int      // at most, however large the table is
	small   bool     // reads the claims, or the reaped jobs, one by one: there are few
	head    bool     // starts at the heads of lanes, over dead entries, if there are
}

// bound is in buffers. A dead entry costs at most one of the heap, and hardly any of the
// index.
func (f *planTable) bound(w planWant) int {
	bound := w.buffers
	if w.head {
		bound += 11 * f.dead / 10
	}
	if w.running {
		bound += 4 * f.rows / 10
	}
	if w.small {
		bound += f.rows / 2000
	}
	return bound
}

// faults says what is wrong with a node.
func (w planWant) faults(n *planNode) (faults []string) {
	if n.Relation == "jobs" && strings.Contains(n.Type, "Seq Scan") {
		faults = append(faults, "reads the whole table")
	}
	if n.Index != "" && strings.HasPrefix(n.Index, "jobs_") && !slices.Contains(w.indexes, n.Index) {
		faults = append(faults, "uses "+n.Index)
	}
	if n.Index != "" && n.Cond == "" && strings.HasPrefix(n.Index, "jobs_") && w.cond != "" {
		faults = append(faults, "reads the whole of "+n.Index)
	}
	if len(w.indexes) > 0 && n.Index == w.indexes[0] {
		for part := range strings.FieldsSeq(w.cond) {
			if !strings.Contains(n.Cond, part) {
				faults = append(faults, fmt.Sprintf("the condition on %s lacks %s", n.Index, part))
			}
		}
	}
	if strings.Contains(n.Type, "Sort") && n.Rows > 0 && !w.sorts {
		faults = append(faults, "sorts")
	}
	if strings.Contains(n.Type, "Bitmap") || strings.Contains(n.Type, "Hash Join") || strings.Contains(n.Type, "Merge Join") {
		faults = append(faults, "uses a "+n.Type)
	}
	return faults
}
