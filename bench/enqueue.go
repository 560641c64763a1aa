package main

// Single enqueues, each in a transaction of its own, from 1, 16 and 64 connections at once:
// with nobody asleep, and with one idle worker, which they wake and which then works what they
// make. Beside them a plain INSERT and a plain pg_notify: a NOTIFY serialises the commits of
// the whole cluster, and this shows what that costs and who pays it.

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const enqueueFor = 3 * time.Second

var enqueueConns = []int{1, 16, 64}

var enqueue = &scenario{
	name:    "enqueue",
	about:   "single enqueues for 3 s from 1, 16 and 64 connections; .asleep: with one idle worker",
	asks:    "How fast one at a time, and what does waking workers cost?",
	systems: append([]*system{plainInsert, plainNotify}, queues...),
	run: func(ctx context.Context, t *trial) error {
		for _, asleep := range []bool{false, true} {
			for _, conns := range enqueueConns {
				rate, err := t.enqueueRate(ctx, conns, asleep)
				if err != nil {
					return err
				}
				part := fmt.Sprint(conns)
				if asleep {
					part += ".asleep"
				}
				t.measured(part, rate, "jobs/s")
			}
		}
		return nil
	},
}

func (t *trial) enqueueRate(ctx context.Context, conns int, asleep bool) (rate float64, err error) {
	if err := t.db.empty(ctx); err != nil {
		return 0, err
	}
	if err := t.db.settle(ctx); err != nil {
		return 0, err
	}
	c, err := t.system.open(ctx, t.db.url, conns)
	if err != nil {
		return 0, err
	}
	defer c.close()
	if asleep {
		stop, err := t.db.asleep(ctx)
		if err != nil {
			return 0, err
		}
		defer func() {
			if stopErr := stop(); err == nil {
				err = stopErr
			}
		}()
	}
	limit := max(time.Duration(float64(enqueueFor)*min(t.scale(), 1)), 100*time.Millisecond)
	// Unmeasured: each connection prepares its statement, and the server decides on a plan for it
	// only after five executions.
	if _, err := enqueueFrom(ctx, c, conns, limit/5); err != nil {
		return 0, err
	}
	return enqueueFrom(ctx, c, conns, limit)
}

// asleep starts a worker and waits until it has nothing to do.
func (db *database) asleep(ctx context.Context) (stop func() error, err error) {
	stop, err = db.work(ctx, worker{slots: 5}, func(int64) {})
	if err == nil {
		// That a worker is idle can't be seen from outside; all of them are by then.
		time.Sleep(time.Second)
	}
	return stop, err
}

// enqueueFrom enqueues on a pool of as many connections until the time is up, and counts what was done by then.
func enqueueFrom(ctx context.Context, c client, conns int, limit time.Duration) (float64, error) {
	var done atomic.Int64
	errs := make([]error, conns)
	var all sync.WaitGroup
	start := time.Now()
	for i := range conns {
		all.Go(func() {
			for time.Since(start) < limit && errs[i] == nil {
				errs[i] = c.enqueue(ctx, 0)
				done.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(done.Load()) / took.Seconds(), nil
}
