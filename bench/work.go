package main

// Handlers that take time, at concurrency 64 for all. The ideal is that every slot always has
// a job: .busy is the time spent in handlers over 64 × the time from the first handler's start
// to the last one's end. The handlers' true time counts, because a sleep of 1 ms takes longer
// than that on a busy machine. The rate is the drain's, with everything in it.

import (
	"context"
	"sync/atomic"
	"time"
)

const workSlots = 64

var work1ms = workScenario("work1ms", "200,000 jobs of 1 ms at concurrency 64; .busy: share of the slots' time in handlers", time.Millisecond, 200_000)

var work100ms = workScenario("work100ms", "6,400 jobs of 100 ms at concurrency 64; .busy: share of the slots' time in handlers", 100*time.Millisecond, 6_400)

func workScenario(name, about string, takes time.Duration, jobs int) *scenario {
	return &scenario{
		name:    name,
		about:   about,
		asks:    "Are all slots busy while handlers take time?",
		systems: queues,
		warm:    true,
		run: func(ctx context.Context, t *trial) error {
			n := t.scaled(jobs)
			if err := t.db.prepare(ctx, n, 0); err != nil {
				return err
			}
			var spent atomic.Int64
			d, err := t.db.drain(ctx, n, workSlots, func() {
				begun := time.Now()
				time.Sleep(takes)
				spent.Add(int64(time.Since(begun)))
			})
			if err != nil {
				return err
			}
			t.measured("", d.rate(n), "jobs/s")
			t.measured("busy", float64(spent.Load())/float64(workSlots*(d.fifths[4].Load()-d.begun.Load())), "×")
			return nil
		},
	}
}
