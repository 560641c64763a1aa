//go:build unix

// Many lanes beside one. The rate runs from the first handler to the last result in the table,
// so that neither connecting nor falling asleep is in it. The three ways take turns within a
// round, so that what the machine does besides hits all of them.

package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rebasejobs/rebase"
)

// A way to spread jobs over lanes.
type way struct {
	name   string
	laneOf func(i int) string
	rates  []float64
	claims []float64 // statements per 1,000 jobs
}

func (b *bench) many(ctx context.Context) error {
	ways := []*way{
		{name: "no lane", laneOf: func(int) string { return "" }},
		{name: "one lane", laneOf: func(int) string { return "only" }},
		{name: "a lane each", laneOf: func(i int) string { return fmt.Sprintf("tenant %06d", i) }},
	}
	fmt.Printf("many: %d jobs, %d slots, handlers that do nothing, median of %d rounds\n", b.lanes, b.slots, b.rounds)
	for range b.rounds {
		for _, w := range ways {
			if err := b.drain(ctx, w); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	for _, w := range ways {
		fmt.Printf("    %-12s %7.0f jobs/s (%.0f to %.0f), %.1f claim statements per 1,000 jobs\n",
			w.name, quantile(w.rates, 0.5), quantile(w.rates, 0), quantile(w.rates, 1), quantile(w.claims, 0.5))
	}
	fmt.Printf("    a lane each ÷ one lane: %.2f (wanted: 0.50 or more)\n", quantile(ways[2].rates, 0.5)/quantile(ways[1].rates, 0.5))
	return nil
}

// drain notes the rate of one run.
func (b *bench) drain(ctx context.Context, w *way) error {
	if err := b.fill(ctx, b.lanes, w.laneOf); err != nil {
		return err
	}
	before, _, err := b.claims(ctx)
	if err != nil {
		return err
	}
	var first atomic.Int64
	start := time.Now()
	stop := b.work(ctx, b.slots, func(context.Context, *rebase.Job) error {
		first.CompareAndSwap(0, int64(time.Since(start)))
		return nil
	}, nil)
	err = b.drained(ctx)
	took := time.Since(start) - time.Duration(first.Load())
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return err
	}
	after, _, err := b.claims(ctx)
	w.rates = append(w.rates, float64(b.lanes)/took.Seconds())
	w.claims = append(w.claims, float64(after-before)/float64(b.lanes)*1000)
	return err
}
