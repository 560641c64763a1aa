package main

// Gue: every worker of its pool holds a transaction and a connection while it works a job, and
// deletes the job at the end. It has no notifications, so how soon it sees a job is how often
// it polls: 10 ms here, instead of its 5 s.

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

var gueSystem = &system{
	name:  "gue",
	slots: 32,
	about: "v5.8.0; a connection for each worker, poll interval 10 ms, order by run_at, which its index serves; EnqueueBatch",
	open:  openGue,
}

const (
	gueQueue = "bench"
	guePoll  = 10 * time.Millisecond
)

type gueClient struct {
	url   string
	pool  *pgxpool.Pool
	queue *gue.Client
}

func openGue(ctx context.Context, url string, conns int) (client, error) {
	pool, err := openPool(ctx, url, conns)
	if err != nil {
		return nil, err
	}
	queue, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &gueClient{url: url, pool: pool, queue: queue}, nil
}

func (c *gueClient) close() { c.pool.Close() }

// migrate makes the table as gue's documentation wants it; gue brings no migrator.
func (c *gueClient) migrate(ctx context.Context) error {
	_, err := c.pool.Exec(ctx, `
create table gue_jobs (
  job_id      text primary key,
  priority    smallint not null,
  run_at      timestamptz not null,
  job_type    text not null,
  args        bytea not null,
  error_count integer not null default 0,
  last_error  text,
  queue       text not null,
  created_at  timestamptz not null,
  updated_at  timestamptz not null
);
create index idx_gue_jobs_selector on gue_jobs (queue, run_at, priority)`)
	return err
}

func (c *gueClient) tables() []string { return []string{"gue_jobs"} }

func (c *gueClient) unfinished() string {
	return "select exists(select from gue_jobs where queue = '" + gueQueue + "')"
}

func gueJob(a args) (*gue.Job, error) {
	payload, err := json.Marshal(a)
	return &gue.Job{Queue: gueQueue, Type: task, Args: payload}, err
}

func (c *gueClient) insert(ctx context.Context, b batch) error {
	if b.keys {
		return errUnsupported
	}
	jobs := make([]*gue.Job, b.n)
	for i := range jobs {
		var err error
		if jobs[i], err = gueJob(args{Data: b.ballast()}); err != nil {
			return err
		}
		if b.unserved {
			jobs[i].Queue = unservedTask
		}
	}
	return c.queue.EnqueueBatch(ctx, jobs)
}

func (c *gueClient) enqueue(ctx context.Context, sent int64) error {
	job, err := gueJob(args{Sent: sent})
	if err != nil {
		return err
	}
	return c.queue.Enqueue(ctx, job)
}

func (c *gueClient) work(ctx context.Context, w worker, h handler) (func() error, error) {
	conns, interval := w.slots, guePoll
	if w.idle {
		conns, interval = idleConns, 5*time.Second // its default
	}
	pool, err := openPool(ctx, c.url, conns)
	if err != nil {
		return nil, err
	}
	queue, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		pool.Close()
		return nil, err
	}
	workers, err := gue.NewWorkerPool(queue, gue.WorkMap{task: gueWork(h)}, w.slots,
		gue.WithPoolQueue(gueQueue), gue.WithPoolPollInterval(interval),
		gue.WithPoolPollStrategy(gue.RunAtPollStrategy),
		// Or a worker that is asked to stop would roll back what it has just done.
		gue.WithPoolGracefulShutdown(context.Background))
	if err != nil {
		pool.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- workers.Run(ctx) }()
	return func() error {
		defer pool.Close()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}, nil
}

func gueWork(h handler) gue.WorkFunc {
	return func(_ context.Context, job *gue.Job) error {
		var a args
		if err := json.Unmarshal(job.Args, &a); err != nil {
			return err
		}
		h(a.Sent)
		return nil
	}
}
