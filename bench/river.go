package main

// River: InsertManyFast (COPY) for bulk, InsertMany where a key may be a duplicate, the smallest FetchCooldown that it allows, the
// FetchPollInterval of its own benchmark, and no time limit for attempts, which saves it a timer
// a job. Its client has a pool of its own, apart from the one that enqueues.

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

var riverSystem = &system{
	name:  "river",
	slots: 500,
	about: "v0.51.0; FetchCooldown 1 ms, FetchPollInterval 20 ms, JobTimeout -1, pool of 20 for its worker; InsertManyFast, with keys InsertMany",
	open:  openRiver,
}

const riverPool = 20

type riverClient struct {
	url      string
	pool     *pgxpool.Pool
	inserter *river.Client[pgx.Tx]
	keys     atomic.Int64
}

func openRiver(ctx context.Context, url string, conns int) (client, error) {
	pool, err := openPool(ctx, url, conns)
	if err != nil {
		return nil, err
	}
	inserter, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &riverClient{url: url, pool: pool, inserter: inserter}, nil
}

func (c *riverClient) close() { c.pool.Close() }

func (c *riverClient) migrate(ctx context.Context) error {
	m, err := rivermigrate.New(riverpgxv5.New(c.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func (c *riverClient) tables() []string { return []string{"river_job"} }

func (c *riverClient) unfinished() string {
	return "select exists(select from river_job where state in ('available', 'running', 'retryable', 'scheduled', 'pending') and queue in ('default', '" + secondTask + "'))"
}

// insert gives each job with a key arguments of its own: River's keys are made of them.
func (c *riverClient) insert(ctx context.Context, b batch) error {
	params := make([]river.InsertManyParams, b.n)
	for i := range params {
		params[i].Args = args{Data: b.ballast()}
		if b.keys {
			params[i].Args = args{Sent: c.keys.Add(1)}
			params[i].InsertOpts = &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
		}
		if b.unserved {
			params[i].InsertOpts = &river.InsertOpts{Queue: unservedTask}
		}
	}
	if b.keys {
		// InsertManyFast would fail as a whole with the first duplicate.
		_, err := c.inserter.InsertMany(ctx, params)
		return err
	}
	_, err := c.inserter.InsertManyFast(ctx, params)
	return err
}

func (c *riverClient) enqueue(ctx context.Context, sent int64) error {
	_, err := c.inserter.Insert(ctx, args{Sent: sent}, nil)
	return err
}

func (c *riverClient) enqueueSecond(ctx context.Context, sent int64) error {
	_, err := c.inserter.Insert(ctx, args{Sent: sent}, &river.InsertOpts{Queue: secondTask})
	return err
}

// A riverWorker is the handler in River's clothes.
type riverWorker struct {
	river.WorkerDefaults[args]
	h handler
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[args]) error {
	w.h(job.Args.Sent)
	return nil
}

func (c *riverClient) work(ctx context.Context, what worker, h handler) (func() error, error) {
	conns, cooldown, poll := riverPool, time.Millisecond, 20*time.Millisecond
	if what.idle {
		conns, cooldown, poll = idleConns, 0, 0 // its defaults: 100 ms and 1 s
	}
	pool, err := openPool(ctx, c.url, conns)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{h: h})
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: what.slots}}
	if what.second {
		queues[secondTask] = river.QueueConfig{MaxWorkers: what.slots}
	}
	w, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     cooldown,
		FetchPollInterval: poll,
		JobTimeout:        -1,
		Logger:            slog.New(slog.DiscardHandler),
		Queues:            queues,
		Workers:           workers,
	})
	if err == nil {
		err = w.Start(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return func() error {
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return w.Stop(ctx)
	}, nil
}

func (c *riverClient) retain(ctx context.Context, n int) error {
	_, err := c.pool.Exec(ctx, `
insert into river_job (state, attempt, max_attempts, attempted_at, finalized_at, attempted_by, kind, args)
select 'completed', 1, 25, now(), now() - i * interval '10 ms', '{bench}', $1, '{"sent": 0}'
from generate_series(1, $2::bigint) i`, args{}.Kind(), n)
	if err != nil {
		return fmt.Errorf("finished jobs: %w", err)
	}
	return nil
}
