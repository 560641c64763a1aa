// The program is run as it is, twice on one database: it must be repeatable.
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

// J1: the job's id is the same on every attempt. J16: with CompleteTx the effect and the
// job's end are one commit, whatever the handler returns afterwards.
func TestEachEffectHappensOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out bytes.Buffer
		require.NoError(t, run(ctx, pgtest.URL(t, pool), &out, pgtest.Logger(t)))
		t.Log(out.String())
		require.Contains(t, out.String(), "is at the bank already, nothing to do")
		require.Contains(t, out.String(), "rolled back: something after it failed")
		require.Contains(t, out.String(), "The bank has 1 charge of 19.99, and the account 5.00")
	}
	var jobs string
	require.NoError(t, pool.QueryRow(t.Context(), `
		select string_agg(concat_ws(' ', task, status, attempts), ', ' order by id) from rebase.jobs`).Scan(&jobs))
	pair := "idempotent-charge succeeded 2, idempotent-credit succeeded 2"
	require.Equal(t, pair+", "+pair, jobs)
}
