//go:build unix

// Torture tries to break the queue: real worker processes, a server of its own, and an
// adversary that kills, freezes, cuts, stalls, locks and restarts at random, while
// enqueuers and operators use everything that the library has. What became of each job is
// then held against a record that the library has no hand in.
//
//	go run ./internal/torture -seed 7 -duration 2m -workers 4
//	go run ./internal/torture -seeds 20 -duration 90s
//	go run ./internal/torture -failover -seed 7 -duration 60s
//	go run ./internal/torture -proof
//
// It prints a line for each seed and a table at the end, for each broken promise the whole
// story of the job, and exits with 1 if there was one.
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
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	var p plan
	seeds := flag.Int("seeds", 1, "how many runs, each with a seed of its own")
	first := flag.Uint64("seed", 1, "the first seed")
	proof := flag.Bool("proof", false, "plant faults, one at a time, and see whether each is found")
	proofs := flag.String("proofs", "", "the faults that -proof plants, with commas between; if empty, all")
	flag.DurationVar(&p.Duration, "duration", 90*time.Second, "time of a run, without its last drain")
	flag.IntVar(&p.Workers, "workers", 4, "worker processes")
	flag.IntVar(&p.Concurrency, "concurrency", 6, "slots of a worker")
	flag.DurationVar(&p.Visibility, "visibility", 3*time.Second, "visibility timeout")
	flag.IntVar(&p.Rate, "rate", 100, "jobs a second")
	flag.StringVar(&p.Binaries, "pg", "", "directory of PostgreSQL's binaries; if empty, they are looked for")
	flag.BoolVar(&p.PgBouncer, "pgbouncer", false, "put PgBouncer in between")
	flag.BoolVar(&p.Failover, "failover", false, "kill the primary in the middle, for good, and promote an asynchronous standby")
	flag.StringVar(&p.Plant, "plant", "", "plant a fault in the schema: notify or key")
	flag.StringVar(&p.Only, "only", "", "the adversary's faults, with commas between; if empty, all")
	flag.BoolVar(&p.Keep, "keep", false, "keep the record of a run that went well, too")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("argument %q: want flags only", flag.Arg(0))
	}
	if *proof {
		return prove(ctx, p, *proofs)
	}
	sum := &summary{}
	for i := range *seeds {
		seed := *first + uint64(i)
		report, err := p.run(ctx, seed)
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		fmt.Println(report)
		sum.add(report)
	}
	fmt.Print(sum)
	if sum.broken > 0 {
		return errors.New("promises were broken")
	}
	return nil
}
