//go:build unix

package main

// What a long run found: a worker that falls asleep while a transaction is open looks again
// after 50, 100, 200 ms … so that it finds what that transaction commits without having to
// notify. Every wake that found nothing used to double the wait too, so that a dozen of them,
// of jobs that others took, made it 30 s.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// N1, N2: a straggler's job starts about as long after its commit as its transaction took, also
// when the worker is woken for nothing meanwhile.
func TestN1WakesForNothingDoNotDelayAStraggler(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	q := rebase.New(pool, nil)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // an error says that it has ended
	_, err = q.EnqueueTx(t.Context(), tx, taskProbe, nil, nil)             // nobody sleeps, so nobody is told
	require.NoError(t, err)

	began := make(chan int64, 1)
	w := rebase.NewWorker(rebase.New(pool, nil), nil)
	w.Register(taskProbe, func(_ context.Context, job *rebase.Job) error { began <- job.ID; return nil }, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() { stop(); require.NoError(t, <-ended) }()

	asleep := func() (yes bool) {
		err := pool.QueryRow(t.Context(), `
select exists (select from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.locktype = 'advisory' and l.classid = 7236 and l.granted)`).Scan(&yes)
		require.NoError(t, err)
		return yes
	}
	require.Eventually(t, asleep, 20*time.Second, 10*time.Millisecond)
	for range 12 {
		_, err := pool.Exec(t.Context(), fmt.Sprintf("notify rebase_jobs, 't:%s'", taskProbe))
		require.NoError(t, err)
		require.NoError(t, pause(t.Context(), 20*time.Millisecond)) // faster ones would make it give up its locks
	}
	require.NoError(t, tx.Commit(t.Context()))
	select {
	case <-began:
	case <-time.After(8 * time.Second):
		require.Fail(t, "the job was not found", "the transaction was open for less than a second")
	}
}
