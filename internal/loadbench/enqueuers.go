//go:build unix

// Many client connections enqueue through a transaction pooler that has few server connections,
// each a job at a time in a transaction of its own, while one worker drains by a direct address.
// Nothing may fail, and every job that an enqueue promised must run, once.

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// An enqueuersResult is what part enqueuers came to.
type enqueuersResult struct {
	clients, serverConns, connections int // connections of the server, as seen half-way
	enqueued, failed                  int64
	took                              time.Duration
	waits                             []time.Duration // of each enqueue
	drained                           *drained
	machine                           string
}

func (r *enqueuersResult) String() string {
	return fmt.Sprintf("enqueuers: %d client connections, pool of %d, %d server connections in all, %.1f s: %.0f enqueues/s, errors %d, median %v, p99 %v, CPUs busy %s; "+
		"%d jobs, %d succeeded, handlers ran %d times, %d jobs with runs = 1, the last ended %.2f s after the last enqueue",
		r.clients, r.serverConns, r.connections, r.took.Seconds(), float64(r.enqueued)/r.took.Seconds(), r.failed,
		quantile(r.waits, 0.5).Round(100*time.Microsecond), quantile(r.waits, 0.99).Round(100*time.Microsecond), r.machine,
		r.drained.jobs, r.drained.succeeded, r.drained.runs, r.drained.once, max(r.drained.took, 0).Seconds())
}

func (b *bench) enqueuers(ctx context.Context) (fmt.Stringer, error) { return b.enqueuersRun(ctx) }

func (b *bench) enqueuersRun(ctx context.Context) (*enqueuersResult, error) {
	p, err := b.startPooler(ctx)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := b.execAll(ctx, "truncate rebase.jobs, rebase.claims, rebase.paused"); err != nil {
		return nil, err
	}
	f, err := b.fleet(ctx, 1, workerConfig{Slots: b.slots})
	if err != nil {
		return nil, err
	}
	defer f.close()
	pool, err := b.connectAll(ctx, p.url)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	r := &enqueuersResult{clients: b.clients, serverConns: b.serverConns}
	if err := b.enqueueAll(ctx, pool, r); err != nil {
		return nil, err
	}
	if err := f.await(ctx, "the table to be empty", drainedSQL, taskNoop); err != nil {
		return nil, err
	}
	last, err := f.end(ctx)
	if err != nil {
		return nil, err
	}
	r.drained.runs = total(last).Runs
	err = b.pool.QueryRow(ctx, outcomeSQL, taskNoop, r.drained.began).
		Scan(&r.drained.jobs, &r.drained.succeeded, &r.drained.once, &r.drained.workers, &r.drained.took)
	if err != nil {
		return nil, err
	}
	if int64(r.drained.jobs) != r.enqueued {
		return nil, fmt.Errorf("%d enqueues were promised, %d jobs are in the table", r.enqueued, r.drained.jobs)
	}
	return r, r.drained.check()
}

// connectAll opens all client connections before anything is measured.
func (b *bench) connectAll(ctx context.Context, url string) (_ *pgxpool.Pool, err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(b.clients)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements don't survive older poolers
	config.ConnConfig.ConnectTimeout = 30 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	var conns []*pgxpool.Conn
	for range b.clients {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			for _, c := range conns {
				c.Release()
			}
			pool.Close()
			return nil, fmt.Errorf("client connection %d: %w", len(conns)+1, err)
		}
		conns = append(conns, conn)
	}
	for _, c := range conns {
		c.Release()
	}
	return pool, nil
}

// enqueueAll lets all clients enqueue until the time is up. None is cut short: whoever has
// begun an enqueue must learn what became of it.
func (b *bench) enqueueAll(ctx context.Context, pool *pgxpool.Pool, r *enqueuersResult) error {
	q := rebase.New(pool, &rebase.Options{Logger: quiet})
	waits := make([][]time.Duration, b.clients)
	var failed atomic.Int64
	var first atomic.Pointer[error]
	var all sync.WaitGroup
	idle, err := b.used(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range waits {
		all.Go(func() {
			for last := began; last.Sub(began) < b.enqueueFor && ctx.Err() == nil; {
				_, err := q.Enqueue(ctx, taskNoop, i, nil)
				now := time.Now()
				if err != nil {
					failed.Add(1)
					first.CompareAndSwap(nil, &err)
				} else {
					waits[i] = append(waits[i], now.Sub(last))
				}
				last = now
			}
		})
	}
	err = pause(ctx, b.enqueueFor/2)
	if err == nil {
		err = b.pool.QueryRow(ctx, connectionsSQL, "").Scan(&r.connections)
	}
	all.Wait()
	r.took = time.Since(began)
	r.drained = &drained{what: "enqueued jobs"}
	clockErr := b.pool.QueryRow(context.WithoutCancel(ctx), "select clock_timestamp()").Scan(&r.drained.began)
	busy, usedErr := b.used(context.WithoutCancel(ctx))
	r.machine = busy.since(idle)
	r.waits, r.failed = slices.Concat(waits...), failed.Load()
	r.enqueued = int64(len(r.waits))
	if e := first.Load(); e != nil {
		err = errors.Join(err, fmt.Errorf("%d of %d enqueues failed, the first: %w", r.failed, r.failed+r.enqueued, *e))
	}
	return errors.Join(err, clockErr, usedErr)
}
