// Package rebase is a job queue for Go services that have PostgreSQL and want
// nothing beside it.
//
// A service enqueues jobs inside its own transactions, registers Go functions
// as their handlers, and calls [Worker.Run]. All state is one table, rebase.jobs,
// that anybody can read with SQL. There is no broker, no leader and no other
// process: any number of services may enqueue and work on one database.
//
// # Example
//
// One program that does both. With DATABASE_URL set it runs as it stands.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"log"
//		"os"
//		"os/signal"
//		"syscall"
//
//		"github.com/jackc/pgx/v5"
//		"github.com/jackc/pgx/v5/pgxpool"
//		"github.com/rebasejobs/rebase"
//	)
//
//	type Welcome struct{ Email string }
//
//	const SendWelcome rebase.Task[Welcome] = "send-welcome"
//
//	func main() {
//		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//		defer stop()
//		pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//		check(err)
//		queue := rebase.New(pool, nil)
//		check(queue.Migrate(ctx))
//		check(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // your transaction
//			_, err := SendWelcome.EnqueueTx(ctx, queue, tx, Welcome{"ada@example.org"}, nil)
//			return err // nil commits the job with the rest; after an error it never was
//		}))
//		worker := rebase.NewWorker(queue, nil)
//		SendWelcome.Handle(worker, func(ctx context.Context, job *rebase.Job, w Welcome) error {
//			fmt.Println("welcome,", w.Email)
//			return nil
//		}, nil)
//		check(worker.Run(ctx)) // until Ctrl-C or SIGTERM
//	}
//
//	func check(err error) {
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// # Guarantees
//
//  1. A job exists exactly if the transaction that enqueued it committed. One
//     call that enqueues many makes all of them or none.
//  2. A job that exists stays until it has ended: as succeeded, failed or
//     cancelled. Whatever dies meanwhile (a handler, a process, the server)
//     delays it. Its row outlives its end by days, see [Retention]. Only
//     [Queue.Delete] removes one that has not ended.
//  3. One worker at a time holds a job. A claim carries a random fence, and only
//     who still has the fence can write the result: of two attempts at most
//     one is recorded, and one that has lost its job is told so (ErrLeaseLost).
//  4. An attempt fails if its handler returns an error, panics or exceeds its
//     timeout, or if its process dies. Every other way back to pending
//     costs no attempt: a job that was claimed and not begun, a shutdown,
//     [Snooze], and, 25 times in a row, trouble with PostgreSQL's connection.
//  5. Leases are renewed while the handler runs, so a slow handler keeps its
//     job. VisibilityTimeout only decides how soon the jobs of a dead
//     worker come back. After an outage of the database nobody's jobs are taken
//     before everybody could renew.
//  6. Of one task and idempotency key at most one job is unfinished, also between
//     concurrent transactions.
//  7. With [Job.CompleteTx] a handler's effect in the database and the end of its
//     job are one commit.
//  8. Only the database's clock decides when a job is due or a lease over.
//  9. A worker claims only tasks that it has handlers for. Others stay pending;
//     a task with due jobs and no live worker is logged as a warning.
//  10. The queue has no transaction open and no row locked while a handler runs,
//     and a worker never waits for the lock of a job's row: one that somebody has
//     locked is left for the next round.
//  11. What can't be stored is refused before any SQL is sent (*PayloadError), so
//     the caller's transaction lives.
//  12. A slot of a [Schedule] makes one job, with any number of workers. It makes no
//     second one when that job has been deleted or the clock was set back.
//
// What follows from this is at-least-once: a process can die between the effect
// of a handler and the recording of it, and the job then runs again. A handler must
// be idempotent, or use CompleteTx. The order in which jobs run is roughly that in
// which they are due; it is no guarantee.
//
// # States
//
//   - pending: waits until run_at, then for a slot. A failed attempt comes back
//     here, after a backoff of 1 s, 5 s, 25 s … at most an hour, with jitter.
//   - running: claimed by a worker.
//   - succeeded: the handler returned nil, or CompleteTx was committed.
//   - failed: no attempt left (of three, by default), or [Permanent]. These are the
//     dead letters: they stay for 30 days. [Queue.Retry] and [Queue.Redrive] make
//     them pending again, under the same id.
//   - cancelled: by [Queue.Cancel], or by a handler that returns ErrCancelled.
//
// The row tells the story: attempts, last_error, and in history the last 20
// attempts. The dead letters are
//
//	SELECT task, attempts, last_error, updated_at FROM rebase.jobs
//	WHERE dead ORDER BY finished_at DESC
//
// (WHERE status = 'failed' says the same, without an index.)
//
// [Queue.Explain] says why a job is not running.
//
// # A handler's context
//
// It ends when the attempt is to stop, and [context.Cause] says why: [ErrTimeout],
// [ErrCancelled], [ErrLeaseLost] or [ErrShutdown]. A handler that ignores it goes on,
// but after a timeout or a cancellation, or when another worker has its job, nothing that it
// returns is recorded, and its slot is free. If the lease only could not be renewed because
// the database was out of reach, the handler keeps its slot, and its result counts unless
// somebody has taken the job meanwhile.
//
// # Shutdown
//
// When the context of Run ends, the worker claims nothing more and gives back at
// once what it has claimed and not begun. Running handlers have two thirds of
// ShutdownTimeout (10 s of 15 s) to finish. Then their contexts end with ErrShutdown; in
// the last third one that returns nil has succeeded, and one that returns an
// error is put back without using an attempt. Run returns nil if nothing is left, else a
// [*ShutdownError] that names the jobs: they come back when their leases end.
// Close the pool after that.
//
// # Connections
//
// Queue uses the pool or the transaction that it is given. A worker has three
// connections of its own: for claims, for everything that it writes, and for LISTEN;
// none of them is taken from the pool. All but LISTEN works through PgBouncer in
// transaction mode. The worker proves that notifications arrive; if they don't it says
// so once and polls. Give it a direct address in WorkerOptions.ListenURL or
// DATABASE_DIRECT_URL.
package rebase
