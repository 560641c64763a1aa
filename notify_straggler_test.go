package rebase_test

// The race that a gate must win: a transaction asks whether anybody sleeps, nobody does,
// the worker falls asleep, and then the transaction commits. The worker must find the job
// by itself, about as long after the commit as the transaction took, not 30 s later.

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// N1: asked before the sleep, committed after it, at random moments.
func TestN1AStragglerWaitsNoLongerThanItsTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// With one slot the worker gives its locks up for each job and falls asleep anew.
	s := r.sleeper(&rebase.WorkerOptions{Concurrency: 1}, "a")
	q := r.elsewhere(rebase.Gated)
	var late []time.Duration
	for i := range rounds(300, 10_000) {
		one(t)(q.Enqueue(t.Context(), "a", nil, nil))
		await(t, s.began)
		pause(rand.N(8 * time.Millisecond))
		began := time.Now()
		tx, err := r.pool.Begin(t.Context())
		require.NoError(t, err)
		id := one(t)(q.EnqueueTx(t.Context(), tx, "a", nil, nil))
		pause(rand.N(40 * time.Millisecond))
		require.NoError(t, tx.Commit(t.Context()))
		took := time.Since(began)
		committed := time.Now()
		require.Equal(t, id, await(t, s.began))
		late = append(late, time.Since(committed))
		require.Less(t, time.Since(committed), took+time.Second, "round %d: the transaction took %v", i, took)
	}
	slices.Sort(late)
	t.Logf("commit to start: median %v, longest %v", late[len(late)/2], late[len(late)-1])
}

// The same, made certain: the transaction is open while the worker falls asleep, which
// therefore doesn't know yet that nobody is on the way, and for a while after that.
func TestN1AWorkerKnowsOfTransactionsThatAreStillOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }() // an error says that it has ended
	q := r.elsewhere(rebase.Gated)
	id := one(t)(q.EnqueueTx(t.Context(), tx, "a", nil, nil)) // nobody sleeps
	s := r.drowsy(nil, "a")
	r.until(func() bool { return s.Locked() && r.locks() == 1 }, "it has taken its locks")
	require.False(t, s.Asleep(), "somebody who asked before is still open")
	require.NoError(t, tx.Commit(t.Context()))
	s.starts(id)
	s.sleeps()
}

// pause lets a random time pass: here the time itself is what is tested.
func pause(d time.Duration) { <-time.After(d) }
