package main

// What doing nothing costs: 50 workers in one process that have no job. Here every system has
// the polling of its defaults, because the settings that make it quick would make it poll, and
// three connections a worker. Half a minute is one round of the slowest of their looks.
//
// The server counts transactions; a backend tells its own at the latest ten seconds after them,
// so what is missing at the end was in excess at the beginning.

import (
	"context"
	"errors"
	"time"
)

const (
	idleWorkers = 50
	idleSlots   = 5
	idleSettle  = 12 * time.Second
	idleFor     = 30 * time.Second
)

var idle = &scenario{
	name:    "idle",
	about:   "50 idle workers in one process for 30 s: transactions a second at the server; .client, .server: CPU time in 30 s",
	asks:    "What do workers cost that have nothing to do?",
	systems: bulkQueues,
	run: func(ctx context.Context, t *trial) (err error) {
		if err := t.db.empty(ctx); err != nil {
			return err
		}
		if err := t.db.settle(ctx); err != nil {
			return err
		}
		c, err := t.system.startChild(ctx, t.db.url)
		if err != nil {
			return err
		}
		defer c.close()
		if err := c.work(ctx, worker{slots: idleSlots, workers: idleWorkers, idle: true}, func(int64) {}); err != nil {
			return err
		}
		defer func() {
			_, stopErr := c.stop()
			err = errors.Join(err, stopErr)
		}()
		return t.watchIdle(ctx, c)
	},
}

// An expense is what has been spent until a moment.
type expense struct {
	at             time.Time
	transactions   float64
	client, server time.Duration
}

func (t *trial) watchIdle(ctx context.Context, c *child) error {
	part := min(t.scale(), 1)
	if err := pause(ctx, max(time.Duration(float64(idleSettle)*part), time.Second)); err != nil {
		return err
	}
	before, err := t.expense(ctx, c)
	if err != nil {
		return err
	}
	if err := pause(ctx, max(time.Duration(float64(idleFor)*part), 2*time.Second)); err != nil {
		return err
	}
	after, err := t.expense(ctx, c)
	if err != nil {
		return err
	}
	took := after.at.Sub(before.at).Seconds()
	share := idleFor.Seconds() / took
	t.measured("", (after.transactions-before.transactions)/took, "tx/s")
	t.measured("client", (after.client-before.client).Seconds()*share, "CPU_s")
	t.measured("server", (after.server-before.server).Seconds()*share, "CPU_s")
	return nil
}

func (t *trial) expense(ctx context.Context, c *child) (e expense, err error) {
	var backend int
	e.at = time.Now()
	err = t.admin.QueryRow(ctx, `
select pg_backend_pid(), (xact_commit + xact_rollback)::float8
from pg_stat_database
where datname = $1`, t.db.admin.Config().Database).Scan(&backend, &e.transactions)
	if err != nil {
		return e, err
	}
	if e.client, err = processTime(c.cmd.Process.Pid); err != nil {
		return e, err
	}
	e.server, err = serverTime(backend)
	return e, err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
