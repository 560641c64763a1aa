//go:build unix

// Enqueuers make jobs in every way that the library has: alone and many at once, with and
// without keys, lanes and delays, in transactions that commit late or roll back. What
// became of each is noted after it is certain. A commit whose reply was lost is "unknown":
// its jobs may be there or not, but nothing else about them may be wrong.

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// How a transaction ended.
const (
	committed  = "committed"
	rolledBack = "rolled back"
	unknown    = "unknown"
	refused    = "refused" // of operations: the library said no
)

// enqueuers share a pool that leads over a link of its own.
type enqueuers struct {
	record *record
	pool   *pgxpool.Pool
	queue  *rebase.Queue
	n      atomic.Int64
	full   atomic.Bool // the queue is long enough
	slow   atomic.Bool // more handlers are to be at work, and for long

	mu     sync.Mutex // guards recent
	recent []int64    // ids of committed jobs, for operators
}

// An item is a job to be made and what became of it.
type item struct {
	rebase.Item
	n   int64
	got rebase.Enqueued
}

// run enqueues about rate jobs a second until ctx ends.
func (e *enqueuers) run(ctx context.Context, seed uint64, rate int) {
	const hands = 12
	var all sync.WaitGroup
	for i := range hands {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1000+uint64(i)))
			for ctx.Err() == nil {
				n := 0
				if !e.full.Load() {
					n = e.one(r)
				}
				d := time.Duration(max(n, 1)) * hands * time.Second / time.Duration(rate)
				_ = pause(ctx, d/2+time.Duration(r.Int64N(int64(d)))) // the loop asks the context
			}
		})
	}
	all.Wait()
}

// one makes one transaction and returns how many jobs were to be in it.
func (e *enqueuers) one(r *rand.Rand) int {
	count := 1
	if r.IntN(4) == 0 {
		count = 1 + r.IntN(20)
	}
	items := make([]item, count)
	for i := range items {
		items[i] = e.draw(r)
	}
	// It doesn't end with the run: a commit that is cut short has an unknown outcome.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	outcome := e.transaction(ctx, r, items)
	for _, it := range items {
		what := outcome
		if what == committed && it.got.Duplicate {
			what = "duplicate"
		}
		e.record.note(note{Kind: noteEnqueue, N: it.n, Job: it.got.ID, Task: it.Task, Key: it.Options.IdempotencyKey, What: what})
		if what == committed {
			e.remember(it.got.ID)
		}
	}
	return count
}

// transaction makes the items and says how that ended.
func (e *enqueuers) transaction(ctx context.Context, r *rand.Rand, items []item) string {
	if len(items) == 1 && r.IntN(3) == 0 { // in a transaction of its own
		got, err := e.queue.Enqueue(ctx, items[0].Task, items[0].Payload, items[0].Options)
		items[0].got = got
		if err != nil {
			return unknown
		}
		return committed
	}
	tx, err := e.pool.Begin(ctx)
	if err != nil {
		return rolledBack
	}
	defer rollBack(ctx, tx)
	if err := e.insert(ctx, tx, r.IntN(3), items); err != nil {
		return rolledBack
	}
	if r.IntN(10) == 0 { // late
		_ = pause(ctx, time.Duration(r.Int64N(int64(1500*time.Millisecond))))
	}
	if r.IntN(8) == 0 {
		return rolledBack
	}
	switch err := tx.Commit(ctx); {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return rolledBack
	case err != nil:
		return unknown
	}
	return committed
}

// rollBack takes a transaction back, unless it was committed. It doesn't end with ctx, and
// not never either: the connection may be one that nobody answers on any more.
func rollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // a connection that broke has done it
}

// insert goes one of three ways: job by job, all at once, or by the function for SQL.
func (e *enqueuers) insert(ctx context.Context, tx pgx.Tx, way int, items []item) error {
	if way == 0 {
		all := make([]rebase.Item, len(items))
		for i := range items {
			all[i] = items[i].Item
		}
		got, err := e.queue.EnqueueManyTx(ctx, tx, all)
		for i := range got {
			items[i].got = got[i]
		}
		return err
	}
	for i := range items {
		it := &items[i]
		if way == 1 {
			got, err := e.queue.EnqueueTx(ctx, tx, it.Task, it.Payload, it.Options)
			if err != nil {
				return err
			}
			it.got = got
			continue
		}
		var id *int64
		o := it.Options
		const sql = `select rebase.enqueue($1, $2, delay => $3, max_attempts => $4, idempotency_key => $5, lane => $6)`
		if err := tx.QueryRow(ctx, sql, it.Task, it.Payload, o.Delay, o.MaxAttempts, o.IdempotencyKey, o.Lane).Scan(&id); err != nil {
			return fmt.Errorf("rebase.enqueue: %w", err)
		}
		if it.got.Duplicate = id == nil; id != nil {
			it.got.ID = *id
		}
	}
	return nil
}

// draw makes up a job.
func (e *enqueuers) draw(r *rand.Rand) item {
	it := item{n: e.n.Add(1)}
	p := payload{N: it.n, Does: doesOK, For: r.Int64N(20)}
	o := &rebase.EnqueueOptions{MaxAttempts: 2 + r.IntN(2)} // after the third of four a reaper would make it wait for 25 s
	it.Task, it.Options = taskShort, o
	if r.IntN(6) == 0 {
		o.Delay = time.Duration(r.Int64N(int64(3 * time.Second)))
	}
	switch n := r.IntN(1000); {
	case n < 10: // longer than a lease
		it.Task, p.For = taskLong, 4000+r.Int64N(3000)
	case n < 25:
		it.Task, p.For, p.Times = taskTimed, 3000, 1
		if r.IntN(2) == 0 {
			p.Does = doesDeaf
		}
	case n < 150:
		it.Task, o.Lane, p.For = taskLaned, fmt.Sprintf("lane%d", r.IntN(8)), r.Int64N(60)
	case n < 350:
		it.Task, o.IdempotencyKey, p.For = taskKeyed, fmt.Sprintf("key%d", r.IntN(15)), r.Int64N(100)
	default:
		e.misbehave(r, &p)
	}
	it.Payload = p
	return it
}

// misbehave is for a part of the short jobs.
func (e *enqueuers) misbehave(r *rand.Rand, p *payload) {
	p.Times = 1 + r.IntN(2)
	switch n := r.IntN(1000); {
	case n < 40:
		p.Does = doesFail
	case n < 55:
		p.Does, p.Times = doesFail, 0
	case n < 80:
		p.Does = doesPanic
	case n < 90:
		p.Does = doesGoexit
	case n < 100:
		p.Does = doesPermanent
	case n < 140:
		p.Does = doesSnooze
	case n < 160:
		p.Does = doesLater
	case n < 170:
		p.Does = doesCancel
	case n < 230:
		p.Does, p.For, p.Times = doesQuery, r.Int64N(300), 0
	case n < 350:
		p.Does, p.For, p.Times = doesComplete, r.Int64N(40), 0
		if r.IntN(20) == 0 {
			p.For = 4000 + r.Int64N(2000) // a transaction that is open for longer than a lease
		}
	case n < 365:
		p.Does = doesUndo
	case n < 375:
		p.Does = doesForget
	case n < 390: // what a frozen process still returns
		p.Does, p.For, p.Times = doesDeaf, 1000+r.Int64N(2000), 0
	case n == 999:
		p.Does, p.Times = doesDie, 1
	default:
		p.Times = 0
		if r.IntN(2) == 0 { // at work when a late result of the first run comes
			p.Again = 2000 + r.Int64N(2000)
		}
		if e.slow.Load() && r.IntN(3) == 0 {
			p.For = 1000 + r.Int64N(4000)
		}
	}
}

// remember keeps the latest ids.
func (e *enqueuers) remember(id int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.recent) < 1000 {
		e.recent = append(e.recent, id)
		return
	}
	e.recent[id%1000] = id
}

// someJob is the id of one of the latest jobs, 0 for none.
func (e *enqueuers) someJob(r *rand.Rand) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.recent) == 0 {
		return 0
	}
	return e.recent[r.IntN(len(e.recent))]
}
