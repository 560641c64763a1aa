package main

// Part 3: is a wake-up ever lost? A worker with one slot gives its locks up for each job
// and falls asleep anew; a transaction enqueues and commits at random moments around
// that. A lost wake-up shows as a job that begins 30 s after its commit. Part 4: what an
// idle worker sends, counted where pgx writes to its sockets.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// racers is how many workers, each with a task of its own, race at once.
const racers = 8

func (b *bench) races(ctx context.Context) error {
	lates, errs := make([][]time.Duration, racers), make([]error, racers)
	var all sync.WaitGroup
	for i := range racers {
		all.Go(func() { lates[i], errs[i] = b.race(ctx, "race-"+strconv.Itoa(i), (b.rounds+racers-1)/racers) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	late := slices.Concat(lates...)
	lost := 0
	for _, d := range late {
		if d > 2*time.Second {
			lost++
		}
	}
	fmt.Printf("3   %d rounds of random sleep and wake, %d at once: %d later than the transaction + 2 s; commit → handler median %v, p99 %v, longest %v\n",
		len(late), racers, lost, quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1))
	return nil
}

// race returns how long each job waited after its commit, less the time that its
// transaction had taken if that is longer.
func (b *bench) race(ctx context.Context, task string, rounds int) (late []time.Duration, err error) {
	began := make(chan time.Time, 1)
	stop, err := b.work(ctx, task, 1, func(context.Context, *rebase.Job) error {
		began <- time.Now()
		return nil
	})
	if err != nil {
		return nil, err
	}
	pool, q, close, err := b.openPool(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer close()
	for range rounds {
		if _, err := q.Enqueue(ctx, task, nil, nil); err != nil {
			return nil, err
		}
		<-began
		time.Sleep(rand.N(8 * time.Millisecond))
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := q.EnqueueTx(ctx, tx, task, nil, nil)
			time.Sleep(rand.N(40 * time.Millisecond))
			return err
		})
		if err != nil {
			return nil, err
		}
		committed := time.Now()
		late = append(late, max((<-began).Sub(committed), 0))
	}
	return late, stop()
}

// A meter counts what is written to a connection: pgx sends a round trip with one write.
type meter struct {
	net.Conn
	writes *atomic.Int64
}

func (m meter) Write(b []byte) (int, error) {
	m.writes.Add(1)
	return m.Conn.Write(b)
}

func (b *bench) idleness(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		return err
	}
	var writes atomic.Int64
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return meter{conn, &writes}, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	w := rebase.NewWorker(rebase.New(pool, &rebase.Options{Logger: quiet}), nil)
	w.Register("idle", func(context.Context, *rebase.Job) error { return nil }, nil)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	time.Sleep(b.settle)
	before := writes.Load()
	time.Sleep(b.idle)
	n := writes.Load() - before
	fmt.Printf("4   idle worker, after %v, for %v: %.1f round trips a minute, on all its connections\n", b.settle, b.idle, float64(n)/b.idle.Minutes())
	cancel()
	return <-done
}
