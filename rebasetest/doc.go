// Package rebasetest helps to test services that use package rebase, inside the test's own
// transaction: what the code under test has enqueued can be looked at and run there, no worker
// has to be started, nobody waits, and the rollback at the end leaves nothing behind. So tests
// can share a database and run in parallel, each with idempotency keys of its own.
//
// A test of a sign-up that enqueues a mail, and of the handler that sends it:
//
//	func TestSignUpSendsAWelcome(t *testing.T) {
//		tx, err := pool.Begin(t.Context())
//		require.NoError(t, err)
//		defer tx.Rollback(context.Background())
//
//		// The code under test, in the test's transaction.
//		require.NoError(t, SignUp(t.Context(), tx, queue, "ada@example.org"))
//
//		// What it has enqueued.
//		job := rebasetest.RequireEnqueued(t, tx, SendWelcome, func(w Welcome) bool {
//			return w.Email == "ada@example.org"
//		})
//		require.Equal(t, 3, job.MaxAttempts)
//		rebasetest.RequireNotEnqueued(t, tx, SendInvoice)
//
//		// Its handler, as the service registers it, with the database that it is to use.
//		worker := rebase.NewWorker(queue, nil)
//		RegisterMail(worker, tx, mailer)
//
//		mailer.Err = errors.New("greylisted")
//		result := rebasetest.WorkOne(t, tx, worker, SendWelcome)
//		require.Equal(t, rebase.EventFailed, result.Outcome)
//		require.Equal(t, rebase.StatusPending, result.Job.Status)
//
//		mailer.Err = nil
//		result = rebasetest.WorkJob(t, tx, worker, result.Job) // not due yet; nobody waits
//		require.Equal(t, rebase.EventSucceeded, result.Outcome)
//	}
//
// Code that is to be tested like this takes what both *pgxpool.Pool and pgx.Tx have, such as
// interface{ Begin(context.Context) (pgx.Tx, error) }: a transaction begun in the test's is a
// savepoint. A handler that ends its job with Job.CompleteTx in such a transaction works too.
//
// All functions take a [rebase.Task]. The jobs of a task that has only a name are found by
// rebase.Task[any]("resize"); T may be any type that decodes the payload.
//
// # What is seen
//
// Jobs that the transaction sees: its own, committed or not, and those that others have
// committed. A test on a database with old rows of the same task tells its own apart by their
// payload. A job that has ended meanwhile is still one that was enqueued.
//
// # Idempotency keys in parallel tests
//
// Until a transaction ends PostgreSQL can't tell whether a key that it has enqueued is taken, so
// whoever enqueues the same key of the same task waits for that: parallel tests then run one
// after the other. Two that enqueue two such keys in opposite order wait for each other, until
// PostgreSQL fails one of them: deadlock detected, 40P01. Give each test keys of its own, by
// way of what they are made of: a user, an order, named after t.Name() for example.
//
// # What differs from a worker
//
//   - Nothing is committed. A worker that runs on the same database sees nothing of it, and
//     stays away from the rows that it could see.
//   - The handler runs on the test's goroutine, so it may call require. It is waited for: after
//     its timeout its context ends, but one that doesn't obey hangs the test.
//   - The handler shares the connection. If one of its statements fails, what it has written in
//     the transaction is undone; a statement that is cut off by the end of its context breaks
//     the transaction, and WorkOne fails the test.
//   - Limits of slots and lanes mean nothing, there are no events and no renewals.
//
// Everything else is the worker's: middleware, timeout, backoff, Permanent, Snooze, RetryAfter,
// ErrCancelled, panics, infrastructure errors, the row's history.
//
// Tests that want more, such as real commits or several workers, use a database of their own
// and [rebase.Worker.RunOnce].
package rebasetest
