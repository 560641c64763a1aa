//go:build unix

// The long run: a drain during which processes are killed at random. Kills are spread
// over the work, not over time, so that each hits processes that are busy, however fast
// the machine is. A killed process is replaced at once, as a supervisor would.

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// A Plan says how large a run is.
type Plan struct {
	Jobs, Kills, Workers     int
	Concurrency, MaxAttempts int
	Visibility, Limit        time.Duration
	Longest                  time.Duration // of the few long jobs
}

// Run runs one seed on a server of its own.
func (p Plan) Run(ctx context.Context, seed uint64) (_ *Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	begun := time.Now()
	dir, err := os.MkdirTemp("", "rebase-crash-")
	if err != nil {
		return nil, err
	}
	server, err := pgserver.Start(ctx, pgserver.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	report, err := p.on(ctx, server.URL("postgres"), dir, seed)
	if err != nil || len(report.Violations) > 0 {
		fmt.Fprintln(os.Stderr, "the workers' logs are in", dir)
	} else if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if report != nil {
		report.Seed, report.Took = seed, time.Since(begun)
	}
	return report, err
}

// on runs on an empty database.
func (p Plan) on(ctx context.Context, url, dir string, seed uint64) (*Report, error) {
	pool, err := newPool(ctx, url, "harness", 12)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return nil, err
	}
	fleet := NewFleet(pool, dir, WorkerConfig{URL: url, Concurrency: p.Concurrency, Visibility: p.Visibility})
	defer fleet.Close()
	if _, err := fleet.StartAll(ctx, p.Workers); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 0))
	made := make(chan error, 1)
	var producing sync.WaitGroup
	defer producing.Wait()
	producing.Go(func() { made <- p.produce(ctx, NewProducer(pool, p.MaxAttempts), seed) })
	if err := p.kill(ctx, fleet, r); err != nil {
		return nil, err
	}
	if err := <-made; err != nil {
		return nil, err
	}
	if err := fleet.Drain(ctx); err != nil {
		return nil, err
	}
	return Check(ctx, pool, Expect{})
}

// produce commits jobs from four goroutines, in transactions of 1 to 50.
func (p Plan) produce(ctx context.Context, maker *Producer, seed uint64) error {
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)+1))
			for left := p.Jobs*(i+1)/4 - p.Jobs*i/4; left > 0 && errs[i] == nil; {
				batch := make([]Payload, min(1+r.IntN(50), left))
				for k := range batch {
					batch[k] = p.mixed(r)
				}
				_, errs[i] = maker.Make(ctx, r, batch...)
				left -= len(batch)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// mixed draws a payload: mostly short, some long, some that complete in a transaction of
// their own; some that fail once, if they have more than one attempt. The long ones bound
// what may be asked: nothing can tell a job that happens to run at three kills from one that
// does the killing, and a job of half a second happens to do so in one run of thirty.
func (p Plan) mixed(r *rand.Rand) Payload {
	job := Payload{For: upTo(r, 4*time.Millisecond)}
	switch n := r.IntN(200); {
	case n < 20:
		job.Does, job.For = doesComplete, job.For/4
	case n < 24:
		job.For = upTo(r, p.Longest)
	case n < 28:
		job.Does = doesQuery
	case n < 30 && p.MaxAttempts > 1:
		job.Does = doesFail
	}
	return job
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// kill kills a random process each time that a random share of the work is done.
func (p Plan) kill(ctx context.Context, fleet *Fleet, r *rand.Rand) error {
	marks := make([]int, p.Kills)
	for i := range marks {
		marks[i] = r.IntN(p.Jobs * 9 / 10)
	}
	slices.Sort(marks)
	for _, mark := range marks {
		err := fleet.Await(ctx, "the next kill", "select count(*) >= $1 from rebase.jobs where finished_at is not null", mark)
		if err != nil {
			return err
		}
		living := fleet.Living()
		if len(living) < p.Workers {
			return fmt.Errorf("%d workers are left of %d: one ended by itself", len(living), p.Workers)
		}
		if err := living[r.IntN(len(living))].Kill(); err != nil {
			return err
		}
		if _, err := fleet.Start(); err != nil {
			return err
		}
	}
	return nil
}
