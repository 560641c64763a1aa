// Examples for the package's documentation. Those with an Output run, without a database;
// the others are compiled, so that what they show exists.
package rebase_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// What the examples enqueue.
type Invoice struct {
	Number int `json:"number"`
}

// SendInvoice is a task and its payload's type, known to both sides.
const SendInvoice rebase.Task[Invoice] = "send-invoice"

func ExampleTask() {
	const SendInvoice rebase.Task[Invoice] = "send-invoice"
	item := SendInvoice.Item(Invoice{Number: 7}, &rebase.EnqueueOptions{Delay: time.Minute})
	payload, err := json.Marshal(item.Payload)
	fmt.Println(item.Task, string(payload), item.Options.Delay, err)
	// Output: send-invoice {"number":7} 1m0s <nil>
}

func ExampleTask_EnqueueTx() {
	issue := func(ctx context.Context, pool *pgxpool.Pool, queue *rebase.Queue, number int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into invoices (number) values ($1)`, number); err != nil {
				return err
			}
			// The invoice and the job that sends it: both or neither.
			_, err := SendInvoice.EnqueueTx(ctx, queue, tx, Invoice{number}, nil)
			return err
		})
	}
	_ = issue
}

// What can't be stored is refused before any SQL is sent: this pool has no server, and
// a transaction would still be good.
func ExamplePayloadError() {
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	queue := rebase.New(pool, nil)
	_, err = queue.EnqueueMany(context.Background(), []rebase.Item{
		{Task: "import", Payload: "fine"},
		{Task: "import", Payload: "a NUL: \x00"},
	})
	if refused, ok := errors.AsType[*rebase.PayloadError](err); ok {
		fmt.Println("item", refused.Index, "task", refused.Task, "field", refused.Field)
	}
	// Output: item 1 task import field payload
}

func ExampleExponential() {
	backoff := rebase.Exponential(time.Second, 5, time.Hour) // the default
	for _, attempt := range []int{1, 2, 3} {
		least := time.Duration(1<<63 - 1)
		for range 1000 {
			least = min(least, backoff(attempt))
		}
		fmt.Println(attempt, least.Round(time.Second))
	}
	fmt.Println(backoff(100) > 48*time.Minute, backoff(100) <= time.Hour)
	// Output:
	// 1 1s
	// 2 5s
	// 3 25s
	// true true
}

// A policy of one's own; what it returns is used without jitter.
func ExampleBackoff() {
	var backoff rebase.Backoff = func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute }
	fmt.Println(backoff(1), backoff(3))
	// Output: 1m0s 3m0s
}

func ExamplePermanent() {
	errNoSuchCustomer := errors.New("no such customer")
	err := rebase.Permanent(errNoSuchCustomer) // returned by a handler: no further attempt
	fmt.Println(err, errors.Is(err, errNoSuchCustomer))
	// Output: no such customer true
}

// The ways to end other than nil and an ordinary error.
func ExampleHandler() {
	var handler rebase.Handler = func(ctx context.Context, job *rebase.Job) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example/invoices", nil)
		if err != nil {
			return rebase.Permanent(err) // trying again is useless
		}
		req.Header.Set("Idempotency-Key", strconv.FormatInt(job.ID, 10)) // the same on every attempt
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err // tried again after the backoff
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			return nil
		case http.StatusAccepted:
			return rebase.Snooze(time.Minute) // not done yet; no attempt is used
		case http.StatusTooManyRequests:
			return rebase.RetryAfter(10*time.Minute, errors.New(resp.Status))
		case http.StatusGone:
			return rebase.ErrCancelled
		}
		return errors.New(resp.Status)
	}
	_ = handler
}

// Why a handler's context has ended.
func ExampleHandler_cause() {
	var handler rebase.Handler = func(ctx context.Context, job *rebase.Job) error {
		select {
		case <-time.After(time.Hour):
			return nil
		case <-ctx.Done():
			// ErrTimeout, ErrCancelled, ErrLeaseLost or ErrShutdown. After the last of them
			// an error costs no attempt.
			return context.Cause(ctx)
		}
	}
	_ = handler
}

func ExampleJob_CompleteTx() {
	register := func(worker *rebase.Worker, pool *pgxpool.Pool) {
		SendInvoice.Handle(worker, func(ctx context.Context, job *rebase.Job, invoice Invoice) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `update invoices set sent = true where number = $1`, invoice.Number); err != nil {
					return err
				}
				return job.CompleteTx(ctx, tx) // last: effect and job end with one commit
			})
		}, nil)
	}
	_ = register
}

func ExampleQueue_EnqueueSQL() {
	issue := func(ctx context.Context, queue *rebase.Queue, db *sql.DB) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := queue.EnqueueSQL(ctx, tx, string(SendInvoice), Invoice{7}, nil); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = issue
}

func ExampleWorker_Run() {
	serve := func(ctx context.Context, queue *rebase.Queue) error {
		worker := rebase.NewWorker(queue, &rebase.WorkerOptions{
			Concurrency:     20,
			ShutdownTimeout: 30 * time.Second,
		})
		SendInvoice.Handle(worker, func(ctx context.Context, job *rebase.Job, invoice Invoice) error {
			return nil
		}, &rebase.TaskOptions{Concurrency: 5, Timeout: time.Minute})
		err := worker.Run(ctx) // until ctx ends
		if left, ok := errors.AsType[*rebase.ShutdownError](err); ok {
			log.Printf("%d handlers did not stop; their jobs come back", len(left.Running))
		}
		return err
	}
	_ = serve
}

// Dead letters of one task, read and run again.
func ExampleQueue_Redrive() {
	redrive := func(ctx context.Context, queue *rebase.Queue) error {
		dead := rebase.Filter{Status: rebase.StatusFailed, Task: string(SendInvoice)}
		for job, err := range queue.Jobs(ctx, dead) {
			if err != nil {
				return err
			}
			fmt.Println(job.ID, job.Attempts, job.LastError)
		}
		n, err := queue.Redrive(ctx, dead, 100)
		fmt.Println(n, "are pending again")
		return err
	}
	_ = redrive
}

// Rows are written elsewhere in the transaction that deletes them.
func ExampleRetention() {
	_ = &rebase.WorkerOptions{Retention: rebase.Retention{
		Succeeded: 24 * time.Hour,
		Failed:    -1, // kept for ever
		Archive: func(ctx context.Context, tx pgx.Tx, jobs []*rebase.Job) error {
			for _, job := range jobs {
				if _, err := tx.Exec(ctx, `insert into job_archive (id, task, payload) values ($1, $2, $3)`, job.ID, job.Task, job.Payload); err != nil {
					return err
				}
			}
			return nil
		},
	}}
}

// Declared by the code, written when Run reaches the database, fired once a slot by whichever
// process comes first.
func ExampleWorker_Schedule() {
	declare := func(worker *rebase.Worker) {
		worker.Schedule(rebase.Schedule{ID: "report", Cron: "0 6 * * 1-5", Zone: "Europe/Berlin", Task: "report"})
	}
	_ = declare
}

// A schedule that can't work is refused before any SQL is sent.
func ExampleScheduleError() {
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = rebase.New(pool, nil).SetSchedule(context.Background(), rebase.Schedule{ID: "never", Cron: "0 6 30 2 *", Task: "report"})
	if refused, ok := errors.AsType[*rebase.ScheduleError](err); ok {
		fmt.Println("schedule", refused.ID, "field", refused.Field)
	}
	// Output: schedule never field cron
}

func ExampleMiddleware() {
	timed := func(next rebase.Handler) rebase.Handler {
		return func(ctx context.Context, job *rebase.Job) error {
			began := time.Now()
			defer func() { log.Printf("%s: job %d took %v", job.Task, job.ID, time.Since(began)) }()
			return next(ctx, job)
		}
	}
	_ = &rebase.WorkerOptions{Middleware: []rebase.Middleware{timed}}
}
