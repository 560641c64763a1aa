package rebase_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// N5: results that are too many for the time that a round has are recorded fewer at a time, instead of
// the same number for ever. Here no single statement is too slow for the server, but two of them are
// for the worker.
func TestN5RoundsOfResultsThatTakeTooLongGetSmaller(t *testing.T) {
	t.Parallel()
	const each = 64
	r := newRig(t)
	r.enqueueMany("ends", each, nil)
	r.enqueueMany("snoozes", each, nil)
	r.exec(`create function slow() returns trigger language plpgsql as $$ begin perform pg_catalog.pg_sleep(0.01); return new; end $$`)
	r.exec(`create trigger slow before update on rebase.jobs for each row when (old.status = 'running' and new.status <> 'running') execute function slow()`)
	var all sync.WaitGroup // all end together
	all.Add(2 * each)
	w := r.worker(&rebase.WorkerOptions{Concurrency: 2 * each, VisibilityTimeout: 3 * time.Second}) // a second for a round, and 1.3 are needed
	w.Register("ends", func(context.Context, *rebase.Job) error {
		all.Done()
		all.Wait()
		return nil
	}, nil)
	w.Register("snoozes", func(context.Context, *rebase.Job) error {
		all.Done()
		all.Wait()
		return rebase.Snooze(time.Hour)
	}, nil)
	s := r.start(w)
	r.until(func() bool { return r.count("status = 'succeeded'") == each && r.count("status = 'pending'") == each }, "all are recorded")
	require.NoError(t, s.stop())
	require.Zero(t, r.count("runs <> 1"))
	require.Empty(t, r.log.matching("ERROR rebase:"))
}

// N5: the size of rounds is halved, and grows with rounds that say something about it.
func TestN5TheSizeOfRounds(t *testing.T) {
	t.Parallel()
	const limit, most = 4 * time.Second, 1000
	b := rebase.NewBound()
	require.Equal(t, 700, b.Of(700))
	b.Grow(700, 0, limit, most)
	require.Equal(t, 700, b.Of(700), "there is none, and none comes of a round that went well")
	b.Shrink(700)
	require.Equal(t, 350, b.Of(700))
	b.Shrink(350)
	require.Equal(t, 175, b.Of(700))
	require.Equal(t, 3, b.Of(3))
	b.Grow(10, 0, limit, most)
	require.Equal(t, 175, b.Of(700), "ten that went well say nothing about 175")
	b.Grow(175, 3*time.Second, limit, most)
	require.Equal(t, 175, b.Of(700), "no time to spare")
	b.Grow(175, 1500*time.Millisecond, limit, most)
	require.Equal(t, 219, b.Of(700))
	b.Grow(110, 100*time.Millisecond, limit, most)
	require.Equal(t, 438, b.Of(700))
	b.Grow(438, 100*time.Millisecond, limit, most)
	b.Grow(876, 100*time.Millisecond, limit, most)
	require.Equal(t, 10_000, b.Of(10_000), "none any more")
	for range 20 {
		b.Shrink(b.Of(700))
	}
	require.Equal(t, 1, b.Of(700))
	b.Grow(1, 0, limit, most)
	require.Equal(t, 2, b.Of(700))
}
