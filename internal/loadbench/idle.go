//go:build unix

// Many workers with nothing to do. What they cost is counted twice: by the server, in
// transactions of all kinds, and where pgx sends, in rounds of the workers. Then single jobs come,
// each when all are asleep again: how soon does one begin, and how many workers went to look for it?

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An idleResult is what part idle came to.
type idleResult struct {
	workers, connections int
	took                 time.Duration
	transactions         int64         // of the server
	rounds, looks, most  int64         // of the workers while idle; most is the looks of one of them
	machine              string        // processors that were busy
	cpu                  time.Duration // of the workers
	wakes                []time.Duration
	looked               []int // workers that looked for a job
	runs                 int64
}

func (r *idleResult) String() string {
	s := r.took.Seconds()
	return fmt.Sprintf("idle: %d processes, %d server connections, %.0f s: %.1f transactions/s of the server, %.1f rounds/s of the workers, %.2f looks/s, CPUs busy %s, the workers %s; "+
		"%d single jobs: enqueue → handler median %v, p90 %v, worst %v; workers that looked: median %d, most %d",
		r.workers, r.connections, s, float64(r.transactions)/s, float64(r.rounds)/s, float64(r.looks)/s, r.machine, processors(r.cpu, r.took),
		len(r.wakes), quantile(r.wakes, 0.5).Round(10*time.Microsecond), quantile(r.wakes, 0.9).Round(10*time.Microsecond),
		quantile(r.wakes, 1).Round(10*time.Microsecond), quantile(r.looked, 0.5), quantile(r.looked, 1))
}

func (b *bench) idle(ctx context.Context) (fmt.Stringer, error) { return b.idleRun(ctx) }

func (b *bench) idleRun(ctx context.Context) (*idleResult, error) {
	if err := b.execAll(ctx, "truncate rebase.jobs, rebase.claims, rebase.paused"); err != nil {
		return nil, err
	}
	f, err := b.fleet(ctx, b.idlers, workerConfig{Slots: 5, Count: true})
	if err != nil {
		return nil, err
	}
	defer f.close()
	if err := f.quiet(ctx, b.settle); err != nil {
		return nil, err
	}
	r := &idleResult{workers: b.idlers}
	if err := b.pool.QueryRow(ctx, connectionsSQL, workerName).Scan(&r.connections); err != nil {
		return nil, err
	}
	if err := f.watch(ctx, b.idleFor, r); err != nil {
		return nil, err
	}
	for i := range b.probes {
		if err := f.probe(ctx, r); err != nil {
			return nil, fmt.Errorf("probe %d: %w", i, err)
		}
	}
	last, err := f.end(ctx)
	if err != nil {
		return nil, err
	}
	if r.runs = total(last).Runs; r.runs != int64(b.probes) {
		return nil, fmt.Errorf("%d jobs, but handlers ran %d times", b.probes, r.runs)
	}
	return r, nil
}

// quiet waits until the workers look so seldom that all of them must be idle, and for as long as
// settle at least. An idle one looks every 30 s, so within a second a tenth of them is many; one
// that is awake, or not sure yet whether it may sleep, looks more than once.
func (f *fleet) quiet(ctx context.Context, settle time.Duration) error {
	began := time.Now()
	for seen := int64(-1); ; {
		all, err := f.reports(ctx)
		if err != nil {
			return err
		}
		looks := total(all).Looks
		if seen >= 0 && looks-seen <= int64(len(f.procs)/10) && time.Since(began) >= settle {
			return nil
		}
		seen = looks
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("waiting for the workers to be idle: %w", err)
		}
	}
}

// transactionsSQL: of this database so far, as far as its sessions have told.
const transactionsSQL = `select xact_commit + xact_rollback from pg_stat_database where datname = current_database()`

// watch counts what idle workers do.
func (f *fleet) watch(ctx context.Context, d time.Duration, r *idleResult) error {
	var from, to int64
	before, err := f.reports(ctx)
	if err != nil {
		return err
	}
	if err := f.bench.pool.QueryRow(ctx, transactionsSQL).Scan(&from); err != nil {
		return err
	}
	idle, err := f.bench.used(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, d); err != nil {
		return err
	}
	busy, err := f.bench.used(ctx)
	if err != nil {
		return err
	}
	r.took, r.machine = busy.at.Sub(idle.at), busy.since(idle)
	if err := f.bench.pool.QueryRow(ctx, transactionsSQL).Scan(&to); err != nil {
		return err
	}
	after, err := f.reports(ctx)
	if err != nil {
		return err
	}
	r.transactions = to - from
	r.rounds = total(after).Rounds - total(before).Rounds
	r.cpu = total(after).CPU - total(before).CPU
	r.looks = total(after).Looks - total(before).Looks
	for i := range after {
		r.most = max(r.most, after[i].Looks-before[i].Looks)
	}
	return nil
}

// probe enqueues a job and notes how soon it began and who looked for it. Those who find it gone
// come a few milliseconds later, hence the pause.
func (f *fleet) probe(ctx context.Context, r *idleResult) error {
	before, err := f.reports(ctx)
	if err != nil {
		return err
	}
	from := time.Now()
	if _, err := f.bench.q.Enqueue(ctx, taskProbe, nil, nil); err != nil {
		return err
	}
	select {
	case at := <-f.began:
		r.wakes = append(r.wakes, at.Sub(from))
	case <-time.After(time.Minute):
		return errors.Join(errors.New("it has not begun after a minute"), f.alive())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := pause(ctx, 150*time.Millisecond); err != nil {
		return err
	}
	if err := f.await(ctx, "all workers to be asleep again", asleepSQL, len(f.procs)); err != nil {
		return err
	}
	after, err := f.reports(ctx)
	if err != nil {
		return err
	}
	n := 0
	for i := range after {
		if after[i].Looks > before[i].Looks {
			n++
		}
	}
	r.looked = append(r.looked, n)
	return nil
}
