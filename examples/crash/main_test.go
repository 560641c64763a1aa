// The program is run as it is. The workers are this test binary, started again: TestMain
// does what main does.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(nameVariable) != "" {
		if err := work(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "crash:", err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}

// J11, J12, J16: the jobs of a worker that was killed come back, none is lost, and none has
// two results. That the kill hit something is asked of the history.
func TestKilledWorkersJobsComeBackAndAreRecordedOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, pgtest.URL(t, pool), &out))
	t.Log(out.String())
	require.Contains(t, out.String(), "enqueued 40, succeeded 40, ")
	require.Contains(t, out.String(), "nothing was lost, and nothing was recorded twice")

	var crashed, twice int
	require.NoError(t, pool.QueryRow(t.Context(), `
		select (select count(*) from rebase.jobs where history->0->>'outcome' = 'crashed' and attempts = 2),
			(select count(*) from rebase.jobs where attempts <> jsonb_array_length(history))`).Scan(&crashed, &twice))
	require.Positive(t, crashed)
	require.LessOrEqual(t, crashed, 4, "no more than the victim had slots")
	require.Zero(t, twice)
}
