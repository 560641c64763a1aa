package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// The worker process, from both sides: the code that declares the schedules, and the handle by
// which the parent starts and stops it.

// The variables by which a process knows that it is a worker, and where.
const (
	nameVariable = "REBASE_EXAMPLE_WORKER"
	urlVariable  = "REBASE_EXAMPLE_URL"
	runVariable  = "REBASE_EXAMPLE_RUN"
)

// Names are the schedules of one run of the example. In a service they would be constants:
// here a second run in the same minute would find the slot of that minute fired.
type scheduleNames struct{ run, report, nightly string }

func newNames() scheduleNames { return namesOf(fmt.Sprintf("%08x", rand.Uint32())) }

func namesOf(run string) scheduleNames {
	return scheduleNames{run, "cron-report-" + run, "cron-nightly-" + run}
}

// work is the program of a worker process. It ends when its input does, so that it never
// outlives its parent.
func work(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end, too
		cancel()
	}()
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err != nil {
		return err
	}
	defer pool.Close()
	name, names := os.Getenv(nameVariable), namesOf(os.Getenv(runVariable))
	worker := rebase.NewWorker(rebase.New(pool, nil), &rebase.WorkerOptions{Name: name})
	task := "cron-task-" + names.run
	worker.Register(task, recorder(pool, name), nil)

	worker.Schedule(rebase.Schedule{ID: names.report, Cron: "* * * * *", Task: task, Payload: names.report})
	worker.Schedule(rebase.Schedule{ID: names.nightly, Cron: "30 2 * * *", Zone: "Europe/Berlin", Task: task, Payload: names.nightly})
	return worker.Run(ctx)
}

// recorder is the handler: it leaves a row, in the transaction that ends its job.
func recorder(pool *pgxpool.Pool, worker string) rebase.Handler {
	return func(ctx context.Context, job *rebase.Job) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into rebase_cron.ran (job_id, schedule, worker) values ($1, $2::jsonb #>> '{}', $3)`, job.ID, string(job.Payload), worker)
			if err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	}
}

// A process is a worker as its parent sees it.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startWorker(ctx context.Context, name, url string, names scheduleNames) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), nameVariable+"="+name+"-"+names.run, urlVariable+"="+url, runVariable+"="+names.run)
	cmd.Stderr = os.Stderr // its log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd, stdin}, cmd.Start()
}

// kill is for an end in error. Killing what has ended does nothing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it is gone already, perhaps
	_ = p.cmd.Wait()         // "signal: killed" is no news
}

// stop asks the worker to end, and waits for its clean shutdown.
func (p *process) stop() error {
	return errors.Join(p.stdin.Close(), p.cmd.Wait())
}
