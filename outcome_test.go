package rebase_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// How an attempt can end, and what its row then says: failure, panic, Permanent,
// RetryAfter, Snooze, ErrCancelled, infrastructure trouble; the backoff; the history.

// J7, Q32: whatever goes wrong in a handler is a failure of this job alone, with a text
// that helps.
func TestEveryWayToFailIsAFailureWithAReason(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var nilMap map[string]int
	ways := map[string]struct {
		h    rebase.Handler
		want []string
	}{
		"error":    {func(context.Context, *rebase.Job) error { return errBoom }, []string{"boom"}},
		"panic":    {func(context.Context, *rebase.Job) error { panic("odd value") }, []string{"odd value", "outcome_test.go"}},
		"panicnil": {func(context.Context, *rebase.Job) error { panic(nil) }, []string{"panic", "outcome_test.go"}},
		"goexit":   {func(context.Context, *rebase.Job) error { runtime.Goexit(); return nil }, []string{"Goexit", "outcome_test.go"}},
		"nilmap":   {func(context.Context, *rebase.Job) error { nilMap["a"] = 1; return nil }, []string{"nil map", "outcome_test.go"}},
		"empty":    {func(context.Context, *rebase.Job) error { return errors.New("") }, []string{"without a text"}},
		"angry":    {func(context.Context, *rebase.Job) error { return angryError{} }, []string{"panicked"}},
		"angrypan": {func(context.Context, *rebase.Job) error { panic(angryError{}) }, []string{"angryError"}},
		"wrapnil":  {func(context.Context, *rebase.Job) error { return rebase.Permanent(nil) }, []string{"permanent failure"}},
	}
	w := r.worker(&rebase.WorkerOptions{Concurrency: 1})
	ids := map[string]int64{}
	for name, way := range ways {
		w.Register(name, way.h, nil)
		ids[name] = r.enqueue(name, &rebase.EnqueueOptions{MaxAttempts: 2})
	}
	w.Register("fine", succeed, nil)
	r.enqueueMany("fine", 20, nil)
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 20+2*len(ways)-1, n, "each twice, but Permanent once")
	require.Equal(t, 20, r.count("status = 'succeeded'"), "the slot goes on")
	for name, way := range ways {
		j := r.job(ids[name])
		require.Equal(t, rebase.StatusFailed, j.Status, name)
		for _, want := range way.want {
			require.Contains(t, j.LastError, want, name)
		}
		require.Len(t, j.History, j.Runs, name)
		require.Len(t, r.log.matching("ERROR rebase: job failed for good", fmt.Sprintf("job_id=%d ", j.ID)), 1, "one Error line: %s", name)
	}
	require.Equal(t, len(ways), ask[int](r, "select count(*)::int from (select task, attempts, last_error, updated_at from rebase.jobs where status = 'failed' order by updated_at desc) d"))
}

type angryError struct{}

func (angryError) Error() string { panic("no text for you") }

// Q30, J20: NUL, invalid UTF-8 and a megabyte in the text of an error are recorded, and
// the batch that they are in is unharmed.
func TestHostileErrorTextsAreStoredAndCut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	texts := []string{"a\x00b", "a\xffb\xc3", strings.Repeat("x", 1<<20), strings.Repeat("ä€\x00\xff", 100_000), `\u0000 "quoted" \`}
	for i := range texts {
		r.enqueue("bad", &rebase.EnqueueOptions{MaxAttempts: 1, Meta: map[string]string{"i": fmt.Sprint(i)}})
		r.enqueue("bad", &rebase.EnqueueOptions{MaxAttempts: 1, Meta: map[string]string{"i": fmt.Sprint(i), "panic": "y"}})
	}
	good := r.enqueue("bad", nil)
	r.once("bad", nil, func(_ context.Context, job *rebase.Job) error {
		var i int
		if _, err := fmt.Sscan(job.Meta["i"], &i); err != nil {
			return nil
		}
		if job.Meta["panic"] != "" {
			panic(texts[i])
		}
		return errors.New(texts[i])
	})
	require.Equal(t, rebase.StatusSucceeded, r.job(good).Status)
	require.Equal(t, 2*len(texts), r.count("status = 'failed' and last_error is not null and char_length(last_error) between 1 and 4000"))
	require.Zero(t, r.count("char_length(history -> 0 ->> 'error') > 500"))
	for j, err := range r.failed() {
		require.NoError(t, err)
		require.True(t, utf8.ValidString(j.LastError))
	}
	require.Equal(t, 2, r.count(`last_error like '%a␀b%'`), "the truth is kept")
}

// failed are the dead letters.
func (r *rig) failed() func(func(*rebase.Job, error) bool) {
	ids := ask[[]int64](r, "select coalesce(array_agg(id), '{}') from rebase.jobs where status = 'failed'")
	return func(yield func(*rebase.Job, error) bool) {
		for _, id := range ids {
			j, err := r.q.Job(r.t.Context(), id)
			if !yield(j, err) {
				return
			}
		}
	}
}

// Q32, J21: a payload that doesn't decode is an ordinary failure, then a dead letter.
func TestAPayloadThatDoesNotDecodeFailsLikeAnythingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	done, err := r.q.Enqueue(t.Context(), "typed", "text", &rebase.EnqueueOptions{MaxAttempts: 2})
	require.NoError(t, err)
	w := r.worker(nil)
	rebase.Handle(w, "typed", func(context.Context, *rebase.Job, int) error { return nil }, nil)
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	j := r.job(done.ID)
	require.Equal(t, rebase.StatusFailed, j.Status)
	require.Contains(t, j.LastError, `decode payload of task "typed"`)
}

// J7: the default backoff is 1 s, 5 s, 25 s … by the database's clock, times [1, 1.2).
func TestAFailureWaitsByTheBackoff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("flaky", &rebase.EnqueueOptions{MaxAttempts: 9})
	for i, want := range []float64{1, 5, 25, 125, 625, 3125, 3600} {
		r.exec("update rebase.jobs set run_at = now() - interval '1 hour'")
		r.once("flaky", &rebase.WorkerOptions{Backoff: rebase.Exponential(0, 5, 0)}, func(context.Context, *rebase.Job) error { return errBoom })
		j := r.job(id)
		require.Equal(t, rebase.StatusPending, j.Status)
		require.Equal(t, i+1, j.Attempts)
		got := j.RunAt.Sub(j.UpdatedAt).Seconds()
		if want == 3600 {
			require.True(t, got > 0.8*want-0.001 && got <= want, "attempt %d: %v s", i+1, got)
		} else {
			require.True(t, got >= want && got < 1.2*want+0.001, "attempt %d: %v s", i+1, got)
		}
	}
}

// J7: a task's backoff replaces the worker's, and gets no jitter; RetryAfter is a floor;
// a policy that panics costs nothing but itself.
func TestDelaysComeFromTheTaskTheWorkerOrTheError(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fail := func(err error) rebase.Handler { return func(context.Context, *rebase.Job) error { return err } }
	w := r.worker(&rebase.WorkerOptions{Backoff: at(10 * time.Second)})
	want := map[string]time.Duration{}
	add := func(task string, err error, o *rebase.TaskOptions, d time.Duration) {
		w.Register(task, fail(err), o)
		r.enqueue(task, nil)
		want[task] = d
	}
	add("worker", errBoom, nil, 10*time.Second)
	add("task", errBoom, &rebase.TaskOptions{Backoff: at(7 * time.Second)}, 7*time.Second)
	add("later", rebase.RetryAfter(time.Minute, errBoom), nil, time.Minute)
	add("sooner", rebase.RetryAfter(time.Second, errBoom), nil, 10*time.Second)
	add("wrapped", fmt.Errorf("wrapped: %w", rebase.RetryAfter(time.Minute, nil)), nil, time.Minute)
	add("snooze", rebase.Snooze(time.Hour), nil, time.Hour)
	add("huge", rebase.RetryAfter(1<<63-1, errBoom), nil, 10*365*24*time.Hour)
	_, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	for task, d := range want {
		got := ask[float64](r, "select extract(epoch from run_at - updated_at)::float8 from rebase.jobs where task = $1", task)
		require.InDelta(t, d.Seconds(), got, 0.001, task)
	}
	require.Equal(t, 0, ask[int](r, "select attempts from rebase.jobs where task = 'snooze'"), "J7: a snooze uses no attempt")
	require.Equal(t, 1, ask[int](r, "select attempts from rebase.jobs where task = 'later'"), "RetryAfter does")
}

// J7: a Backoff that panics: the default holds, and the job is not lost.
func TestABackoffThatPanicsFallsBackToTheDefault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	r.once("x", &rebase.WorkerOptions{Backoff: func(int) time.Duration { panic("policy") }}, func(context.Context, *rebase.Job) error { return errBoom })
	j := r.job(id)
	require.Equal(t, rebase.StatusPending, j.Status)
	require.GreaterOrEqual(t, j.RunAt.Sub(j.UpdatedAt), time.Second)
	require.Len(t, r.log.matching("ERROR", "Backoff panicked"), 1)
}

// Q46: no base, factor, limit or attempt number makes a hot loop or an overflow.
func TestExponentialStaysInRange(t *testing.T) {
	t.Parallel()
	for _, base := range []time.Duration{-time.Hour, 0, 1, time.Second, 1<<63 - 1} {
		for _, factor := range []float64{-1, 0, 0.5, 1, 5, 1e300} {
			for _, limit := range []time.Duration{-1, 0, time.Second, 1<<63 - 1} {
				f := rebase.Exponential(base, factor, limit)
				for _, n := range []int{-5, 0, 1, 2, 10_000, 1 << 40} {
					d := f(n)
					require.True(t, d > 0 && d <= 10*365*24*time.Hour, "%v %v %v %d: %v", base, factor, limit, n, d)
				}
			}
		}
	}
}

// Q46: a policy of zero, below zero or beyond all years, and an attempt number of 10,000.
func TestAPolicyOutOfRangeMakesNoHotLoop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, d := range []time.Duration{0, -time.Hour, 1<<63 - 1} {
		id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 20_000, Delay: time.Hour})
		r.exec("update rebase.jobs set attempts = 9999, run_at = now() where id = $1", id)
		called := 0
		r.once("x", &rebase.WorkerOptions{Backoff: func(int) time.Duration { called++; return d }}, func(context.Context, *rebase.Job) error {
			if called > 0 {
				return rebase.Permanent(errBoom)
			}
			return errBoom
		})
		wait := ask[float64](r, `select extract(epoch from run_at - (history -> 0 ->> 'ended_at')::timestamptz)::float8 from rebase.jobs where id = $1`, id)
		require.GreaterOrEqual(t, wait, 0.009, d)
	}
}

// J7: ErrCancelled ends the job as cancelled; Permanent at once, also when wrapped.
func TestPermanentAndErrCancelledEndTheJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.enqueue("dead", &rebase.EnqueueOptions{IdempotencyKey: "k"})
	gone := r.enqueue("gone", nil)
	w := r.worker(nil)
	w.Register("dead", func(context.Context, *rebase.Job) error { return fmt.Errorf("outer: %w", rebase.Permanent(errBoom)) }, nil)
	w.Register("gone", func(context.Context, *rebase.Job) error { return fmt.Errorf("no use: %w", rebase.ErrCancelled) }, nil)
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, rebase.StatusFailed, r.job(dead).Status)
	require.Equal(t, "outer: boom", r.job(dead).LastError)
	require.Equal(t, rebase.StatusCancelled, r.job(gone).Status)
	r.enqueue("dead", &rebase.EnqueueOptions{IdempotencyKey: "k"}) // the key is free again
}

// J9: a handler's error that is a failed Postgres connection uses no attempt and is
// visible in the row; an ordinary network error is an attempt.
func TestInfrastructureTroubleUsesNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{Backoff: at(time.Minute)})
	pg := func(code string) error { return fmt.Errorf("query: %w", &pgconn.PgError{Code: code}) }
	setbacks := map[string]error{
		"closed": pgconn.ErrConnClosed, "08006": pg("08006"), "57P01": pg("57P01"), "57P02": pg("57P02"), "57P03": pg("57P03"),
		"57P04": pg("57P04"), "57P05": pg("57P05"), "53300": pg("53300"), "25006": pg("25006"),
		"connect": fmt.Errorf("x: %w", &pgconn.ConnectError{Config: &pgconn.Config{}}), "pool": errors.New("closed pool"),
	}
	failures := map[string]error{"net": &net.OpError{Op: "dial", Err: errBoom}, "23505": pg("23505"), "40001": pg("40001"), "57014": pg("57014"), "deadline": context.DeadlineExceeded}
	for _, m := range []map[string]error{setbacks, failures} {
		for task, err := range m {
			w.Register(task, func(context.Context, *rebase.Job) error { return err }, nil)
			r.enqueue(task, &rebase.EnqueueOptions{MaxAttempts: 1})
		}
	}
	_, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	for task := range setbacks {
		require.Equal(t, 1, r.count(`task = $1 and status = 'pending' and attempts = 0 and setbacks = 1 and run_at > now()
			and last_error <> '' and history -> 0 ->> 'outcome' = 'setback'`, task), task)
	}
	for task := range failures {
		require.Equal(t, 1, r.count(`task = $1 and status = 'failed'`, task), task)
	}
}

// J9: 25 setbacks in a row; the next ones count. A success of another kind begins anew.
func TestSetbacksAreBoundedAndThePolicyCanBeReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine := errors.New("my own trouble")
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 2})
	opts := &rebase.WorkerOptions{IsInfrastructure: func(err error) bool { return errors.Is(err, mine) }}
	n := r.once("x", opts, func(context.Context, *rebase.Job) error { return mine })
	require.Equal(t, 52, n, "a failure that counted begins the count anew")
	j := r.job(id)
	require.Equal(t, rebase.StatusFailed, j.Status)
	require.Equal(t, 2, j.Attempts)
	require.Equal(t, n, j.Runs)
	require.Len(t, j.History, 20)
}

// J20: the last 20 attempts, with who, when, how and why; each text cut at 500 characters.
func TestTheHistoryKeepsTheLastTwentyAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("long", &rebase.EnqueueOptions{MaxAttempts: 30})
	r.once("long", &rebase.WorkerOptions{Name: "h"}, func(_ context.Context, job *rebase.Job) error {
		if job.Attempts < 24 {
			return fmt.Errorf("try %d %s", job.Attempts, strings.Repeat("é", 6000))
		}
		return nil
	})
	j := r.job(id)
	require.Equal(t, rebase.StatusSucceeded, j.Status)
	require.Len(t, j.History, 20)
	for i, a := range j.History {
		require.Equal(t, i+5, a.Attempt)
		require.Equal(t, i+5, a.Run)
		require.Contains(t, a.Worker, "h-")
		require.False(t, a.StartedAt.IsZero() || a.EndedAt.Before(a.StartedAt))
	}
	require.Equal(t, "succeeded", j.History[19].Outcome)
	require.Equal(t, "failed", j.History[0].Outcome)
	require.Equal(t, 500, utf8.RuneCountInString(j.History[0].Error))
	require.Equal(t, 4000, utf8.RuneCountInString(j.LastError))
}

// J1: a job has a fence for as long as it runs.
func TestAnEndedJobHasNoFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	r.once("x", nil, func(ctx context.Context, job *rebase.Job) error {
		running, err := r.q.Job(ctx, job.ID)
		require.NoError(t, err)
		require.Positive(t, running.Fence)
		require.Equal(t, job.Fence, running.Fence)
		return nil
	})
	require.Zero(t, r.job(id).Fence)
}

// J7: of several RetryAfters the longest counts.
func TestOfNestedRetryAftersTheLongestCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("x", nil)
	s := newStepper(t, r.pool, &rebase.TaskOptions{Backoff: at(time.Minute)}, "x")
	holds, err := s.Claim("x", 1, false, false)
	require.NoError(t, err)
	s.Begin(holds[0])
	s.Finish(holds[0], rebase.RetryAfter(time.Second, errors.Join(errBoom, rebase.RetryAfter(time.Hour, errBoom))))
	require.NoError(t, s.Record())
	require.Greater(t, time.Until(r.job(id).RunAt), 50*time.Minute)
}
