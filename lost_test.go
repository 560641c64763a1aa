package rebase_test

// Claims whose reply was lost: their rows are running and known to nobody.

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/faultnet"
)

// losesAClaim drops the reply to the first claim, after it has done something.
func losesAClaim(p *faultnet.Proxy, first func()) *atomic.Bool {
	lost := new(atomic.Bool)
	p.DropReplies(func(sent []byte) bool {
		if !bytes.Contains(sent, []byte("insert into rebase.claims")) || !lost.CompareAndSwap(false, true) {
			return false
		}
		first()
		return true
	})
	return lost
}

// J8, J15: RunOnce ends with the claim's error, and gives back what was claimed.
func TestJ8RunOnceGivesBackAClaimWhoseReplyWasLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behindWith(execMode)
	lost := losesAClaim(proxy, func() {})
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	w := far.worker(nil)
	w.Register("x", succeed, nil)
	_, err := w.RunOnce(t.Context())
	require.Error(t, err)
	require.True(t, lost.Load())
	require.Equal(t, 1, r.count("id = $1 and status = 'pending' and attempts = 0 and crashes = 0", id), "it never ran")
	require.Zero(t, ask[int](r, "select count(*)::int from rebase.claims"))
}

// J8, J15: a Run that is told to stop in the middle of the claim does the same.
func TestJ15AShutdownGivesBackAClaimWhoseReplyWasLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behindWith(execMode)
	var s *running
	started := make(chan struct{})
	lost := losesAClaim(proxy, func() {
		<-started
		s.cancel()
	})
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	w := far.worker(nil)
	w.Register("x", succeed, nil)
	s = far.start(w)
	close(started)
	await(t, s.done)
	require.NoError(t, s.err)
	require.True(t, lost.Load())
	require.Equal(t, 1, r.count("id = $1 and status = 'pending' and attempts = 0 and crashes = 0", id))
}

// J15: a claim that was never committed holds a shutdown up for moments, and a worker that could
// not connect has lost none.
func TestJ15AShutdownDoesNotWaitLongForAClaimThatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "x")
	require.NoError(t, s.LoseClaim("x", 1), "nothing is there to be claimed")
	require.True(t, s.Missing())
	require.NoError(t, s.FindLost())
	require.True(t, s.Missing(), "it may be under way")
	s.Later()
	require.NoError(t, s.FindLost())
	require.False(t, s.Missing())

	r.enqueue("x", nil)
	require.NoError(t, s.LoseClaim("x", 1))
	require.True(t, s.Missing())
	require.NoError(t, s.FindLost())
	require.False(t, s.Missing(), "it was found")
	require.Equal(t, 1, r.count("status = 'pending' and attempts = 0"))
}
