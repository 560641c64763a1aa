package rebasetest_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/rebasetest"
)

// The test that the package's documentation shows, with the service that it tests. It runs
// here, word for word.

type Welcome struct{ Email string }

const (
	SendWelcome rebase.Task[Welcome] = "send-welcome"
	SendInvoice rebase.Task[int]     = "send-invoice"
)

// DB is what the service needs of *pgxpool.Pool; pgx.Tx has it, too.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

type Mailer struct{ Err error }

func (m *Mailer) Send(context.Context, string) error { return m.Err }

func SignUp(ctx context.Context, db DB, queue *rebase.Queue, email string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := SendWelcome.EnqueueTx(ctx, queue, tx, Welcome{email}, nil)
		return err
	})
}

func RegisterMail(w *rebase.Worker, db DB, mailer *Mailer) {
	SendWelcome.Handle(w, func(ctx context.Context, job *rebase.Job, p Welcome) error {
		if err := mailer.Send(ctx, p.Email); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
	}, nil)
}

func TestDocumentedTestRuns(t *testing.T) {
	pool, mailer := pgtest.New(t), Mailer{}
	queue := rebase.New(pool, nil)
	testSignUpSendsAWelcome(t, pool, queue, &mailer)
	require.Zero(t, query[int](&bench{T: t}, pool, "select count(*)::int from rebase.jobs"), "nothing is left behind")
}

func testSignUpSendsAWelcome(t *testing.T, pool *pgxpool.Pool, queue *rebase.Queue, mailer *Mailer) {
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())

	// The code under test, in the test's transaction.
	require.NoError(t, SignUp(t.Context(), tx, queue, "ada@example.org"))

	// What it has enqueued.
	job := rebasetest.RequireEnqueued(t, tx, SendWelcome, func(w Welcome) bool {
		return w.Email == "ada@example.org"
	})
	require.Equal(t, 3, job.MaxAttempts)
	rebasetest.RequireNotEnqueued(t, tx, SendInvoice)

	// Its handler, as the service registers it, with the database that it is to use.
	worker := rebase.NewWorker(queue, nil)
	RegisterMail(worker, tx, mailer)

	mailer.Err = errors.New("greylisted")
	result := rebasetest.WorkOne(t, tx, worker, SendWelcome)
	require.Equal(t, rebase.EventFailed, result.Outcome)
	require.Equal(t, rebase.StatusPending, result.Job.Status)

	mailer.Err = nil
	result = rebasetest.WorkJob(t, tx, worker, result.Job) // not due yet; nobody waits
	require.Equal(t, rebase.EventSucceeded, result.Outcome)
}

func TestDocumentationShowsTheTestThatRuns(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("signup_test.go")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(source), "mailer *Mailer) {\n\ttx, err")
	require.True(t, found)
	body, _, found := strings.Cut("\ttx, err"+rest, "\n}\n")
	require.True(t, found)
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	shown := strings.ReplaceAll(string(doc), "//\n", "//\t\n")
	for line := range strings.Lines(body) {
		require.Contains(t, shown, "//\t"+line)
	}
}
