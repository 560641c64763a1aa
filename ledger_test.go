package rebase_test

// The ledger's rows go along with results, and are no reason to keep those waiting.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// J24, N5: a row of the ledger that can't be deleted blames no result, and is tried again with pauses.
func TestJ24ALedgerRowThatCannotGoBlocksNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("create sequence tries")
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin perform nextval('public.tries'); raise exception 'no'; end $$`)
	r.exec(`create trigger refuse before delete on rebase.claims for each row execute function refuse()`)
	w := r.worker(nil)
	w.Register("x", succeed, nil)
	s := r.start(w)
	for range 5 {
		r.ends(r.enqueue("x", nil), rebase.StatusSucceeded)
	}
	require.NoError(t, s.stop())
	require.Empty(t, r.log.matching("a result can't be recorded"))
	require.Len(t, r.log.matching("rows of rebase.claims can't be deleted"), 1)
	require.LessOrEqual(t, ask[int](r, "select last_value::int from tries"), 5*5+5, "each time all that are left")

	r.exec("drop trigger refuse on rebase.claims")
	r.enqueue("x", nil)
	require.Equal(t, 1, r.once("x", nil, succeed), "RunOnce ends")
}

// J24: while somebody has the ledger, as an index build does, what needs no ledger is recorded.
func TestJ24ALockedLedgerBlocksNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release, begun := make(chan struct{}), make(chan struct{}, 2)
	r.handle("x", &rebase.WorkerOptions{Concurrency: 2, PollOnly: true}, func(context.Context, *rebase.Job) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	first := r.enqueue("x", nil) // a claim each
	await(t, begun)
	second := r.enqueue("x", nil)
	await(t, begun)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "lock table rebase.claims in share mode")
	require.NoError(t, err)
	close(release)
	r.ends(first, rebase.StatusSucceeded)
	r.ends(second, rebase.StatusSucceeded)
	require.Empty(t, r.log.matching("a result can't be recorded"))
	require.NoError(t, tx.Rollback(t.Context()))
	r.until(func() bool { return ask[int](r, "select count(*)::int from rebase.claims") == 0 }, "the ledger's rows go, too")
}
