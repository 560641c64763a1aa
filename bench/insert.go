package main

// Bulk inserts, 1,000 jobs a call, one call after the other on one connection, each in a
// transaction of its own; and the same with a key on each job that makes it unique.

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const insertJobs = 100_000

var insert = &scenario{
	name:    "insert",
	about:   "bulk inserts, 1,000 a call; .keys: each job with a unique key",
	asks:    "How fast do jobs get in, many at a time?",
	systems: bulkQueues,
	run: func(ctx context.Context, t *trial) error {
		n := max(t.scaled(insertJobs)/perCall, 1) * perCall
		for _, keys := range []bool{false, true} {
			part := map[bool]string{true: "keys"}[keys]
			rate, err := t.insertRate(ctx, n, keys)
			if errors.Is(err, errUnsupported) && keys {
				if t.round == 1 {
					fmt.Fprintf(t.out, "SKIPPED scenario=insert.keys system=%s: %v\n", t.system.name, err)
				}
				continue
			}
			if err != nil {
				return err
			}
			t.measured(part, rate, "jobs/s")
		}
		return nil
	},
}

func (t *trial) insertRate(ctx context.Context, n int, keys bool) (float64, error) {
	if err := t.db.empty(ctx); err != nil {
		return 0, err
	}
	// Once, unmeasured: statements are prepared, and the table's first pages are there.
	if err := t.db.insert(ctx, batch{n: perCall, keys: keys}); err != nil {
		return 0, err
	}
	if err := t.db.settle(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	for range n / perCall {
		if err := t.db.insert(ctx, batch{n: perCall, keys: keys}); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(start).Seconds(), nil
}
