// The program is run as it is, on a database of the test's own.
package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// N1: a delayed job starts when it is due: never before, and not at some later look. The
// table is asked, not the program. The bound is far above what is usual, for a machine
// that is busy with other tests, and far below the 30 s between two looks.
func TestDelayedJobsStartWhenDue(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, pgtest.URL(t, pool), &out, pgtest.Logger(t)))
	t.Log(out.String())
	require.Regexp(t, `(?s)due in 1s: claimed .* due in 2s: claimed .* due in 5s: claimed `, out.String())

	var n int
	var least, most time.Duration
	require.NoError(t, pool.QueryRow(t.Context(), `
		select count(*), min(started_at - run_at), max(started_at - run_at) from rebase.jobs where status = 'succeeded'`).Scan(&n, &least, &most))
	require.Equal(t, len(delays), n)
	require.GreaterOrEqual(t, least, time.Duration(0))
	require.Less(t, most, 2*time.Second)
}
