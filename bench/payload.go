package main

// Drains of jobs with something to carry. The text is random and of random length, see ballast:
// the server can't compress it, and from about 2 KB on it stands outside the row, as a large
// payload of a user's would.

import "context"

var payloads = []struct {
	part        string
	bytes, jobs int
}{
	{"1k", 1 << 10, 50_000},
	{"10k", 10 << 10, 20_000},
}

var payload = &scenario{
	name:    "payload",
	about:   "the drain with payloads of 1 KB (50,000 jobs) and of 10 KB (20,000) on average",
	asks:    "What do large payloads cost?",
	systems: bulkQueues,
	warm:    true,
	run: func(ctx context.Context, t *trial) error {
		for _, p := range payloads {
			n := t.scaled(p.jobs)
			if err := t.db.prepare(ctx, n, p.bytes); err != nil {
				return err
			}
			d, err := t.db.drain(ctx, n, t.slots(), nil)
			if err != nil {
				return err
			}
			t.measured(p.part, d.rate(n), "jobs/s")
		}
		return nil
	},
}
