package rebase_test

// M1: Stats costs the same however much history there is. Buffers are counted, which says
// what it costs on any machine; REBASE_LONG=1 measures it on ten million finished rows.

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// explained runs all statements of Stats under the operator's settings.
func (d *desk) explained() (buffers int, milliseconds float64, plans string) {
	tx := d.begin(pgx.TxOptions{})
	defer func() { _ = tx.Rollback(context.WithoutCancel(d.t.Context())) }() // there is nothing to commit
	_, err := tx.Exec(d.t.Context(), rebase.OperatorSettings, "60000")
	require.NoError(d.t, err)
	for sql, args := range rebase.StatsStatements() {
		if len(args) > 0 {
			require.Equal(d.t, []any{rebase.StatsCap}, args)
			sql = strings.ReplaceAll(sql, "$1", "10000")
		}
		var raw []byte
		err := tx.QueryRow(d.t.Context(), "explain (analyze, buffers, timing off, format json) "+sql, pgx.QueryExecModeSimpleProtocol).Scan(&raw)
		require.NoError(d.t, err, sql)
		var found []struct {
			Plan      *planNode
			Planning  float64 `json:"Planning Time"`
			Execution float64 `json:"Execution Time"`
		}
		require.NoError(d.t, json.Unmarshal(raw, &found))
		buffers += found[0].Plan.Hit + found[0].Plan.Read
		milliseconds += found[0].Planning + found[0].Execution
		plans += found[0].Plan.text(0)
		found[0].Plan.walk(func(n *planNode) {
			require.False(d.t, n.Type == "Seq Scan" && n.Relation == "jobs", "history is read:\n%s", found[0].Plan.text(0))
		})
	}
	return buffers, milliseconds, plans
}

// history makes finished rows, a few dead letters among them, and live ones.
func (d *desk) history(finished, live int) {
	d.exec(`insert into rebase.jobs (task, status, dead, finished_at, run_at)
		select 'old' || i % 10, case when i % 2000 = 0 then 'failed' else 'succeeded' end, i % 2000 = 0, now() - i * interval '1 s', now() - i * interval '1 s'
		from generate_series(1, $1::int) i`, finished)
	d.exec(`insert into rebase.jobs (task, run_at) select 'live' || i % 20, now() + (i % 200 - 100) * interval '1 s' from generate_series(1, $1::int) i`, live)
}

// M1: without statistics, and with them.
func TestM1StatsReadsNoHistory(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.history(200_000, 400)
	for _, state := range []string{`select 1`, `vacuum analyze rebase.jobs`} {
		d.exec(state)
		buffers, _, plans := d.explained()
		t.Logf("after %s: %d buffers", state, buffers)
		require.Less(t, buffers, 3000, plans)
	}
	s := d.stats()
	require.Equal(t, 100, s.DeadLetters)
	require.Len(t, s.Tasks, 21, "the dead letters are of one task")
}

// M1: nor does it read all that was reaped, as after a bad deployment.
func TestM1StatsReadsReapedJobsUpToTheCap(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, lane, run_at, crashes) select 't' || i % 2, 'l' || i % 3, now() - i * interval '1 s', 1 from generate_series(1, 60000) i`)
	for _, state := range []string{`select 1`, `vacuum analyze rebase.jobs`} {
		d.exec(state)
		buffers, _, plans := d.explained()
		t.Logf("after %s: %d buffers", state, buffers)
		require.Less(t, buffers, 3*rebase.StatsCap, plans)
	}
}

// M1: with 10 million finished and 100,000 live rows the server takes less than 20 ms.
func TestM1StatsTakesTwentyMillisecondsWithTenMillionRows(t *testing.T) {
	if os.Getenv("REBASE_LONG") == "" {
		t.Skip("takes half an hour: set REBASE_LONG=1")
	}
	d := newDesk(t)
	for range 20 {
		d.history(500_000, 5_000)
	}
	d.exec(`vacuum analyze rebase.jobs`)
	d.exec(`checkpoint`)
	var took []float64
	for range 21 {
		_, ms, _ := d.explained()
		took = append(took, ms)
	}
	first := took[0]
	slices.Sort(took)
	t.Logf("Stats on the server: median %.1f ms, first %.1f ms, slowest %.1f ms", took[10], first, took[20])
	require.Less(t, took[10], 20.0)
}
