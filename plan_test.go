package rebase_test

// Every statement of a worker has one good plan, and gets it in every state of the table:
// empty, large, with statistics that were taken when it was empty, with a plan that was
// cached then, and with thousands of dead index entries that an old snapshot keeps from
// being removed (Q17, Q58). The tests look at indexes and at the number of buffers, never
// at the time, which says more about the machine.
//
// A plan is read by `explain (analyze, buffers) execute` of a prepared statement under the
// worker's own settings: that is the generic plan that the product runs.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// Q17, Q58: the plans on the server that all tests use.
func TestPlansOfAllStatementsInEveryStateOfTheTable(t *testing.T) {
	t.Parallel()
	testPlans(t, pgtest.New(t))
}

// The same on PostgreSQL 18, whose planner differs: $REBASE_PG18_BIN is the directory of
// its binaries.
func TestPlansOfAllStatementsOnPostgreSQL18(t *testing.T) {
	t.Parallel()
	bin := cmp.Or(os.Getenv("REBASE_PG18_BIN"), "/usr/lib/postgresql/18/bin")
	if _, err := os.Stat(bin + "/postgres"); err != nil {
		t.Skipf("only one version of PostgreSQL is tested: REBASE_PG18_BIN is not set and there is none at %s", bin)
	}
	server := pgtest.Server(t, pgserver.Config{BinDir: bin})
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, rebase.New(pool, nil).Migrate(t.Context()))
	testPlans(t, pool)
}

// testPlans goes through the states of one table.
func testPlans(t *testing.T, pool *pgxpool.Pool) {
	var version string
	require.NoError(t, pool.QueryRow(t.Context(), "show server_version").Scan(&version))
	t.Logf("the plans of PostgreSQL %s", version)
	rows, dead := 50_000, 20_000
	if os.Getenv("REBASE_LONG") != "" {
		rows, dead = 1_000_000, 200_000
	}
	f := &planTable{pool: pool, rows: rows}
	// Autovacuum would change the state under test at a time of its own choosing.
	f.exec(t, `alter table rebase.jobs set (autovacuum_enabled = off)`)
	f.exec(t, `alter table rebase.claims set (autovacuum_enabled = off)`)
	f.exec(t, `analyze rebase.jobs, rebase.claims, rebase.workers, rebase.paused`)

	old := newPlanner(t, pool)
	f.look(t) // invents ids
	old.check(t, f, "empty")
	f.fill(t)
	old.check(t, f, "large, plan cached when it was empty")
	newPlanner(t, pool).check(t, f, "large, statistics of the empty table")
	f.exec(t, `analyze rebase.jobs, rebase.claims, rebase.workers, rebase.paused`)
	newPlanner(t, pool).check(t, f, "large")
	f.exec(t, `vacuum rebase.jobs`)
	f.holdSnapshot(t)
	f.bury(t, dead)
	newPlanner(t, pool).check(t, f, fmt.Sprintf("%d dead entries", dead))
	old.check(t, f, fmt.Sprintf("%d dead entries, plan cached when it was empty", dead))
}

// A planner is a session in which every statement has been prepared once.
type planner struct {
	conn *pgx.Conn
}

func newPlanner(t *testing.T, pool *pgxpool.Pool) *planner {
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	p := &planner{conn: conn}
	for name, sql := range rebase.WorkerStatements {
		_, err := conn.Exec(t.Context(), "prepare "+name+" as "+sql)
		require.NoError(t, err, name)
		require.Contains(t, planWants, name)
	}
	return p
}

// check looks at the plans of all statements in the table's present state.
func (p *planner) check(t *testing.T, f *planTable, state string) {
	for _, name := range slices.Sorted(maps.Keys(planWants)) {
		want := planWants[name]
		statement, _, _ := strings.Cut(name, " ") // the rest tells cases apart
		root := p.explain(t, statement, want.args(f))
		var faults []string
		root.walk(func(n *planNode) { faults = append(faults, want.faults(n)...) })
		bound := f.bound(want)
		if used := root.Hit + root.Read; used > bound {
			faults = append(faults, fmt.Sprintf("%d buffers, more than %d", used, bound))
		}
		if len(faults) > 0 {
			t.Errorf("%s, %s: %s\n%s", state, name, strings.Join(faults, "; "), root.text(0))
		}
		if os.Getenv("REBASE_PLANS") != "" {
			t.Logf("%s, %s: %d of %d buffers, %.2f ms\n%s", state, name, root.Hit+root.Read, bound, root.Time, root.text(0))
		}
	}
}

// explain runs the statement as a worker does, and takes it back.
func (p *planner) explain(t *testing.T, name, args string) *planNode {
	tx, err := p.conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	_, err = tx.Exec(t.Context(), rebase.WorkerSettings, "60000")
	require.NoError(t, err)
	if args != "" {
		args = "(" + args + ")"
	}
	var raw []byte
	err = tx.QueryRow(t.Context(), "explain (analyze, buffers, format json) execute "+name+args, pgx.QueryExecModeSimpleProtocol).Scan(&raw)
	require.NoError(t, err, "%s(%s)", name, args)
	var plans []struct{ Plan *planNode }
	require.NoError(t, json.Unmarshal(raw, &plans))
	return plans[0].Plan
}

// A planNode is a node of a plan, as explain writes it.
type planNode struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cond     string  `json:"Index Cond"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Time     float64 `json:"Actual Total Time"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []*planNode
}

func (n *planNode) walk(visit func(*planNode)) {
	visit(n)
	for _, child := range n.Plans {
		child.walk(visit)
	}
}

func (n *planNode) text(depth int) string {
	var line strings.Builder
	line.WriteString(strings.Repeat("  ", depth) + strings.Join(slices.DeleteFunc([]string{n.Type, n.Relation, n.Index, n.Cond}, func(s string) bool { return s == "" }), " "))
	line.WriteString(fmt.Sprintf(" rows=%g loops=%g buffers=%d\n", n.Rows, n.Loops, n.Hit+n.Read))
	for _, child := range n.Plans {
		line.WriteString(child.text(depth + 1))
	}
	return line.String()
}
