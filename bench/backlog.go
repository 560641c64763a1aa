package main

// A backlog that nobody serves: 200,000 jobs of another task (rebase) or in another queue
// (those that have queues) wait in the table, older than all that is to be drained. The clean
// rate is measured in the same round.

import "context"

const backlogJobs = 200_000

var backlog = &scenario{
	name:    "backlog",
	about:   "the drain behind 200,000 jobs that nobody serves; .clean without them, .share of it",
	asks:    "Do jobs that nobody serves get in the way?",
	systems: bulkQueues,
	warm:    true,
	run: func(ctx context.Context, t *trial) error {
		n := t.scaled(drainJobs)
		rates := map[int]float64{}
		for i := range 2 {
			behind := (i + t.round) % 2 * t.scaled(backlogJobs)
			rate, err := t.drainBehind(ctx, n, behind)
			if err != nil {
				return err
			}
			rates[min(behind, 1)] = rate
		}
		t.measured("", rates[1], "jobs/s")
		t.measured("clean", rates[0], "jobs/s")
		t.measured("share", rates[1]/rates[0], "×")
		return nil
	},
}

func (t *trial) drainBehind(ctx context.Context, n, behind int) (float64, error) {
	if err := t.db.empty(ctx); err != nil {
		return 0, err
	}
	for ; behind > 0; behind -= perCall {
		if err := t.db.insert(ctx, batch{n: min(behind, perCall), unserved: true}); err != nil {
			return 0, err
		}
	}
	if err := t.db.fill(ctx, n, 0); err != nil {
		return 0, err
	}
	if err := t.db.settle(ctx); err != nil {
		return 0, err
	}
	d, err := t.db.drain(ctx, n, t.slots(), nil)
	if err != nil {
		return 0, err
	}
	return d.rate(n), nil
}
