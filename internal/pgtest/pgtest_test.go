// What a test gets from this package: a database of its own, with or without
// the schema, gone when the test is over whatever the test left open; a pool; a
// logger that outlives the test.

package pgtest_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

func query[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return v
}

const schemaExists = "select to_regclass('rebase.jobs') is not null"

func TestEveryTestHasADatabaseOfItsOwnWithTheSchema(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 3 {
		pool := pgtest.New(t)
		require.True(t, query[bool](t, pool, schemaExists))
		require.EqualValues(t, 10, pool.Config().MaxConns)
		seen[query[string](t, pool, "select current_database()")] = true
	}
	require.Len(t, seen, 3)
	for name := range seen {
		require.True(t, strings.HasPrefix(name, "rebase_test_"), name)
	}
}

func TestEmptyDatabaseHasNoSchema(t *testing.T) {
	t.Parallel()
	require.False(t, query[bool](t, pgtest.Empty(t), schemaExists))
}

func TestPoolTakesTheTestsConfiguration(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["application_name"] = "mine"
	})
	require.EqualValues(t, 1, pool.Config().MaxConns)
	require.Equal(t, "mine", query[string](t, pool, "select current_setting('application_name')"))
}

func TestURLLeadsToThePoolsDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	other, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
	require.NoError(t, err)
	defer other.Close()
	name := "select current_database()"
	require.Equal(t, query[string](t, pool, name), query[string](t, other, name))
}

func TestDatabaseIsDroppedAfterItsTestWhoeverIsStillConnected(t *testing.T) {
	t.Parallel()
	observer := pgtest.Empty(t)
	var name string
	var left *pgx.Conn
	t.Run("", func(t *testing.T) {
		pool := pgtest.New(t)
		name = query[string](t, pool, "select current_database()")
		var err error
		left, err = pgx.Connect(t.Context(), pgtest.URL(t, pool))
		require.NoError(t, err)
		_, err = left.Exec(t.Context(), "listen rebase_jobs")
		require.NoError(t, err)
	})
	require.Zero(t, query[int](t, observer, "select count(*)::int from pg_database where datname = $1", name))
	_, err := left.Exec(t.Context(), "select 1")
	require.Error(t, err, "the connection was cut")
}

// recorder stands in for a test that is expected to fail.
type recorder struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestConnectionNotGivenBackFailsItsTestButDoesNotHangIt(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	pool := pgtest.New(r)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	require.Equal(t, []string{"pgtest: 1 connections of the pool were not given back"}, r.errors)
	require.Error(t, conn.Ping(t.Context()), "the database was dropped all the same")
	conn.Release()
}

func TestManyTestsAtOnceEachGetADatabase(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			require.True(t, query[bool](t, pgtest.New(t), schemaExists))
		})
	}
}

func TestServerOfTheTestsOwnRestartsWithoutDisturbingOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	own := pgtest.Server(t, pgserver.Config{Settings: map[string]string{"shared_buffers": "16MB"}})
	require.NoError(t, own.Restart("fast"))
	conn, err := pgx.Connect(t.Context(), own.URL("postgres"))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	require.NotEqual(t, uint16(own.Port()), pool.Config().ConnConfig.Port)
	require.True(t, query[bool](t, pool, schemaExists))
}

func TestLoggerMayBeUsedAfterItsTestHasEnded(t *testing.T) {
	t.Parallel()
	var logging sync.WaitGroup
	var log *slog.Logger
	t.Run("", func(t *testing.T) {
		log = pgtest.Logger(t)
		started := make(chan struct{})
		for range 4 { // they go on while the test ends
			logging.Go(func() {
				log.Debug("first line")
				started <- struct{}{}
				for range 100 {
					log.Debug("still here")
				}
			})
			<-started
		}
	})
	log.Error("too late")
	logging.Wait() // testing would have panicked in them
}

// BenchmarkNew measures what a database costs a test, without its dropping.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		pgtest.New(b)
	}
}
