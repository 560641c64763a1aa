package rebase_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// S1, C13: a firing that was computed from a row that has moved since does nothing: it would move
// the row on, past slots that it knows nothing of.
func TestAStaleFiringLosesNoSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := minutely("a")
	s.CatchUp = rebase.CatchUpAll(100)
	r.set(s)
	r.due("a", 0)
	stale := r.firer()
	due, err := stale.Look(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, due)
	r.due("a", 5)
	_, err = stale.Fire(t.Context())
	require.NoError(t, err)
	r.fired()
	require.GreaterOrEqual(t, r.count(`true`), 6)
	require.Zero(t, r.state("a").Missed)
}
