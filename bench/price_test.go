package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is to be left out of the ceiling's statements is there to be left out.
func TestWhatIsLackingWasThere(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]lack{"norowlock": noRowLock, "fewcolumns": fewColumns, "without": noneOfThem} {
		claim, runAt, result, err := (&ceilingClient{lack: l}).statements()
		require.NoError(t, err, name)
		require.Equal(t, l.claim == nil, claim == claimSQL, name)
		require.Equal(t, l.result == nil, result == succeedSQL, name)
		if l.claim != nil {
			require.Equal(t, 1, runAt, name)
			require.Contains(t, claim, "returning j.id, j.run_at, j.payload\n), ledger as (")
		}
	}
}
