package rebasetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/rebasetest"
)

// An attempt in the test's transaction leaves the row that a worker leaves: each way to end is
// taken by both, and the rows compared.

var errBoom = errors.New("boom")

// slow retries so late that RunOnce doesn't see it.
func slow(int) time.Duration { return time.Hour }

// A way for an attempt to end.
type ending struct {
	name     string
	handler  handler
	attempts int // MaxAttempts; 0: 3
	outcome  rebase.EventKind
	status   rebase.Status
	delay    time.Duration
	err      error
}

var endings = []ending{
	{name: "nil", handler: fine, outcome: rebase.EventSucceeded, status: rebase.StatusSucceeded},
	{name: "error", handler: returns(errBoom), outcome: rebase.EventFailed, status: rebase.StatusPending, delay: time.Hour, err: errBoom},
	{name: "last error", handler: returns(errBoom), attempts: 1, outcome: rebase.EventDead, status: rebase.StatusFailed, err: errBoom},
	{name: "Permanent", handler: returns(rebase.Permanent(errBoom)), outcome: rebase.EventDead, status: rebase.StatusFailed, err: errBoom},
	{name: "Snooze", handler: returns(rebase.Snooze(time.Minute)), outcome: rebase.EventSnoozed, status: rebase.StatusPending, delay: time.Minute},
	{name: "RetryAfter later", handler: returns(rebase.RetryAfter(2*time.Hour, errBoom)), outcome: rebase.EventFailed, status: rebase.StatusPending, delay: 2 * time.Hour, err: errBoom},
	{name: "RetryAfter sooner", handler: returns(rebase.RetryAfter(time.Second, errBoom)), outcome: rebase.EventFailed, status: rebase.StatusPending, delay: time.Hour, err: errBoom},
	{name: "ErrCancelled", handler: returns(fmt.Errorf("no use: %w", rebase.ErrCancelled)), outcome: rebase.EventCancelled, status: rebase.StatusCancelled, err: rebase.ErrCancelled},
	{name: "infrastructure", handler: returns(&pgconn.PgError{Code: "57P01", Message: "bye"}), outcome: rebase.EventSetback, status: rebase.StatusPending, delay: time.Hour},
	{name: "panic", handler: func(context.Context, *rebase.Job, mail) error { panic("boom") }, outcome: rebase.EventFailed, status: rebase.StatusPending, delay: time.Hour},
	{name: "timeout", handler: obeys, outcome: rebase.EventFailed, status: rebase.StatusPending, delay: time.Hour, err: rebase.ErrTimeout},
}

func returns(err error) handler {
	return func(context.Context, *rebase.Job, mail) error { return err }
}

// obeys returns nil when its context ends, which is too late.
func obeys(ctx context.Context, _ *rebase.Job, _ mail) error {
	<-ctx.Done()
	return nil
}

// J7, J9, J13, J20.
func TestOutcomeIsRecordedAsAWorkerRecordsIt(t *testing.T) {
	t.Parallel()
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			opts := &rebase.WorkerOptions{Backoff: slow, Logger: pgtest.Logger(t)}
			if e.name == "timeout" {
				opts.Timeout = 30 * time.Millisecond
			}
			enqueue := &rebase.EnqueueOptions{MaxAttempts: e.attempts}

			done, err := sendMail.Enqueue(t.Context(), b.queue, mail{"ada"}, enqueue)
			require.NoError(t, err)
			n, err := b.worker(e.handler, opts).RunOnce(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
			byWorker, err := b.queue.Job(t.Context(), done.ID)
			require.NoError(t, err)

			id := b.mail("ada", enqueue)
			result := rebasetest.WorkOne(t, b.tx, b.worker(e.handler, opts), sendMail)
			require.Equal(t, id, result.Job.ID)
			requireSameStory(t, byWorker, result.Job)

			require.Equal(t, e.outcome, result.Outcome)
			require.Equal(t, e.status, result.Job.Status)
			require.Equal(t, e.delay, result.Delay)
			if e.delay > 0 {
				require.WithinDuration(t, result.Job.UpdatedAt.Add(e.delay), result.Job.RunAt, time.Millisecond)
			}
			if e.err != nil {
				require.ErrorIs(t, result.Err, e.err)
			}
			require.Equal(t, e.name == "nil", result.Err == nil)
			require.Zero(t, query[int](b, b.tx, "select count(*)::int from rebase.claims"), "no claim is left in the ledger")
		})
	}
}

// requireSameStory compares what the two rows tell, apart from ids, names and times.
func requireSameStory(t *testing.T, want, got *rebase.Job) {
	t.Helper()
	require.Equal(t, story(want), story(got))
	for _, j := range []*rebase.Job{want, got} {
		require.NotEmpty(t, j.LockedBy)
		require.LessOrEqual(t, j.Fence, int64(0), "the claim is over")
		if j.FinishedAt != nil {
			require.False(t, j.FinishedAt.Before(*j.StartedAt), "it ended after it began")
			require.False(t, j.StartedAt.Before(j.CreatedAt), "and began after it was made")
		}
		for _, a := range j.History {
			require.Equal(t, j.LockedBy, a.Worker)
			require.False(t, a.EndedAt.Before(a.StartedAt))
			require.False(t, a.StartedAt.Before(j.CreatedAt))
		}
	}
}

func story(j *rebase.Job) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s attempts=%d/%d runs=%d payload=%s error=%q", j.Status, j.Attempts, j.MaxAttempts, j.Runs, j.Payload, line(j.LastError))
	fmt.Fprintf(&b, " started=%t finished=%t lease=%t", j.StartedAt != nil, j.FinishedAt != nil, j.LockedUntil != nil)
	for _, a := range j.History {
		fmt.Fprintf(&b, "\n%s attempt=%d run=%d error=%q", a.Outcome, a.Attempt, a.Run, line(a.Error))
	}
	return b.String()
}

// line is the first: a stack follows a panic.
func line(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

func TestPanicIsReturnedWithItsStack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	result := rebasetest.WorkOne(t, b.tx, b.worker(func(context.Context, *rebase.Job, mail) error { panic(errBoom) }, nil), sendMail)
	p, ok := errors.AsType[*rebase.PanicError](result.Err)
	require.True(t, ok)
	require.Equal(t, errBoom, p.Value)
	require.Contains(t, p.Stack, "work_test.go")
}

// J7: three attempts, nobody waits for the backoff, and the whole story is in the row.
func TestJobIsRunThroughAllItsAttempts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	w := b.worker(func(_ context.Context, job *rebase.Job, _ mail) error { return fmt.Errorf("attempt %d", job.Attempts) }, nil)

	result := rebasetest.WorkOne(t, b.tx, w, sendMail)
	require.GreaterOrEqual(t, result.Delay, time.Second)
	require.Less(t, result.Delay, 1200*time.Millisecond)
	result = rebasetest.WorkJob(t, b.tx, w, result.Job)
	require.Equal(t, rebase.EventFailed, result.Outcome)
	require.GreaterOrEqual(t, result.Delay, 5*time.Second)
	result = rebasetest.WorkJob(t, b.tx, w, result.Job)
	require.Equal(t, rebase.EventDead, result.Outcome)
	require.Zero(t, result.Delay)
	require.Equal(t, "attempt 3", result.Job.LastError)
	require.Len(t, result.Job.History, 3)
}

// J3, J21: the handler gets the job as a worker hands it over.
func TestHandlerGetsTheJobAndAContextOfAWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.mail("ada", &rebase.EnqueueOptions{Lane: "eu", Meta: map[string]string{"trace": "1"}})
	var calls []string
	outer := func(next rebase.Handler) rebase.Handler {
		return func(ctx context.Context, job *rebase.Job) error {
			calls = append(calls, "middleware")
			return next(ctx, job)
		}
	}
	h := func(ctx context.Context, job *rebase.Job, m mail) error {
		calls = append(calls, m.To)
		require.Equal(t, id, job.ID)
		require.Equal(t, rebase.StatusRunning, job.Status)
		require.Equal(t, 1, job.Attempts)
		require.Equal(t, 1, job.Runs)
		require.Equal(t, "eu", job.Lane)
		require.Equal(t, map[string]string{"trace": "1"}, job.Meta)
		require.Positive(t, job.Fence)
		require.NotNil(t, job.StartedAt)
		require.Equal(t, 5*time.Minute, job.LockedUntil.Sub(*job.StartedAt))
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.WithinDuration(t, time.Now().Add(time.Minute), deadline, 10*time.Second)
		return ctx.Err()
	}
	w := b.worker(h, &rebase.WorkerOptions{Middleware: []rebase.Middleware{outer}, Timeout: time.Minute})
	require.Equal(t, rebase.EventSucceeded, rebasetest.WorkOne(t, b.tx, w, sendMail).Outcome)
	require.Equal(t, []string{"middleware", "ada"}, calls)
}

// J21.
func TestPayloadThatTheHandlerCannotDecodeIsAFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.queue.EnqueueTx(t.Context(), b.tx, "send-mail", []int{1}, nil)
	require.NoError(t, err)
	result := rebasetest.WorkOne(t, b.tx, b.worker(fine, nil), sendMail)
	require.Equal(t, rebase.EventFailed, result.Outcome)
	require.ErrorContains(t, result.Err, "decode payload")
}

func TestDueJobsRunInTheirOrderOneByOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var order []string
	w := b.worker(func(_ context.Context, _ *rebase.Job, m mail) error {
		order = append(order, m.To)
		return nil
	}, nil)
	b.mail("second", nil)
	b.mail("third", nil)
	b.mail("later", &rebase.EnqueueOptions{Delay: time.Hour})
	b.mail("first", &rebase.EnqueueOptions{RunAt: time.Now().Add(-time.Hour)})
	_, err := resize.EnqueueTx(t.Context(), b.queue, b.tx, 1, nil)
	require.NoError(t, err)
	for range 3 {
		rebasetest.WorkOne(t, b.tx, w, sendMail)
	}
	require.Equal(t, []string{"first", "second", "third"}, order)
}

// J11: a job that a dead worker has left is due like any other.
func TestJobThatWasReapedIsRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.mail("ada", nil)
	b.exec("update rebase.jobs set crashes = 1, attempts = 1, runs = 1 where id = $1", id)
	result := rebasetest.WorkOne(t, b.tx, b.worker(fine, nil), sendMail)
	require.Equal(t, rebase.EventSucceeded, result.Outcome)
	require.Equal(t, 2, result.Job.Attempts)
}
