package rebase_test

// Errors that a broken connection leaves and that don't say whose it was. A server that
// crashes ends its sessions one after the other and says goodbye to none.

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"github.com/jackc/pgx/v5/pgxpool"
	"io"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// cuts are errors of a connection that broke without a word.
var cuts = map[string]error{
	"EOF in a message": fmt.Errorf("query: %w", io.ErrUnexpectedEOF),
	"EOF":              io.EOF,
	"reset":            &net.OpError{Op: "read", Err: os.NewSyscallError("read", errors.New("connection reset by peer"))},
	"broken pipe":      &net.OpError{Op: "write", Err: os.NewSyscallError("write", errors.New("broken pipe"))},
	"database/sql":     driver.ErrBadConn,
	"deadline":         fmt.Errorf("query: %w", context.DeadlineExceeded),
}

// failures are errors that speak of something else.
var failures = map[string]error{
	"any":  errBoom,
	"dial": &net.OpError{Op: "dial", Err: errBoom},
	"HTTP": &url.Error{Op: "Post", URL: "http://a", Err: io.ErrUnexpectedEOF},
	"slow": &url.Error{Op: "Post", URL: "http://a", Err: context.DeadlineExceeded},
}

// finishAll gives the stepper one job a task, with one attempt each, whose handler returns the
// error, and has it record what it will.
func finishAll(t *testing.T, r *rig, s *rebase.Stepper, errs map[string]error) map[string]int64 {
	ids := map[string]int64{}
	for name, err := range errs {
		ids[name] = r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
		holds, claimErr := s.Claim("x", 1, false, false)
		require.NoError(t, claimErr)
		require.Len(t, holds, 1)
		s.Begin(holds[0])
		s.Finish(holds[0], err)
	}
	require.NoError(t, s.Record())
	return ids
}

// crash ends the sessions of everybody but this one.
func crash(t *testing.T, r *rig) {
	conn, err := pgx.ConnectConfig(t.Context(), r.pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
	require.NoError(t, err)
	r.pool.Reset()
}

// J9: the handler's session is the first that a crash ends and the worker's own the last: the
// failure is not written in between.
func TestJ9ACutIsNotAFailureIfTheWorkersOwnSessionEndsAfterIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "x")
	require.NoError(t, s.Renew(), "it is connected")
	ids := finishAll(t, r, s, cuts)
	require.Equal(t, len(cuts), r.count("status = 'running' and attempts = 1"), "nothing is written yet")
	crash(t, r)
	s.DoubtIsOver()
	require.Error(t, s.Record(), "it finds its session ended")
	require.NoError(t, s.Record())
	for name, id := range ids {
		require.Equal(t, 1, r.count("id = $1 and status = 'pending' and attempts = 0 and setbacks = 1 and last_error <> ''", id), name)
	}
}

// J9: if the worker's own session goes on, it was somebody else's connection: an attempt.
func TestJ9ACutIsAFailureIfTheWorkersOwnSessionGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "x")
	ids := finishAll(t, r, s, cuts)
	s.DoubtIsOver()
	require.NoError(t, s.Record())
	for name, id := range ids {
		require.Equal(t, 1, r.count("id = $1 and status = 'failed' and attempts = 1 and setbacks = 0", id), name)
	}
}

// J9: what is no cut is written at once, and fails also amid a crash.
func TestJ9OtherErrorsAreFailuresAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newStepper(t, r.pool, nil, "x")
	for name, id := range finishAll(t, r, s, failures) {
		require.Equal(t, 1, r.count("id = $1 and status = 'failed' and attempts = 1", id), name)
	}
}

// J9: a query that waited in vain in a black hole is told by the worker's own connection, too.
func TestJ9AQueryThatTimesOutInABlackHoleIsNoFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	w := far.worker(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second, Backoff: at(time.Hour)})
	timedOut := make(chan struct{})
	w.Register("x", func(ctx context.Context, _ *rebase.Job) error {
		proxy.BlackHole(true)
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := far.pool.Exec(ctx, "select pg_sleep(600)")
		close(timedOut)
		return err
	}, nil)
	far.start(w)
	await(t, timedOut)
	far.until(func() bool { return len(far.log.matching("can't be reached")) > 0 }, "it is noticed")
	proxy.BlackHole(false)
	r.until(func() bool {
		return r.count("id = $1 and status = 'pending' and attempts = 0 and setbacks = 1", id) == 1
	}, "a setback")
}

// J9, J15: a worker that is told to stop while it keeps such a failure records it.
func TestJ15AShutdownRecordsACutThatIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	returned := make(chan struct{})
	s := r.handle("x", nil, func(context.Context, *rebase.Job) error {
		defer close(returned)
		return io.EOF
	})
	await(t, returned)
	require.NoError(t, s.stop())
	require.Equal(t, 1, r.count("status = 'failed' and attempts = 1"))
}

// J9, J13: a handler that waited for the database until its attempt's timeout is no failure, nor is
// one whose context the local deadline had ended before.
func TestJ9AnAttemptThatTimesOutInAnOutageIsNoFailure(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{"before the lease": time.Second, "after it": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			far, proxy := r.behind()
			id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
			w := far.worker(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second, Timeout: timeout, Backoff: at(time.Hour)})
			release := make(chan struct{})
			defer close(release)
			w.Register("x", func(context.Context, *rebase.Job) error {
				proxy.BlackHole(true)
				<-release
				return nil
			}, nil)
			far.start(w)
			far.until(func() bool {
				return len(far.log.matching("can't be reached")) > 0 && len(far.log.matching("timed out")) > 0
			}, "it is noticed")
			proxy.BlackHole(false)
			r.until(func() bool {
				return r.count("id = $1 and status = 'pending' and attempts = 0 and setbacks = 1", id) == 1
			}, "a setback")
		})
	}
}

// J9: a closed pool is one also among other errors.
func TestJ9AClosedPoolAmongOthersUsesNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool, err := pgxpool.NewWithConfig(t.Context(), r.pool.Config())
	require.NoError(t, err)
	pool.Close()
	_, err = pool.Exec(t.Context(), "select 1")
	require.Error(t, err)
	s := newStepper(t, r.pool, nil, "x")
	for name, id := range finishAll(t, r, s, map[string]error{"plain": err, "joined": errors.Join(errBoom, err), "two": fmt.Errorf("%w: %w", errBoom, err)}) {
		require.Equal(t, 1, r.count("id = $1 and status = 'pending' and attempts = 0", id), name)
	}
}

// J9, J17: an Archive that takes too long costs the recorder its connection, which says nothing about
// the database.
func TestJ9ASlowArchiveMakesNoSetback(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	old := r.enqueue("old", nil)
	r.exec(`update rebase.jobs set status = 'succeeded', finished_at = now() - interval '1 year' where id = $1`, old)
	late := make(chan struct{})
	opts := rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}
	opts.Retention.Archive = func(ctx context.Context, _ pgx.Tx, _ []*rebase.Job) error {
		<-ctx.Done()
		close(late)
		return ctx.Err()
	}
	r.handle("x", &opts, func(context.Context, *rebase.Job) error {
		<-late
		pause(300 * time.Millisecond) // for the recorder to notice
		return context.DeadlineExceeded
	})
	r.ends(id, rebase.StatusFailed)
}
