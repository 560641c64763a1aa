//go:build unix

// Cronstorm proves with real processes that each slot of a schedule makes exactly one job,
// whatever is killed, frozen or restarted while it fires.
//
//	go run ./internal/cronstorm -seeds 5 -processes 20 -slots 200
//
// All processes (this program again, see worker.go) declare the same schedules. Rows are moved
// so that slots come due, the clock is not; processes are killed and frozen right then. In the
// end rebase.schedule_slots, rebase.jobs and what the handlers noted are compared (check.go).
// It prints a line for each run and exits with 1 if a slot had no job, or two.
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
		fmt.Fprintln(os.Stderr, "cronstorm:", err)
		os.Exit(1)
	}
}

// command runs both shapes for each seed.
func command(ctx context.Context) error {
	var p Plan
	seeds := flag.Int("seeds", 5, "how many runs of each shape, each with a seed of its own")
	first := flag.Uint64("seed", 1, "the first seed")
	flag.IntVar(&p.Processes, "processes", 20, "worker processes")
	flag.IntVar(&p.Schedules, "schedules", 10, "schedules that each of them declares")
	flag.IntVar(&p.Slots, "slots", 200, "one by one: slots of all schedules; catch-up: missed slots of each")
	flag.IntVar(&p.Kills, "kills", 40, "SIGKILLs in a run")
	flag.IntVar(&p.Freezes, "freezes", 20, "SIGSTOPs in a run, each for longer than a lease")
	flag.DurationVar(&p.Lease, "lease", 3*time.Second, "visibility timeout")
	flag.DurationVar(&p.Limit, "limit", 5*time.Minute, "time limit of a run")
	flag.Parse()
	if err := p.check(); err != nil {
		return err
	}
	broken := 0
	for i := range *seeds {
		for _, shape := range []Shape{OneByOne, CatchUp} {
			report, err := p.Run(ctx, shape, *first+uint64(i))
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", shape, *first+uint64(i), err)
			}
			fmt.Println(report)
			for _, v := range report.Shown() {
				fmt.Println("   ", v)
			}
			if len(report.Violations) > 0 {
				broken++
			}
		}
	}
	if broken > 0 {
		return errors.New("promises were broken")
	}
	return nil
}
