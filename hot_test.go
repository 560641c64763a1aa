package rebase_test

// A claim and a renewal change no column that an index names, so PostgreSQL makes them HOT
// updates: no index entry is written for a job between its enqueue and its end. It is what
// the speed of the queue rests on, and one careless index would end it.

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// The rule behind J1 and J11: no index of rebase.jobs names, as a column or in its
// predicate, anything that a claim or a renewal writes.
func TestNoIndexNamesAColumnThatAClaimOrARenewalWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	rows, err := pool.Query(t.Context(), `
		select c.relname || ': ' || coalesce(pg_get_expr(i.indpred, i.indrelid), '') || ' ' || coalesce(pg_get_expr(i.indexprs, i.indrelid), '') || ' ' || (
			select string_agg(a.attname, ' ') from pg_attribute a where a.attrelid = i.indexrelid)
		from pg_index i
		join pg_class c on c.oid = i.indexrelid
		where i.indrelid = 'rebase.jobs'::regclass`)
	require.NoError(t, err)
	indexes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(indexes), 6)
	for _, index := range indexes {
		for _, column := range []string{"status", "fence", "attempts", "runs", "locked_by", "locked_until", "started_at", "updated_at"} {
			require.NotContains(t, strings.FieldsFunc(index, notInName), column, index)
		}
	}
}

func notInName(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }

// A change is what pg_stat says about the updates of rebase.jobs.
type change struct{ updates, hot int64 }

func changes(t *testing.T, pool *pgxpool.Pool) (c change) {
	// A backend reports when it is idle, at once if it is told to.
	err := pool.QueryRow(t.Context(), "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'rebase.jobs'::regclass").Scan(&c.updates, &c.hot)
	require.NoError(t, err)
	return c
}

// untilChanged waits until the statistics tell of so many more updates, requires that there are
// no more, but for some that may be, and returns how many of them were HOT.
func untilChanged(t *testing.T, pool *pgxpool.Pool, before change, updates, maybe int64) (hot int64) {
	t.Helper()
	var now change
	require.Eventually(t, func() bool {
		now = changes(t, pool)
		return now.updates-before.updates >= updates
	}, soonEnough, 50*time.Millisecond, "%d more updates", updates)
	require.LessOrEqual(t, now.updates-before.updates, updates+maybe)
	return now.hot - before.hot
}

// undisturbed returns a pool on a server of the test's own, on which nobody else holds a
// transaction open. A page that is full takes a HOT update only once it has been pruned, and
// pruning leaves what a snapshot may need; a snapshot's xmin counts the transactions of all
// databases of the server, so those of other tests too.
func undisturbed(t *testing.T) *pgxpool.Pool {
	t.Helper()
	server := pgtest.Server(t, pgserver.Config{Settings: map[string]string{"autovacuum": "off"}})
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, rebase.New(pool, nil).Migrate(t.Context()))
	return pool
}

// J10: of 3,000 jobs, each claimed and then renewed, every claim is HOT and every renewal
// is, even when all jobs of a page are renewed in one transaction. (Rows so small that a page
// can't hold all of them twice, once they are claimed, would not be: here they are of 400
// bytes.)
func TestEveryClaimAndEveryRenewalIsHOT(t *testing.T) {
	t.Parallel()
	pool := undisturbed(t)
	const n = 3000
	enqueueMany(t, pool, "hot", n, nil)
	s := newStepper(t, pool, nil, "hot")

	before := changes(t, pool)
	for claimed := 0; claimed < n; {
		holds, err := s.Claim("hot", 500, true, false)
		require.NoError(t, err)
		require.NotEmpty(t, holds)
		claimed += len(holds)
		for _, h := range holds {
			s.Begin(h)
		}
	}
	s.Disconnect() // which makes the backend report
	require.EqualValues(t, n, untilChanged(t, pool, before, n, 0), "claims that are HOT")

	before = changes(t, pool)
	require.NoError(t, s.Renew())
	s.Disconnect()
	require.EqualValues(t, n, untilChanged(t, pool, before, n, 0), "renewals that are HOT")
}

// The same in a worker at work: of a drain of 4,000 jobs all claims are HOT; the results
// aren't, since a job that has ended goes from one index to another.
func TestEveryClaimOfADrainIsHOT(t *testing.T) {
	t.Parallel()
	pool := undisturbed(t)
	const n = 4000
	ids := enqueueMany(t, pool, "hot", n, nil)
	before := changes(t, pool)
	count := newTally()
	drain(t, pool, newWorker(t, pool, 10, "hot", count.handle, nil))
	count.once(t, ids)
	// What a busy machine makes the worker give back is claimed again: each claim counts as a run.
	var claims int64
	require.NoError(t, pool.QueryRow(t.Context(), "select sum(runs) from rebase.jobs").Scan(&claims))
	// The worker's first renewal, right after its start, meets what has been claimed by then.
	hot := untilChanged(t, pool, before, 2*claims, 500)
	require.GreaterOrEqual(t, hot, claims)
}

// PostgreSQL reads a table's CHECK constraints from their stored text for each statement again, which
// with eight of them was most of what a single insert cost the server. So there is one; of domains it
// reads them once a session.
func TestATableOfJobsHasOneCheck(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	rows, err := pool.Query(t.Context(), `
		select conrelid::regclass || ': ' || conname from pg_constraint where contype = 'c' and connamespace = 'rebase'::regnamespace and conrelid <> 0
		and conrelid in ('rebase.jobs'::regclass, 'rebase.claims'::regclass)`)
	require.NoError(t, err)
	checks, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"rebase.jobs: jobs_status"}, checks)
}
