package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// The worker process, from both sides: what it does, and the handle by which the parent
// starts, kills and stops it.

// Crunch is work that takes a moment; its payload is a number.
const Crunch rebase.Task[int] = "crash-crunch"

const crunchTime = 250 * time.Millisecond

// The variables by which a process knows that it is a worker, and where.
const (
	nameVariable = "REBASE_EXAMPLE_WORKER"
	urlVariable  = "REBASE_EXAMPLE_URL"
)

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
	name := os.Getenv(nameVariable)
	worker := rebase.NewWorker(rebase.New(pool, nil), &rebase.WorkerOptions{
		Name:              name,
		Concurrency:       4,
		VisibilityTimeout: 3 * time.Second, // the least: here it is to be seen
	})
	Crunch.Handle(worker, cruncher(pool, name), nil)
	return worker.Run(ctx)
}

func cruncher(pool *pgxpool.Pool, name string) func(context.Context, *rebase.Job, int) error {
	return func(ctx context.Context, job *rebase.Job, _ int) error {
		_, err := pool.Exec(ctx, `insert into rebase_crash.begun (job_id, worker) values ($1, $2)`, job.ID, name)
		if err != nil {
			return err
		}
		select {
		case <-time.After(crunchTime):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into rebase_crash.recorded (job_id, worker) values ($1, $2)`, job.ID, name)
			if err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	}
}

// A process is a worker as its parent sees it.
type process struct {
	name  string // unlike that of any other, also in tables that earlier runs have left
	cmd   *exec.Cmd
	stdin io.Closer
}

func startWorker(ctx context.Context, kind, url string) (*process, error) {
	name := fmt.Sprintf("%s-%08x", kind, rand.Uint32())
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), nameVariable+"="+name, urlVariable+"="+url)
	cmd.Stderr = os.Stderr // its log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &process{name, cmd, stdin}, cmd.Start()
}

// kill is SIGKILL. The process is gone when it returns; killing twice is killing once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it is gone already, perhaps
	_ = p.cmd.Wait()         // "signal: killed" is no news
}

// stop asks the worker to end, and waits for its clean shutdown.
func (p *process) stop() error {
	return errors.Join(p.stdin.Close(), p.cmd.Wait())
}
