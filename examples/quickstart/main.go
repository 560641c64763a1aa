// Quickstart: people sign up, and each gets a welcome mail.
//
// The point is signUp: the user and the job that will write to her are one
// transaction, so there is never a user without a mail or a mail without a user. The
// worker then meets the three things that happen to mail: it is taken, it bounces for
// good, or the server says "later".
//
//	go run ./examples/quickstart              // signups.csv of this directory
//	go run ./examples/quickstart mine.csv     // name,email,terms
//
// It needs PostgreSQL's binaries, or Docker, or DATABASE_URL. There it leaves its jobs and
// the schema rebase_quickstart, and can be run again; it also runs whatever "send-welcome"
// jobs it finds, so don't point it at a database where those are somebody else's.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
)

//go:embed signups.csv
var ourSignups string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// start finds the input and a database.
func start(ctx context.Context) (err error) {
	var input io.Reader = strings.NewReader(ourSignups)
	if len(os.Args) > 1 {
		f, err := os.Open(os.Args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		input = f
	}
	people, err := readSignups(input)
	if err != nil {
		return err
	}
	url, closeDB, err := exampledb.Open(ctx)
	if err != nil {
		return err
	}
	defer closeDB()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return run(ctx, url, people, os.Stdout, log)
}

// run is the program: schema, sign-ups, worker, and the table of jobs at the end.
func run(ctx context.Context, url string, people []signup, out io.Writer, log *slog.Logger) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue := rebase.New(pool, &rebase.Options{Logger: log})
	if err := queue.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}

	say := newTeller(out)
	sink, err := startSink(say)
	if err != nil {
		return err
	}
	defer sink.Close()
	stop := startWorker(ctx, queue, sink.Addr(), say)

	jobs, err := signUpAll(ctx, pool, queue, people, say)
	if err == nil {
		err = waitFor(ctx, pool, jobs)
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nMails in the mailbox: %d. The jobs, as anybody can read them with SQL:\n\n", sink.Taken())
	return printJobs(ctx, pool, jobs, out)
}

// startWorker runs a worker until the function that it returns is called.
func startWorker(ctx context.Context, queue *rebase.Queue, smtpAddr string, say teller) (stop func() error) {
	w := rebase.NewWorker(queue, &rebase.WorkerOptions{
		Name:    "quickstart",
		Backoff: rebase.Exponential(500*time.Millisecond, 2, time.Minute), // short, so that you needn't wait
	})
	SendWelcome.Handle(w, welcomer(smtpAddr, say), nil)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// waitFor returns when all the jobs have ended, whichever process ended them.
func waitFor(ctx context.Context, pool *pgxpool.Pool, jobs []int64) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var open int
		err := pool.QueryRow(ctx, `select count(*) from rebase.jobs where id = any($1) and finished_at is null`, jobs).Scan(&open)
		if err != nil || open == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A teller prints a line with the time since the start. Handlers run at once, so it may
// be called by any goroutine.
type teller func(format string, args ...any)

func newTeller(out io.Writer) teller {
	var mu sync.Mutex
	began := time.Now()
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, "%6.3f s  "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
	}
}
