package main

// The drains: a table full of jobs whose handlers do nothing. The clock runs from before the
// worker is started, so connecting is in it, until no job is unfinished in the table. Handlers
// having been called is not enough: results wait in batches.

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const drainJobs = 100_000

var drain = &scenario{
	name:    "drain",
	about:   "100,000 no-op jobs, each system at its best concurrency",
	asks:    "How many jobs a second, at best?",
	systems: append([]*system{ceilingSystem, bareSystem, bareDeleteSystem}, bulkQueues...),
	warm:    true,
	run: func(ctx context.Context, t *trial) error {
		return t.drainAt(ctx, t.scaled(drainJobs), t.slots())
	},
}

var drain5 = &scenario{
	name:    "drain5",
	about:   "the same at concurrency 5",
	asks:    "And with few slots?",
	systems: bulkQueues,
	warm:    true,
	run: func(ctx context.Context, t *trial) error {
		return t.drainAt(ctx, t.scaled(drainJobs), 5)
	},
}

func (t *trial) drainAt(ctx context.Context, n, slots int) error {
	if err := t.db.prepare(ctx, n, 0); err != nil {
		return err
	}
	d, err := t.db.drain(ctx, n, slots, nil)
	if err == nil {
		t.measured("", d.rate(n), "jobs/s")
	}
	return err
}

// A drained table is how it went: the whole time, and when each fifth had been handled.
type drained struct {
	took   time.Duration
	begun  atomic.Int64    // nanoseconds until the first handler
	fifths [5]atomic.Int64 // nanoseconds; handlers write them
}

func (d *drained) rate(n int) float64 { return float64(n) / d.took.Seconds() }

// curve is the rate of each fifth.
func (d *drained) curve(n int) []float64 {
	rates := make([]float64, len(d.fifths))
	from := d.begun.Load()
	for i := range d.fifths {
		until := d.fifths[i].Load()
		rates[i] = float64(n/5) / time.Duration(max(until-from, 1)).Seconds()
		from = until
	}
	return rates
}

// decay is the rate of the last fifth over that of the second. The first has the start in it.
func (d *drained) decay() float64 {
	between := func(i int) float64 { return float64(d.fifths[i].Load() - d.fifths[i-1].Load()) }
	return between(1) / between(4)
}

// drainLimit ends a drain that goes nowhere.
const drainLimit = 10 * time.Minute

// drain runs n jobs. What h does, if it isn't nil, is their work.
func (db *database) drain(ctx context.Context, n, slots int, h func()) (*drained, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, drainLimit, fmt.Errorf("not drained within %v", drainLimit))
	defer cancel()
	var d drained
	var handled atomic.Int64
	all := make(chan struct{})
	start := time.Now()
	var first sync.Once
	stop, err := db.work(ctx, worker{slots: slots}, func(int64) {
		first.Do(func() { d.begun.Store(int64(time.Since(start))) })
		if h != nil {
			h()
		}
		k := int(handled.Add(1))
		if k%(n/5) == 0 && k <= n {
			d.fifths[k/(n/5)-1].Store(int64(time.Since(start)))
		}
		if k == n {
			close(all)
		}
	})
	if err != nil {
		return nil, err
	}
	err = db.finished(ctx, all)
	d.took = time.Since(start)
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if got := handled.Load(); err == nil && got != int64(n) {
		err = fmt.Errorf("%d handlers ran for %d jobs", got, n)
	}
	if err != nil {
		return nil, fmt.Errorf("drain: %w; %d of %d handled", err, handled.Load(), n)
	}
	return &d, nil
}

// finished waits for the last handler, and then for the last result.
func (db *database) finished(ctx context.Context, all <-chan struct{}) error {
	select {
	case <-all:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		var left bool
		if err := db.admin.QueryRow(ctx, db.unfinished()).Scan(&left); err != nil || !left {
			return err
		}
		time.Sleep(time.Millisecond) // the only way to hear of it that all systems have
	}
}
