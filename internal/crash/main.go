//go:build unix

// Crash proves the queue's central promise with real processes: whatever is killed,
// frozen or restarted, work is delayed and never lost, and no two attempts of a job both
// record a result.
//
//	go run ./internal/crash -seeds 10 -jobs 20000 -kills 10 -workers 2
//
// The program starts a PostgreSQL of its own and workers as child processes (itself
// again, see worker.go), kills those at random, and compares what the queue's tables say
// with a record that the handlers and the enqueuers kept apart from them (record.go,
// check.go). It prints a line for each seed and exits with 1 if a promise was broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if isWorker() {
		os.Exit(workerMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

// command is the long run.
func command(ctx context.Context) error {
	var p Plan
	seeds := flag.Int("seeds", 10, "how many runs, each with a seed of its own")
	first := flag.Uint64("seed", 1, "the first seed")
	flag.IntVar(&p.Jobs, "jobs", 20_000, "jobs that are committed in a run")
	flag.IntVar(&p.Kills, "kills", 10, "SIGKILLs in a run")
	flag.IntVar(&p.Workers, "workers", 2, "worker processes")
	flag.IntVar(&p.Concurrency, "concurrency", 5, "slots of a worker")
	flag.IntVar(&p.MaxAttempts, "attempts", 3, "max attempts of a job")
	flag.DurationVar(&p.Visibility, "visibility", 3*time.Second, "visibility timeout")
	flag.DurationVar(&p.Longest, "longest", 100*time.Millisecond, "the longest of the few long jobs")
	flag.DurationVar(&p.Limit, "limit", 10*time.Minute, "time limit of a run")
	flag.Parse()
	broken := 0
	for i := range *seeds {
		report, err := p.Run(ctx, *first+uint64(i))
		if err != nil {
			return fmt.Errorf("seed %d: %w", *first+uint64(i), err)
		}
		fmt.Println(report)
		for _, v := range report.Shown() {
			fmt.Println("   ", v)
		}
		if len(report.Violations) > 0 {
			broken++
		}
	}
	if broken > 0 {
		return errors.New("promises were broken")
	}
	return nil
}
