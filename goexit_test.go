package rebase_test

// A function of the user's that calls runtime.Goexit, as a failed assertion does in a test, ends
// no goroutine of the library.

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

func exits(int) time.Duration {
	runtime.Goexit()
	return 0
}

type exitingError struct{}

func (exitingError) Error() string {
	runtime.Goexit()
	return ""
}

// J14: the slot goes on and the failure is recorded.
func TestJ14GoexitInABackoffOrAnErrorLeaksNoSlot(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]struct {
		backoff rebase.Backoff
		err     error
	}{"backoff": {exits, errBoom}, "error": {at(0), exitingError{}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.enqueueMany("x", 3, &rebase.EnqueueOptions{MaxAttempts: 1})
			require.Equal(t, 3, r.once("x", &rebase.WorkerOptions{Concurrency: 1, Backoff: opts.backoff}, func(context.Context, *rebase.Job) error { return opts.err }))
			require.Equal(t, 3, r.count("status = 'failed' and last_error <> ''"))
		})
	}
}

// J13: the watch goes on, too.
func TestJ13GoexitInABackoffEndsNoWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueMany("x", 2, &rebase.EnqueueOptions{MaxAttempts: 1})
	release := make(chan struct{})
	defer close(release)
	s := r.handle("x", &rebase.WorkerOptions{Concurrency: 1, Timeout: 50 * time.Millisecond, Backoff: exits}, func(context.Context, *rebase.Job) error {
		<-release
		return nil
	})
	r.until(func() bool { return r.count("status = 'failed'") == 2 }, "both have timed out")
	require.NoError(t, s.stop())
}

// J17: nor does one in Archive end the recorder: results go on, and the jobs stay.
func TestJ17GoexitInArchiveEndsNoRecorder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("x", nil)
	require.Equal(t, 1, r.once("x", nil, succeed))
	r.exec("update rebase.jobs set finished_at = now() - interval '10 days', created_at = now() - interval '10 days'")
	archive := func(context.Context, pgx.Tx, []*rebase.Job) error { runtime.Goexit(); return nil }
	r.handle("x", &rebase.WorkerOptions{Retention: rebase.Retention{Archive: archive}}, succeed)
	r.until(func() bool { return len(r.log.matching("runtime.Goexit")) > 0 }, "it is told")
	r.ends(r.enqueue("x", nil), rebase.StatusSucceeded)
	require.Equal(t, 2, r.count("true"))
}
