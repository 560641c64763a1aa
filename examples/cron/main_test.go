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
			fmt.Fprintln(os.Stderr, "cron:", err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}

// S1, S2: two processes, one job a slot; pause and resume; run now. Twice, because the example
// must be repeatable on one database, also within a minute.
func TestTwoProcessesFireEachSlotOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 {
		var out bytes.Buffer
		require.NoError(t, run(ctx, pgtest.URL(t, pool), &out), out.String())
		t.Log(out.String())
		for _, line := range []string{"2 processes run", `nightly: "30 2 * * *" in Europe/Berlin: next on `, "report: one job for the slot", "nightly: run now",
			"0 slots missed, nothing made up for", "each slot fired once"} {
			require.Contains(t, out.String(), line)
		}
	}
	var slots, jobs, schedules int
	require.NoError(t, pool.QueryRow(t.Context(), `
		select (select count(*) from rebase.schedule_slots), (select count(distinct (idempotency_key, slot)) from rebase.jobs where slot is not null),
			(select count(*) from rebase.schedules)`).Scan(&slots, &jobs, &schedules))
	require.GreaterOrEqual(t, slots, 2)
	require.Equal(t, slots, jobs)
	require.Zero(t, schedules, "the example leaves no schedule behind")
}
