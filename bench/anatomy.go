package main

// Where the time goes: of drains and of bulk inserts, what a job costs each statement, and what
// it leaves in the WAL, where every row version, row lock and index entry is a record of its own.
// These counts say why one queue is quicker than another, and don't depend on the machine.
//
// The server is always a private one: pg_stat_statements must be loaded at its start, and CPU
// times are read from /proc. It costs a little, so figures of speed are taken without it.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// anatomySettings come on top of serverSettings. Statements that functions run are part of what
// called them.
var anatomySettings = map[string]string{"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top"}

// anatomyJobs are enough: a count a job is the same with more, and reading the WAL takes long.
const anatomyJobs = 20_000

// A part is one thing whose anatomy is asked for.
type part struct {
	name    string
	jobs    int
	prepare func(ctx context.Context, t *trial, n int) error
	run     func(ctx context.Context, t *trial, n int) error
}

var parts = []part{
	{"drain", anatomyJobs, fillWith(0), drainPart},
	{"payload.10k", anatomyJobs / 4, fillWith(10 << 10), drainPart},
	{"insert", anatomyJobs, emptied(false), insertPart(false)},
	{"insert.keys", anatomyJobs, emptied(true), insertPart(true)},
}

func fillWith(bytes int) func(context.Context, *trial, int) error {
	return func(ctx context.Context, t *trial, n int) error { return t.db.prepare(ctx, n, bytes) }
}

func drainPart(ctx context.Context, t *trial, n int) error {
	_, err := t.db.drain(ctx, n, t.slots(), nil)
	return err
}

// emptied inserts once, unmeasured, as the scenario does.
func emptied(keys bool) func(context.Context, *trial, int) error {
	return func(ctx context.Context, t *trial, n int) error {
		if err := t.db.empty(ctx); err != nil {
			return err
		}
		if err := t.db.insert(ctx, batch{n: perCall, keys: keys}); err != nil {
			return err
		}
		return t.db.settle(ctx)
	}
}

func insertPart(keys bool) func(context.Context, *trial, int) error {
	return func(ctx context.Context, t *trial, n int) error {
		for ; n > 0; n -= perCall {
			if err := t.db.insert(ctx, batch{n: min(n, perCall), keys: keys}); err != nil {
				return err
			}
		}
		return nil
	}
}

// A dissection is what one part cost one system.
type dissection struct {
	system         string
	jobs           int
	took           time.Duration
	client, server time.Duration // CPU time
	statements     []statementCost
	records        []recordCost
}

// anatomy prints the tables of each part, with all systems beside each other.
func anatomy(ctx context.Context, b *bench) error {
	found := map[string][]*dissection{}
	for _, s := range slices.Concat(bulkQueues, []*system{bareSystem, bareDeleteSystem}) {
		if !slices.Contains(b.cfg.systems, s.name) {
			continue
		}
		t := &trial{bench: b, system: s, round: 1, scenario: &scenario{name: "anatomy", warm: true}}
		if err := t.dissectAll(ctx, found); err != nil {
			t.fail(err)
		}
		t.Close()
	}
	for _, p := range parts {
		if all := found[p.name]; all != nil {
			writeAnatomy(b.out, p.name, all)
		}
	}
	if b.failures > 0 {
		return fmt.Errorf("%d systems failed", b.failures)
	}
	return ctx.Err()
}

func (t *trial) dissectAll(ctx context.Context, found map[string][]*dissection) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	if _, err := t.db.admin.Exec(ctx, "create extension pg_stat_statements; create extension pg_walinspect"); err != nil {
		return fmt.Errorf("%w: it takes PostgreSQL 15 with its contrib modules: %w", errUnsupported, err)
	}
	for _, p := range parts {
		t.scenario = &scenario{name: "anatomy-" + p.name} // profiles are called by it
		d, err := t.dissect(ctx, p)
		switch {
		case errors.Is(err, errUnsupported):
			fmt.Fprintf(t.out, "SKIPPED scenario=%s system=%s: %v\n", t.scenario.name, t.system.name, err)
		case err != nil:
			return err
		default:
			found[p.name] = append(found[p.name], d)
		}
	}
	return nil
}

func (t *trial) dissect(ctx context.Context, p part) (*dissection, error) {
	d := &dissection{system: t.system.name, jobs: t.scaled(p.jobs)}
	if err := p.prepare(ctx, t, d.jobs); err != nil {
		return nil, err
	}
	from, err := t.db.position(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := t.db.admin.Exec(ctx, "select pg_stat_statements_reset()"); err != nil {
		return nil, err
	}
	if err := t.timed(d, func() error { return p.run(ctx, t, d.jobs) }); err != nil {
		return nil, err
	}
	if d.statements, err = t.db.statementCosts(ctx); err != nil {
		return nil, err
	}
	d.records, err = t.db.recordCosts(ctx, from)
	return d, err
}

// timed notes the times that f takes.
func (t *trial) timed(d *dissection, f func() error) error {
	client, server, err := t.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := t.profiled(f); err != nil {
		return err
	}
	d.took = time.Since(start)
	d.client, d.server, err = t.cpu()
	d.client, d.server = d.client-client, d.server-server
	return err
}

// cpu is what the client and the server have used; the backend that only asks whether a drain
// has ended is left out.
func (t *trial) cpu() (client, server time.Duration, err error) {
	pid, backend := os.Getpid(), int(t.db.admin.PgConn().PID())
	if n, ok := t.db.client.(*nodeClient); ok {
		pid = n.cmd.Process.Pid
	}
	client, err = processTime(pid)
	all, err2 := serverTime(backend)
	asking, err3 := processTime(backend)
	return client, all - asking, errors.Join(err, err2, err3)
}
