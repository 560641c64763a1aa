//go:build unix

// Enqueuers make jobs in every way that the library has, some in transactions that they
// roll back, and note what became of each. A commit whose reply was lost is noted as
// unknown: its jobs may be there or not, but nothing else about them may be wrong.

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// A Producer enqueues jobs from one goroutine after the other or from many at once.
type Producer struct {
	q       *rebase.Queue
	pool    *pgxpool.Pool
	record  record
	options rebase.EnqueueOptions
	n       atomic.Int64
}

// NewProducer makes a producer on the pool.
func NewProducer(pool *pgxpool.Pool, maxAttempts int) *Producer {
	return &Producer{q: rebase.New(pool, nil), pool: pool, record: record{pool: pool}, options: rebase.EnqueueOptions{MaxAttempts: maxAttempts}}
}

var errRollback = errors.New("rolled back on purpose")

// Make enqueues the payloads in one transaction, numbers them, and returns their jobs'
// ids. Which of the library's ways it takes is drawn from r; with one chance in ten the
// transaction is rolled back and tried again as another.
func (p *Producer) Make(ctx context.Context, r *rand.Rand, payloads ...Payload) ([]int64, error) {
	for {
		ns := make([]int64, len(payloads))
		for i := range payloads {
			ns[i] = p.n.Add(1)
			payloads[i].N = ns[i]
		}
		ids, err := p.transaction(ctx, r.IntN(3), r.IntN(10) == 0, payloads)
		switch {
		case err == nil:
			p.record.note(noteEnqueuedSQL, ns, ids, "committed")
			return ids, nil
		case errors.Is(err, errRollback):
			p.record.note(noteEnqueuedSQL, ns, make([]*int64, len(ns)), "rolled back")
		case ctx.Err() != nil:
			return nil, err
		default:
			p.record.note(noteEnqueuedSQL, ns, make([]*int64, len(ns)), "unknown")
		}
	}
}

func (p *Producer) transaction(ctx context.Context, way int, rollback bool, payloads []Payload) (ids []int64, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if ids, err = p.enqueue(ctx, tx, way, payloads); err != nil {
			return err
		}
		if rollback {
			return errRollback
		}
		return nil
	})
	return ids, err
}

// enqueue goes one of three ways: job by job, all at once, or by the function for SQL.
func (p *Producer) enqueue(ctx context.Context, tx pgx.Tx, way int, payloads []Payload) ([]int64, error) {
	ids := make([]int64, len(payloads))
	if way == 0 {
		items := make([]rebase.Item, len(payloads))
		for i := range payloads {
			items[i] = rebase.Item{Task: task, Payload: payloads[i], Options: &p.options}
		}
		done, err := p.q.EnqueueManyTx(ctx, tx, items)
		for i := range done {
			ids[i] = done[i].ID
		}
		return ids, err
	}
	for i := range payloads {
		if way == 1 {
			done, err := p.q.EnqueueTx(ctx, tx, task, payloads[i], &p.options)
			if err != nil {
				return nil, err
			}
			ids[i] = done.ID
			continue
		}
		const sql = `select rebase.enqueue($1, $2, max_attempts => $3)`
		if err := tx.QueryRow(ctx, sql, task, payloads[i], p.options.MaxAttempts).Scan(&ids[i]); err != nil {
			return nil, fmt.Errorf("rebase.enqueue: %w", err)
		}
	}
	return ids, nil
}
