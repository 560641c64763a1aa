package main

// Fairness: a worker with 10 slots is busy with 10,000 jobs of one task, 1 ms each, when a
// single job of a second task comes. How long does it wait? Once a tenth of the first task has
// run; the wait counts from before the enqueue. River gets a second queue with 10 slots more,
// because jobs of one queue stand in one line.

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	fairJobs  = 10_000
	fairSlots = 10
)

var fair = &scenario{
	name:    "fair",
	about:   "one job of a second task behind 10,000 jobs of 1 ms, 10 slots: its wait",
	asks:    "Does one busy task keep another out?",
	systems: queues,
	run: func(ctx context.Context, t *trial) error {
		s, ok := t.db.client.(seconder)
		if !ok {
			return errUnsupported
		}
		n := t.scaled(fairJobs)
		if err := t.db.prepare(ctx, n, 0); err != nil {
			return err
		}
		wait, err := t.waitOfSecond(ctx, n, s)
		if err == nil {
			t.measured("", float64(wait)/float64(time.Millisecond), "ms")
		}
		return err
	},
}

func (t *trial) waitOfSecond(ctx context.Context, n int, s seconder) (wait time.Duration, err error) {
	var handled atomic.Int64
	busy, begun := make(chan struct{}), make(chan time.Duration, 1)
	stop, err := t.db.work(ctx, worker{slots: fairSlots, second: true}, func(sent int64) {
		if sent > 0 {
			begun <- time.Duration(time.Now().UnixNano() - sent)
			return
		}
		if handled.Add(1) == int64(n/10) {
			close(busy)
		}
		time.Sleep(time.Millisecond)
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	limit := time.After(drainLimit)
	for {
		select {
		case <-busy:
			busy = nil
			if err := s.enqueueSecond(ctx, time.Now().UnixNano()); err != nil {
				return 0, err
			}
		case wait := <-begun:
			if handled.Load() >= int64(n) {
				return 0, errors.New("the first task was done before the second could begin")
			}
			return wait, nil
		case <-limit:
			return 0, errors.New("the second task's job did not begin")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
