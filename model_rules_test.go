package rebase_test

// What is compared after every step of the model.

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// modelRowsSQL tells of each row what the model knows.
const modelRowsSQL = `
select id, task, lane, coalesce(idempotency_key, '') as key, status, fence, attempts, max_attempts, runs, crashes, setbacks,
  coalesce(jsonb_array_length(history), 0) as history, started_at is not null as started, run_at <= now() as due
from rebase.jobs
order by id`

// modelRules must give no row in any state whatever.
var modelRules = map[string]string{
	"running means a positive fence":           `select id from rebase.jobs where (status = 'running') <> (fence > 0)`,
	"finished_at is set at the end":            `select id from rebase.jobs where (finished_at is null) <> (status in ('pending', 'running'))`,
	"only running jobs have a lease":           `select id from rebase.jobs where (locked_until is null) = (status = 'running')`,
	"one unfinished job for each task and key": `select min(id) from rebase.jobs where finished_at is null and idempotency_key is not null group by task, idempotency_key having count(*) > 1`,
	"attempts do not exceed runs or maximum":   `select id from rebase.jobs where attempts > runs or attempts > max_attempts`,
	"a pending job has an attempt left":        `select id from rebase.jobs where status = 'pending' and attempts >= max_attempts`,
	"the history has at most 20 entries":       `select id from rebase.jobs where jsonb_array_length(history) > 20`,
	"the history is in order": `select id from rebase.jobs where exists (
		select from (select (h.e ->> 'run')::int as run, lag((h.e ->> 'run')::int) over (order by h.n) as before
		  from jsonb_array_elements(history) with ordinality h (e, n)) x where x.run < x.before)`,
	"the ledger covers every running job": `select id from rebase.jobs j
		where status = 'running' and not exists (select from rebase.claims k where k.token = j.fence and j.id = any(k.ids))`,
	"a dead letter says why":               `select id from rebase.jobs where status = 'failed' and coalesce(last_error, '') = ''`,
	"a finished job stays with who had it": `select id from rebase.jobs where status in ('succeeded', 'failed') and locked_by is null`,
}

// check compares the table with the model and asks the rules.
func (m *model) check() {
	rows, err := m.pool.Query(m.t.Context(), modelRowsSQL)
	require.NoError(m.rt, err)
	got := map[int64]*modelJob{}
	for rows.Next() {
		j := new(modelJob)
		require.NoError(m.rt, rows.Scan(&j.id, &j.task, &j.lane, &j.key, &j.status, &j.fence, &j.attempts, &j.max, &j.runs,
			&j.crashes, &j.setbacks, &j.history, &j.started, &j.due))
		got[j.id] = j
	}
	require.NoError(m.rt, rows.Err())
	for id, want := range m.jobs {
		require.Contains(m.rt, got, id, "a job was lost: %v", want)
		have := *got[id]
		if want.status != rebase.StatusPending { // only then they matter
			have.due = want.due
		} else {
			have.started = want.started
		}
		require.Equal(m.rt, want.String(), have.String())
	}
	require.Len(m.rt, got, len(m.jobs), "jobs that should not be there")
	m.askRules()
}

func (m *model) askRules() {
	var parts []string
	for rule, sql := range modelRules {
		parts = append(parts, fmt.Sprintf("select '%s' as rule, x.id from (%s) x (id)", rule, sql))
	}
	// Every claim of the ledger belongs to somebody: a worker that holds it, or jobs that run.
	known := []int64{}
	for _, list := range m.holds {
		for _, h := range list {
			known = append(known, h.Job().Fence)
		}
	}
	parts = append(parts, `select 'no claim is left behind', token from rebase.claims where token <> all($1)`)
	rows, err := m.pool.Query(m.t.Context(), strings.Join(parts, " union all "), known)
	require.NoError(m.rt, err)
	broken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s string, err error) {
		var id int64
		err = row.Scan(&s, &id)
		return fmt.Sprintf("%s: %d", s, id), err
	})
	require.NoError(m.rt, err)
	require.Empty(m.rt, broken)
}
