package main

// Parts 1 and 6: how soon a job begins. In part 1 another process enqueues, one job after
// the other with a pause between, so that the worker is idle each time; the time counts
// from before its Enqueue, so the commit is in it. Part 6 counts from when a job is due.
// Both processes are on one machine and read one clock.

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/rebasejobs/rebase"
)

func (b *bench) latency(ctx context.Context) error {
	took := make(chan time.Duration, 1)
	stop, err := b.work(ctx, "latency", 5, func(_ context.Context, job *rebase.Job) error {
		now := time.Now().UnixNano()
		sent, err := strconv.ParseInt(string(job.Payload), 10, 64)
		took <- time.Duration(now - sent)
		return err
	})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.CommandContext(ctx, program, "-enqueuer", "-url", b.url)
	other.Stderr = os.Stderr
	ask, err := other.StdinPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	var all []time.Duration
	for range b.jobs {
		time.Sleep(10*time.Millisecond + rand.N(10*time.Millisecond))
		if _, err := fmt.Fprintln(ask); err != nil {
			return err
		}
		select {
		case d := <-took:
			all = append(all, d)
		case <-time.After(time.Minute):
			return fmt.Errorf("a job did not begin within a minute")
		}
	}
	if err := ask.Close(); err != nil {
		return err
	}
	if err := other.Wait(); err != nil {
		return err
	}
	fmt.Printf("1   enqueue in another process → handler, idle worker, %d jobs: median %v, p99 %v\n", len(all), quantile(all, 0.5), quantile(all, 0.99))
	return stop()
}

// enqueueOnDemand is the other process: a job for each line of its input.
func (b *bench) enqueueOnDemand(ctx context.Context, _ []string) error {
	q, close, err := b.open(ctx, 1)
	if err != nil {
		return err
	}
	defer close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := q.Enqueue(ctx, "latency", time.Now().UnixNano(), nil); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (b *bench) lateness(ctx context.Context) error {
	late := make(chan time.Duration, b.delayed)
	stop, err := b.work(ctx, "delayed", 5, func(_ context.Context, job *rebase.Job) error {
		late <- time.Since(job.RunAt)
		return nil
	})
	if err != nil {
		return err
	}
	q, close, err := b.open(ctx, 1)
	if err != nil {
		return err
	}
	defer close()
	items := make([]rebase.Item, b.delayed)
	for i := range items {
		items[i] = rebase.Item{Task: "delayed", Options: &rebase.EnqueueOptions{
			Delay: time.Second + time.Duration(i)*100*time.Millisecond + rand.N(100*time.Millisecond),
		}}
	}
	if _, err := q.EnqueueMany(ctx, items); err != nil {
		return err
	}
	var all []time.Duration
	for range items {
		all = append(all, <-late)
	}
	fmt.Printf("6   delayed jobs, ten a second, idle worker, %d jobs: late by median %v, p99 %v\n", len(all), quantile(all, 0.5), quantile(all, 0.99))
	return stop()
}
