package main

// The memory of a fresh process that drains a table: the most that was resident at any time, as
// the kernel counts it, and for systems in Go how many allocations a job costs, from before the
// worker starts until it has stopped. The process is this program or Node.js, and what it takes
// before any work is in the figure.

import "context"

var memory = &scenario{
	name:    "memory",
	about:   "100,000 no-op jobs drained by a fresh process: its peak of resident memory; .allocs: allocations a job (Go)",
	asks:    "How much memory does a busy worker take?",
	systems: bulkQueues,
	run: func(ctx context.Context, t *trial) error {
		n := t.scaled(drainJobs)
		if err := t.db.prepare(ctx, n, 0); err != nil {
			return err
		}
		peak, mallocs, err := t.freshDrain(ctx, n)
		if err != nil {
			return err
		}
		t.measured("", peak, "MiB")
		if t.system.node == "" {
			t.measured("allocs", float64(mallocs)/float64(n), "a_job")
		}
		return nil
	},
}

// freshDrain drains in a child that has done nothing before.
func (t *trial) freshDrain(ctx context.Context, n int) (peak float64, mallocs uint64, err error) {
	c, err := t.system.startChild(ctx, t.db.url)
	if err != nil {
		return 0, 0, err
	}
	defer c.close()
	db := &database{client: once{t.db.client, c, &mallocs}, admin: t.db.admin}
	if _, err := db.drain(ctx, n, t.slots(), nil); err != nil {
		return 0, 0, err
	}
	peak, err = peakMemory(c.cmd.Process.Pid)
	return peak, mallocs, err
}

// once is a crew of one that is asked at its end what it allocated.
type once struct {
	client
	child   *child
	mallocs *uint64
}

func (o once) work(ctx context.Context, w worker, h handler) (func() error, error) {
	if err := o.child.work(ctx, w, h); err != nil {
		return nil, err
	}
	return func() (err error) {
		*o.mallocs, err = o.child.stop()
		return err
	}, nil
}
