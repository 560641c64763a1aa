package main

// A table with a history: five million jobs have ended and are kept. The clean rate is that of
// a second database in the same round. Systems that delete what has ended have nothing to show.

import "context"

const retainedJobs = 5_000_000

var retained = &scenario{
	name:    "retained",
	about:   "the drain over 5,000,000 finished jobs; .clean without them, .share of it",
	asks:    "Do finished jobs that are kept slow it down?",
	systems: append([]*system{ceilingSystem}, bulkQueues...),
	warm:    true,
	setup: func(ctx context.Context, t *trial) (err error) {
		r, ok := t.db.client.(retainer)
		if !ok {
			return errUnsupported
		}
		if t.other, err = t.newDatabase(ctx, "retained.clean", t.system); err != nil {
			return err
		}
		return r.retain(ctx, t.scaled(retainedJobs))
	},
	run: func(ctx context.Context, t *trial) error {
		n := t.scaled(drainJobs)
		rates := map[*database]float64{}
		order := []*database{t.db, t.other}
		for i := range order {
			db := order[(i+t.round)%2]
			rate, err := t.drainKept(ctx, db, n)
			if err != nil {
				return err
			}
			rates[db] = rate
		}
		t.measured("", rates[t.db], "jobs/s")
		t.measured("clean", rates[t.other], "jobs/s")
		t.measured("share", rates[t.db]/rates[t.other], "×")
		return nil
	},
}

// drainKept empties only the clean database.
func (t *trial) drainKept(ctx context.Context, db *database, n int) (float64, error) {
	if db == t.other {
		if err := db.empty(ctx); err != nil {
			return 0, err
		}
	}
	if err := db.fill(ctx, n, 0); err != nil {
		return 0, err
	}
	if err := db.settle(ctx); err != nil {
		return 0, err
	}
	d, err := db.drain(ctx, n, t.slots(), nil)
	if err != nil {
		return 0, err
	}
	return d.rate(n), nil
}
