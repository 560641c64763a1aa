// Package pgtest gives every test a PostgreSQL database of its own, with
// rebase's schema in it.
//
// A database, not a schema or a transaction, because NOTIFY channels and
// advisory locks belong to a database: tests that shared one would wake and
// block each other. It is cloned from a template, which takes about as long as a
// few queries, and dropped when the test ends, so that tests may run in parallel
// and leave nothing behind.
package pgtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// cleanupTimeout bounds what happens after a test. A pool whose connections
// never come back must fail its own test, not hang the whole run.
const cleanupTimeout = 5 * time.Second

// dropTimeout is longer: DROP DATABASE waits until every backend of the server has answered,
// and one that prints a number of a hundred thousand digits for another test does not for seconds.
const dropTimeout = time.Minute

// New returns a pool on a fresh database with rebase's schema. The pool is
// closed and the database dropped when the test ends. If no server can be found
// the test fails with a message that says what to install.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return NewWith(t, nil)
}

// NewWith is New with a chance to change the pool's configuration, whose
// MaxConns is 10.
func NewWith(t testing.TB, configure func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return open(t, (*server).createMigrated, configure)
}

// Empty is New without rebase's schema.
func Empty(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return open(t, (*server).createEmpty, nil)
}

// URL returns the address of the pool's database, for tests that connect in
// their own way or from another process.
func URL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pool.Config().ConnString()
}

// Server returns a private server of the test's own, for tests that restart it
// or need other settings. It is closed when the test ends.
//
// Only local binaries can give one. Without them the test is skipped, or fails
// if $REBASE_TEST_REQUIRE_ALL is set, as it is in ./check.
func Server(t testing.TB, cfg pgserver.Config) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), cfg)
	if err != nil && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" && lacksBinaries(err) {
		t.Skipf("a server of the test's own needs local binaries: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// open makes a database in the given way and a pool on it.
func open(t testing.TB, create func(*server, context.Context) (string, error), configure func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	s, err := theServer()
	require.NoError(t, err)
	name, err := create(s, t.Context())
	if name != "" { // it may be there although something went wrong later
		t.Cleanup(func() { drop(t, s, name) })
	}
	require.NoError(t, err)

	cfg, err := pgxpool.ParseConfig(databaseURL(s.url, name))
	require.NoError(t, err)
	cfg.MaxConns = 10
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool fails the test if a connection was not given back. pgxpool would
// wait for it for ever; dropping the database then cuts it off.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(cleanupTimeout):
		t.Errorf("pgtest: %d connections of the pool were not given back", pool.Stat().AcquiredConns())
	}
}

func drop(t testing.TB, s *server, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	if err := s.drop(ctx, name); err != nil {
		t.Errorf("pgtest: drop database %s: %v", name, err)
	}
}
