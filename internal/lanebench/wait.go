//go:build unix

// A lane of one behind a lane of many. The wait is from the commit of the enqueue to the begin of
// the handler, in one process and by its own clock; beside it stands the wait with no backlog
// at all, which is what a lane can't be better than, and that without lanes, where the job
// stands behind all the others.

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rebasejobs/rebase"
)

func (b *bench) wait(ctx context.Context) error {
	fmt.Printf("wait: jobs in a lane of their own, %d one after the other, %d slots\n", b.probes, b.slots)
	for _, c := range []struct {
		name    string
		backlog int
	}{{"no backlog", 0}, {fmt.Sprintf("beside a lane of %d", b.backlog), b.backlog}} {
		waits, left, err := b.probe(ctx, c.backlog)
		if err != nil {
			return err
		}
		fmt.Printf("    %-24s median %v, worst %v; %d of the long lane were left after the last\n", c.name,
			quantile(waits, 0.5).Round(10*time.Microsecond), quantile(waits, 1).Round(10*time.Microsecond), left)
	}
	return nil
}

// probe enqueues one job after the other while a worker is busy with the backlog; left is how
// much of that there still was at the end, or the figure says nothing.
func (b *bench) probe(ctx context.Context, backlog int) (waits []time.Duration, left int, err error) {
	if err := b.fill(ctx, backlog, func(int) string { return "many" }); err != nil {
		return nil, 0, err
	}
	begun := make(chan time.Time, b.probes)
	busy := make(chan struct{}, 1)
	stop := b.work(ctx, b.slots, func(ctx context.Context, job *rebase.Job) error {
		if job.Lane != "many" {
			begun <- time.Now()
			return nil
		}
		select {
		case busy <- struct{}{}:
		default:
		}
		return pause(ctx, time.Millisecond)
	}, nil)
	defer func() {
		if stopErr := stop(); err == nil {
			err = stopErr
		}
	}()
	if backlog > 0 {
		<-busy
	}
	for i := range b.probes {
		_, err := b.q.Enqueue(ctx, task, nil, &rebase.EnqueueOptions{Lane: fmt.Sprintf("one %d", i)})
		if err != nil {
			return nil, 0, err
		}
		from := time.Now()
		select {
		case at := <-begun:
			waits = append(waits, at.Sub(from))
		case <-time.After(time.Minute):
			return nil, 0, fmt.Errorf("probe %d has not begun after a minute", i)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, 0, err
		}
	}
	err = b.pool.QueryRow(ctx, "select count(*) from rebase.jobs where finished_at is null and lane = 'many'").Scan(&left)
	return waits, left, err
}
