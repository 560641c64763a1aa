package main

// Four worker processes on one table. They are started once and kept: what is measured is how
// they share the work, not how long a process takes to load. Each connects anew in each round.

import "context"

const multiProcesses = 4

var multi = &scenario{
	name:    "multi",
	about:   "100,000 no-op jobs drained by 4 worker processes together",
	asks:    "Do several processes get in each other's way?",
	systems: bulkQueues,
	setup: func(ctx context.Context, t *trial) error {
		for range multiProcesses {
			c, err := t.system.startChild(ctx, t.db.url)
			if err != nil {
				return err
			}
			t.children = append(t.children, c)
		}
		t.db.client = crew{t.db.client, t.children}
		return t.warm(ctx)
	},
	run: func(ctx context.Context, t *trial) error {
		return t.drainAt(ctx, t.scaled(drainJobs), t.slots())
	},
}
