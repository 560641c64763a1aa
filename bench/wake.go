package main

// How soon an idle worker begins a job that another process enqueues: from before that
// process's enqueue, so its commit is in it, to the handler. The pause between two jobs is
// drawn anew each time, or a poll could fall into step with it. Both processes are on one
// machine and read one clock.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"
)

const wakeJobs = 300

var wake = &scenario{
	name:    "wake",
	about:   "300 single jobs enqueued by another process while the worker is idle: time to the handler, .p50 .p95 .p99",
	asks:    "How soon does an idle worker begin a job?",
	systems: queues,
	run: func(ctx context.Context, t *trial) error {
		if err := t.db.empty(ctx); err != nil {
			return err
		}
		times, err := t.wakes(ctx, t.scaled(wakeJobs))
		if err != nil {
			return err
		}
		for _, q := range []float64{0.50, 0.95, 0.99} {
			t.measured(fmt.Sprintf("p%.0f", q*100), quantile(times, q), "ms")
		}
		return nil
	},
}

func (t *trial) wakes(ctx context.Context, n int) (times []float64, err error) {
	took := make(chan time.Duration, 1)
	stop, err := t.db.work(ctx, worker{slots: 5}, func(sent int64) { took <- time.Duration(time.Now().UnixNano() - sent) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	e, err := startEnqueuer(ctx, t.system.name, t.db.url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.end()) }()
	const warmUp = 10 // connections, prepared statements and caches
	for i := range n + warmUp {
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
		if _, err := fmt.Fprintln(e.in); err != nil {
			return nil, err
		}
		select {
		case d := <-took:
			if i >= warmUp {
				times = append(times, float64(d)/float64(time.Millisecond))
			}
		case <-time.After(30 * time.Second):
			return nil, errors.New("a job did not begin within 30 s")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return times, nil
}

// An enqueuer is a process that makes a job for every line that it reads.
type enqueuer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func startEnqueuer(ctx context.Context, system, url string) (*enqueuer, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, enqueuerArg, system, url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &enqueuer{cmd, in}, cmd.Start()
}

func (e *enqueuer) end() error { return errors.Join(e.in.Close(), e.cmd.Wait()) }

// enqueuerArg as the first argument makes the program an enqueuer.
const enqueuerArg = "enqueuer"

// enqueueOnDemand is the other process.
func enqueueOnDemand(ctx context.Context, system, url string) error {
	s, err := systemNamed(system)
	if err != nil {
		return err
	}
	c, err := s.open(ctx, url, 1)
	if err != nil {
		return err
	}
	defer c.close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := c.enqueue(ctx, time.Now().UnixNano()); err != nil {
			return err
		}
	}
	return lines.Err()
}
