//go:build unix

// A run. Both shapes make slots due by moving next_run_at back and telling all processes at
// once, so that all of them look and fire together, and hurt some of them in the milliseconds
// after that.
//
// One by one: the row of one schedule is moved back by one more minute each time. What is then
// due is one slot that never fired and all that did, which must make nothing again. Catch-up: a
// schedule is moved back by all its slots at once, as after a downtime; one statement makes their
// jobs.

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

// A Shape is how slots come due.
type Shape string

const (
	OneByOne Shape = "one by one"
	CatchUp  Shape = "catch-up"
)

// A Plan says how large a run is.
type Plan struct {
	Processes, Schedules, Slots int
	Kills, Freezes              int
	Lease, Limit                time.Duration
}

func (p Plan) check() error {
	switch {
	case p.Processes < 3:
		return fmt.Errorf("-processes %d: at least 3, or the storm leaves nobody to fire", p.Processes)
	case p.Schedules < 1:
		return fmt.Errorf("-schedules %d: at least 1", p.Schedules)
	case p.Slots < p.Schedules || p.Slots > 10_000:
		return fmt.Errorf("-slots %d: from the number of schedules (%d) to 10000", p.Slots, p.Schedules)
	}
	return nil
}

// each is how many slots a schedule gets.
func (p Plan) each(s Shape) int {
	if s == CatchUp {
		return p.Slots
	}
	return p.Slots / p.Schedules
}

// A step makes one schedule due from the slot that is so many minutes back.
type step struct{ schedule, back int }

// steps are in random order over the schedules; each schedule's go back minute by minute.
func (p Plan) steps(s Shape, r *rand.Rand) (all []step) {
	for k := range p.each(s) {
		for _, i := range r.Perm(p.Schedules) {
			if s == OneByOne || k == 0 {
				all = append(all, step{i, k})
			}
		}
	}
	if s == CatchUp {
		for i := range all {
			all[i].back = p.Slots - 1
		}
	}
	return all
}

// Run runs one seed of one shape on a server of its own.
func (p Plan) Run(ctx context.Context, shape Shape, seed uint64) (_ *Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "rebase-cronstorm-")
	if err != nil {
		return nil, err
	}
	server, err := pgserver.Start(ctx, pgserver.Config{Settings: map[string]string{"max_connections": "500"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	pool, err := newPool(ctx, server.URL("postgres"), "harness", 10)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := rebase.New(pool, nil).Migrate(ctx); err != nil {
		return nil, err
	}
	report, err := p.On(ctx, pool, server.URL("postgres"), dir, shape, seed)
	if err != nil || len(report.Violations) > 0 {
		fmt.Fprintln(os.Stderr, "the workers' logs are in", dir)
	} else if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	return report, err
}

// On runs on a database that has the queue's tables and no schedules.
func (p Plan) On(ctx context.Context, pool *pgxpool.Pool, url, dir string, shape Shape, seed uint64) (*Report, error) {
	begun := time.Now()
	if _, err := pool.Exec(ctx, recordSchemaSQL); err != nil {
		return nil, fmt.Errorf("the record's tables: %w", err)
	}
	fleet := newFleet(dir, workerConfig{URL: url, Schedules: p.Schedules, Lease: p.Lease})
	defer fleet.close()
	for range p.Processes {
		if err := fleet.start(); err != nil {
			return nil, err
		}
	}
	ready := "select (select count(*) from rebase.workers) = $1 and (select count(*) from rebase.schedules) = $2"
	if err := await(ctx, pool, "all processes", ready, p.Processes, p.Schedules); err != nil {
		return nil, err
	}
	var base time.Time
	if err := pool.QueryRow(ctx, "select date_trunc('minute', now())").Scan(&base); err != nil {
		return nil, err
	}
	harm := &harm{fleet: fleet, plan: p, rand: rand.New(rand.NewPCG(seed, 0))}
	steps := p.steps(shape, harm.rand)
	if err := p.walk(ctx, pool, harm, base, steps); err != nil {
		return nil, err
	}
	if err := harm.over(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, pauseSQL); err != nil {
		return nil, err
	}
	if err := await(ctx, pool, "the last job", "select not exists (select from rebase.jobs where finished_at is null)"); err != nil {
		return nil, err
	}
	if err := fleet.end(ctx); err != nil {
		return nil, err
	}
	report, err := check(ctx, pool, base, p.Schedules, p.each(shape))
	if err != nil {
		return nil, err
	}
	report.Shape, report.Seed, report.Steps, report.Kills, report.Freezes = shape, seed, len(steps), harm.kills, harm.freezes
	report.Took = time.Since(begun)
	return report, nil
}

const (
	// moveSQL is what a person does who wants a slot again; see docs/schedules.md.
	moveSQL = `
update rebase.schedules set next_slot = $2, next_run_at = $2::timestamptz + run_offset
where id = $1`

	// tellSQL makes every process look at once.
	tellSQL = `select pg_notify('rebase_jobs', 's:')`

	// pauseSQL is the end: a minute that passes from here on fires nothing.
	pauseSQL = `update rebase.schedules set paused = true`

	firedSQL = `select exists (select from rebase.schedule_slots where schedule_id = $1 and slot = $2)`
)

// walk makes slots due, with harm in between, and waits for each slot before the next.
func (p Plan) walk(ctx context.Context, pool *pgxpool.Pool, harm *harm, base time.Time, steps []step) error {
	kills, freezes := spread(harm.rand, p.Kills, len(steps)), spread(harm.rand, p.Freezes, len(steps))
	for i, s := range steps {
		id, slot := scheduleID(s.schedule), base.Add(-time.Duration(s.back)*time.Minute)
		if _, err := pool.Exec(ctx, moveSQL, id, slot); err != nil {
			return err
		}
		// Who was frozen in the middle of a firing now goes on with it, on a row that has moved.
		if err := harm.thaw(time.Now()); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, tellSQL); err != nil {
			return err
		}
		if err := harm.strike(ctx, kills[i], freezes[i]); err != nil {
			return err
		}
		if err := await(ctx, pool, fmt.Sprintf("slot %v of %s", slot, id), firedSQL, id, slot); err != nil {
			return err
		}
	}
	return nil
}

// spread deals n strokes out over the steps.
func spread(r *rand.Rand, n, steps int) []int {
	all := make([]int, steps)
	for range n {
		all[r.IntN(steps)]++
	}
	return all
}

// harm is what is done to the fleet. It belongs to one goroutine.
type harm struct {
	fleet          *fleet
	plan           Plan
	rand           *rand.Rand
	frozen         []frost
	kills, freezes int
}

// A frost is a process that stands still until it is thawed.
type frost struct {
	p     *proc
	until time.Time
}

// strike hurts processes within a few milliseconds of what all of them have just been told.
func (h *harm) strike(ctx context.Context, kills, freezes int) error {
	strokes := slices.Concat(slices.Repeat([]func(*proc) error{h.kill}, kills), slices.Repeat([]func(*proc) error{h.freeze}, freezes))
	h.rand.Shuffle(len(strokes), func(i, j int) { strokes[i], strokes[j] = strokes[j], strokes[i] })
	for _, stroke := range strokes {
		if err := pause(ctx, time.Duration(h.rand.IntN(15_000))*time.Microsecond); err != nil {
			return err
		}
		victim, err := h.victim(ctx)
		if err != nil {
			return err
		}
		if err := stroke(victim); err != nil {
			return err
		}
	}
	return nil
}

// victim is a process that runs. A third of them, and one in any case, is left to fire: until
// there are more, it waits for those that are to be thawed.
func (h *harm) victim(ctx context.Context) (*proc, error) {
	for {
		if err := h.thaw(time.Now()); err != nil {
			return nil, err
		}
		if free := h.free(); len(free) > max(h.plan.Processes/3, 1) {
			return free[h.rand.IntN(len(free))], nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// kill has the process replaced, as a supervisor would.
func (h *harm) kill(victim *proc) error {
	h.kills++
	if err := victim.kill(); err != nil {
		return err
	}
	return h.fleet.start()
}

// freeze stops the process for longer than its lease.
func (h *harm) freeze(victim *proc) error {
	h.freezes++
	length := h.plan.Lease + h.plan.Lease/10 + time.Duration(h.rand.Int64N(int64(h.plan.Lease)))
	h.frozen = append(h.frozen, frost{victim, time.Now().Add(length)})
	return victim.freeze()
}

// free are the processes that run.
func (h *harm) free() []*proc {
	return slices.DeleteFunc(h.fleet.living(), func(p *proc) bool {
		return slices.ContainsFunc(h.frozen, func(f frost) bool { return f.p == p })
	})
}

// thaw lets those go on whose time has come.
func (h *harm) thaw(now time.Time) error {
	var errs []error
	h.frozen = slices.DeleteFunc(h.frozen, func(f frost) bool {
		if now.Before(f.until) {
			return false
		}
		errs = append(errs, f.p.thaw())
		return true
	})
	return errors.Join(errs...)
}

// over waits until the last process goes on. Those that were frozen in the middle of a firing
// then finish it, long after the others did.
func (h *harm) over(ctx context.Context) error {
	for len(h.frozen) > 0 {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		if err := h.thaw(time.Now()); err != nil {
			return err
		}
	}
	return nil
}
