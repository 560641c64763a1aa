// The user's database comes first and is left alone; otherwise there is a
// private server until close.

package exampledb_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/exampledb"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

func TestDatabaseURLComesFirst(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://somewhere/else")
	url, done, err := exampledb.Open(t.Context())
	require.NoError(t, err)
	require.Equal(t, "postgres://somewhere/else", url)
	done()
}

func TestPrivateServerLastsUntilClose(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := pgserver.Find()
	if _, missing := errors.AsType[*pgserver.NotFoundError](err); missing && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" {
		t.Skip(err)
	}
	url, done, err := exampledb.Open(t.Context())
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	done()
	_, err = pgx.Connect(context.Background(), url)
	require.Error(t, err)
}

func TestErrorSaysWhatToDo(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("REBASE_PG_BIN", "/nowhere")
	_, _, err := exampledb.Open(t.Context())
	require.ErrorContains(t, err, "DATABASE_URL")
	require.ErrorContains(t, err, "/nowhere")
}
