package rebasetest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/rebasetest"
)

// What was enqueued is seen exactly as the transaction sees it, and a test that asks in vain
// is told what is there.

// J2: commit makes the job, rollback means that it never was.
func TestEnqueuedIsWhatTheTransactionSees(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	committed, err := sendMail.Enqueue(t.Context(), b.queue, mail{"committed"}, nil)
	require.NoError(t, err)
	own := b.mail("own", nil)
	_, err = resize.EnqueueTx(t.Context(), b.queue, b.tx, 7, nil)
	require.NoError(t, err)

	require.NoError(t, pgx.BeginFunc(t.Context(), b.tx, func(pgx.Tx) error {
		b.mail("released savepoint", nil)
		return nil
	}))
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), b.tx, func(pgx.Tx) error {
		b.mail("rolled back", nil)
		return rebase.ErrNotFound
	}), rebase.ErrNotFound)

	other := newBenchOn(t, b.pool)
	other.mail("of an open transaction", nil)

	jobs := rebasetest.Enqueued(t, b.tx, sendMail)
	require.Len(t, jobs, 3)
	require.Equal(t, committed.ID, jobs[0].ID)
	require.Equal(t, own, jobs[1].ID)
	require.Equal(t, []mail{{"committed"}, {"own"}, {"released savepoint"}}, rebasetest.Payloads(t, b.tx, sendMail))
	require.Equal(t, []int{7}, rebasetest.Payloads(t, b.tx, resize))
	require.Equal(t, []mail{{"committed"}, {"of an open transaction"}}, rebasetest.Payloads(t, other.tx, sendMail))
	require.Empty(t, rebasetest.Enqueued(t, b.tx, rebase.Task[any]("unheard-of")))
}

// J3: what a test wants to know of a job is in it.
func TestRequireEnqueuedReturnsTheFirstJobThatMatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	grace := b.mail("grace", &rebase.EnqueueOptions{Delay: time.Hour, MaxAttempts: 9, Lane: "eu", IdempotencyKey: "k", Meta: map[string]string{"trace": "1"}})
	b.mail("grace", nil)

	require.Less(t, rebasetest.RequireEnqueued(t, b.tx, sendMail).ID, grace)
	to := func(name string) func(mail) bool { return func(m mail) bool { return m.To == name } }
	job := rebasetest.RequireEnqueued(t, b.tx, sendMail, to("grace"))
	require.Equal(t, grace, job.ID)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Equal(t, 9, job.MaxAttempts)
	require.Equal(t, "eu", job.Lane)
	require.Equal(t, "k", job.IdempotencyKey)
	require.Equal(t, map[string]string{"trace": "1"}, job.Meta)
	require.WithinDuration(t, job.CreatedAt.Add(time.Hour), job.RunAt, time.Second)
	require.JSONEq(t, `{"To": "grace"}`, string(job.Payload))

	// Every match must accept.
	rebasetest.RequireNotEnqueued(t, b.tx, sendMail, to("grace"), to("ada"))
	rebasetest.RequireNotEnqueued(t, b.tx, sendMail, to("edsger"))
	rebasetest.RequireNotEnqueued(t, b.tx, resize)
}

func TestTaskThatHasOnlyANameIsFound(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	done, err := b.queue.EnqueueTx(t.Context(), b.tx, "untyped", map[string]any{"n": 1}, nil)
	require.NoError(t, err)
	job := rebasetest.RequireEnqueued(t, b.tx, rebase.Task[map[string]int]("untyped"), func(p map[string]int) bool { return p["n"] == 1 })
	require.Equal(t, done.ID, job.ID)
	require.Equal(t, job, rebasetest.RequireEnqueued(t, b.tx, rebase.Task[any]("untyped")))
}

func TestJobThatMatchesNothingIsListed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ids := []int64{
		b.mail("ada", nil),
		b.mail("grace", &rebase.EnqueueOptions{Delay: time.Hour + 40*time.Millisecond, Lane: "eu", IdempotencyKey: "k"}),
	}
	nobody := func(mail) bool { return false }
	b.says(b.failure(func(tb rebasetest.TB) { rebasetest.RequireEnqueued(tb, b.tx, sendMail, nobody) }), ids,
		`rebasetest: no job of task "send-mail" matches; there are 2:`,
		`job #: pending, due, payload {"To": "ada"}`,
		`job #: pending, due in 1h0m0s, lane "eu", key "k", payload {"To": "grace"}`)
}

// J6: a mistyped name must not be a silent loss, nor a riddle.
func TestTaskWithoutJobsIsToldWhatOthersHave(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	mistyped := rebase.Task[mail]("send-mial")
	ask := func() string {
		return b.failure(func(tb rebasetest.TB) { rebasetest.RequireEnqueued(tb, b.tx, mistyped) })
	}
	b.says(ask(), nil, `rebasetest: no job of task "send-mial" is enqueued; this transaction sees no jobs at all`)
	first, second := b.mail("ada", nil), b.mail("grace", nil)
	b.says(ask(), []int64{second, first},
		`rebasetest: no job of task "send-mial" is enqueued; of other tasks this transaction sees, newest first:`,
		`job # of task "send-mail": pending`,
		`job # of task "send-mail": pending`)
}

func TestJobThatIsNotToBeThereIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mail("ada", nil)
	grace := b.mail("grace", nil)
	message := b.failure(func(tb rebasetest.TB) {
		rebasetest.RequireNotEnqueued(tb, b.tx, sendMail, func(m mail) bool { return m.To == "grace" })
	})
	b.says(message, []int64{grace},
		`rebasetest: task "send-mail" is to have no such job, but there is 1:`,
		`job #: pending, due, payload {"To": "grace"}`)
	message = b.failure(func(tb rebasetest.TB) { rebasetest.RequireNotEnqueued(tb, b.tx, sendMail) })
	require.Contains(t, message, "there are 2:")
}

// J21: a payload that the type can't decode must not pass for one that doesn't match.
func TestPayloadThatDoesNotDecodeFailsTheTest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	done, err := b.queue.EnqueueTx(t.Context(), b.tx, "send-mail", []int{1}, nil)
	require.NoError(t, err)
	want := fmt.Sprintf(`rebasetest: the payload of job %d of task "send-mail" is no rebasetest_test.mail: json: `, done.ID)
	anybody := func(mail) bool { return true }
	for _, f := range []func(rebasetest.TB){
		func(tb rebasetest.TB) { rebasetest.RequireEnqueued(tb, b.tx, sendMail, anybody) },
		func(tb rebasetest.TB) { rebasetest.RequireNotEnqueued(tb, b.tx, sendMail, anybody) },
		func(tb rebasetest.TB) { rebasetest.Payloads(tb, b.tx, sendMail) },
	} {
		message := b.failure(f)
		require.True(t, strings.HasPrefix(message, want), message)
		require.True(t, strings.HasSuffix(message, ": [1]"), message)
	}
	require.Equal(t, done.ID, rebasetest.RequireEnqueued(t, b.tx, sendMail).ID, "nobody asked for the payload")
}

func TestListIsShortHoweverManyAndLongTheJobsAre(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 23 {
		b.mail("x"+strings.Repeat("ä", 5000), nil) // the cut falls into a character
	}
	message := b.failure(func(tb rebasetest.TB) { rebasetest.RequireNotEnqueued(tb, b.tx, sendMail) })
	lines := strings.Split(message, "\n\t")
	require.Len(t, lines, 1+20+1)
	require.Equal(t, "and 3 more", lines[21])
	require.Less(t, len(lines[1]), 300)
	require.True(t, strings.HasSuffix(lines[1], "ää…"), lines[1])
}

func TestErrorOfTheTransactionFailsTheTest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.tx.Rollback(context.Background()))
	require.Equal(t, `rebasetest: list the jobs of task "send-mail": tx is closed`,
		b.failure(func(tb rebasetest.TB) { rebasetest.Enqueued(tb, b.tx, sendMail) }))
	w := b.worker(fine, nil)
	require.Equal(t, `rebasetest: task "send-mail": claim: tx is closed`,
		b.failure(func(tb rebasetest.TB) { rebasetest.WorkOne(tb, b.tx, w, sendMail) }))

	empty := newBenchOn(t, pgtest.Empty(t))
	require.Contains(t, empty.failure(func(tb rebasetest.TB) { rebasetest.RequireEnqueued(tb, empty.tx, sendMail) }), `"rebase.jobs" does not exist`)
}
