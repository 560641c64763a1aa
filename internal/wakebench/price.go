package main

// Part 2: what the gate costs an enqueue. Many connections enqueue single jobs, each in a
// transaction of its own, for a slice of time in each of several ways; then again, so
// that a change of the machine's mood falls on all ways alike. The plain INSERT goes to a
// table with the same columns and indexes.

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

const (
	plainSQL = `insert into plain (task, lane, payload, meta, run_at, max_attempts, idempotency_key, key_hash, slot, slot_zone)
values ($1, '', $2, null, statement_timestamp(), 3, null, null, null, null) returning id`
	notifySQL = `with j as (` + plainSQL + `) select id, pg_notify('rebase_jobs', 't:' || $1) from j`
)

// A way of enqueueing. before sets the scene and returns how to end it.
type way struct {
	name   string
	before func(context.Context) (func() error, error)
	do     func(context.Context) error
	rates  []float64
}

func (b *bench) price(ctx context.Context) error {
	pool, q, close, err := b.openPool(ctx, int32(b.clients))
	if err != nil {
		return err
	}
	defer close()
	if _, err := pool.Exec(ctx, `drop table if exists plain; create table plain (like rebase.jobs including all)`); err != nil {
		return err
	}
	ways := b.ways(pool, q)
	for range b.repeats {
		for _, w := range ways {
			if _, err := pool.Exec(ctx, `truncate plain, rebase.jobs, rebase.claims`); err != nil {
				return err
			}
			rate, err := b.rate(ctx, w)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			w.rates = append(w.rates, rate)
		}
	}
	fmt.Printf("2   %d connections, single jobs in own transactions, %d rounds of %v, medians:\n", b.clients, b.repeats, b.slice)
	plain := median(ways[0].rates)
	for _, w := range ways {
		fmt.Printf("    %-62s %8.0f/s  %4.0f %%\n", w.name, median(w.rates), 100*median(w.rates)/plain)
	}
	_, err = pool.Exec(ctx, `drop table plain; truncate rebase.jobs, rebase.claims`)
	return err
}

func (b *bench) ways(pool *pgxpool.Pool, q *rebase.Queue) []*way {
	const task = "priced"
	nobody := func(context.Context) (func() error, error) { return func() error { return nil }, nil }
	insert := func(sql string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := pool.Exec(ctx, sql, task, `{"n":1}`)
			return err
		}
	}
	ours := func(ctx context.Context) error {
		_, err := q.Enqueue(ctx, task, map[string]int{"n": 1}, nil)
		return err
	}
	worker := func(of string) func(context.Context) (func() error, error) {
		return func(ctx context.Context) (func() error, error) {
			return b.work(ctx, of, 5, func(context.Context, *rebase.Job) error { return nil })
		}
	}
	return []*way{
		{name: "plain INSERT, same columns and indexes", before: nobody, do: insert(plainSQL)},
		{name: "Enqueue, no worker of the task sleeps (one of another does)", before: worker("another"), do: ours},
		{name: "Enqueue, a worker of the task sleeps, and wakes, and works", before: worker(task), do: ours},
		{name: "Enqueue, the sleep lock is held throughout (the worst case)", before: func(ctx context.Context) (func() error, error) { return b.lock(ctx, task) }, do: ours},
		{name: "plain INSERT and pg_notify", before: nobody, do: insert(notifySQL)},
	}
}

// lock holds the task's sleep lock as a worker does that never wakes.
func (b *bench) lock(ctx context.Context, task string) (func() error, error) {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `select pg_advisory_lock_shared(7236, hashtext($1) & 15)`, task)
	return func() error { return conn.Close(ctx) }, err
}

// rate is how many a second one way gets through.
func (b *bench) rate(ctx context.Context, w *way) (float64, error) {
	after, err := w.before(ctx)
	if err != nil {
		return 0, err
	}
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for range b.clients {
		all.Go(func() {
			for time.Since(began) < b.slice && failed.Load() == nil {
				if err := w.do(ctx); err != nil {
					failed.Store(&err)
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n.Load()) / took.Seconds(), after()
}
