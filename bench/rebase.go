package main

// Rebase itself, at its defaults but for the concurrency and a silent logger. In particular
// the attempts have their time limit and events, history and retention are on.

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

var rebaseSystem = &system{
	name:  "rebase",
	slots: 64,
	about: "defaults; EnqueueMany; handlers get their payload decoded",
	open:  func(ctx context.Context, url string, conns int) (client, error) { return openRebase(ctx, url, conns) },
}

type rebaseClient struct {
	pool  *pgxpool.Pool
	queue *rebase.Queue
	keys  atomic.Int64
}

func openRebase(ctx context.Context, url string, conns int) (*rebaseClient, error) {
	pool, err := openPool(ctx, url, conns)
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	return &rebaseClient{pool: pool, queue: rebase.New(pool, &rebase.Options{Logger: quiet})}, nil
}

func (c *rebaseClient) close() { c.pool.Close() }

func (c *rebaseClient) migrate(ctx context.Context) error { return c.queue.Migrate(ctx) }

func (c *rebaseClient) tables() []string {
	return []string{"rebase.jobs", "rebase.claims", "rebase.workers"}
}

func (c *rebaseClient) unfinished() string {
	return "select exists(select from rebase.jobs where finished_at is null and crashes = 0 and task in ('" + task + "', '" + secondTask + "'))"
}

func (c *rebaseClient) insert(ctx context.Context, b batch) error {
	name := task
	if b.unserved {
		name = unservedTask
	}
	items := make([]rebase.Item, b.n)
	for i := range items {
		items[i] = rebase.Item{Task: name, Payload: args{Data: b.ballast()}}
		if b.keys {
			items[i].Options = &rebase.EnqueueOptions{IdempotencyKey: strconv.FormatInt(c.keys.Add(1), 10)}
		}
	}
	_, err := c.queue.EnqueueMany(ctx, items)
	return err
}

func (c *rebaseClient) enqueue(ctx context.Context, sent int64) error {
	_, err := c.queue.Enqueue(ctx, task, args{Sent: sent}, nil)
	return err
}

func (c *rebaseClient) enqueueSecond(ctx context.Context, sent int64) error {
	_, err := c.queue.Enqueue(ctx, secondTask, args{Sent: sent}, nil)
	return err
}

func (c *rebaseClient) work(ctx context.Context, what worker, h handler) (func() error, error) {
	w := rebase.NewWorker(c.queue, &rebase.WorkerOptions{Concurrency: what.slots})
	handle := func(_ context.Context, _ *rebase.Job, a args) error {
		h(a.Sent)
		return nil
	}
	rebase.Handle(w, task, handle, nil)
	if what.second {
		rebase.Handle(w, secondTask, handle, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

func (c *rebaseClient) retain(ctx context.Context, n int) error {
	_, err := c.pool.Exec(ctx, `
insert into rebase.jobs (task, payload, status, fence, attempts, runs, run_at, started_at, finished_at, locked_by)
select $1, '{"sent": 0}', 'succeeded', -i, 1, 1, now(), now(), now() - i * interval '10 ms', 'bench'
from generate_series(1, $2::bigint) i`, task, n)
	if err != nil {
		return fmt.Errorf("finished jobs: %w", err)
	}
	return nil
}
