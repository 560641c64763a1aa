//go:build unix

// What is done to the server as a whole. It strikes all processes alike, so the promise is
// stronger than for one that is cut off: nobody may lose a lease by it (J9, J11).

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

func (a *adversary) restartFast(ctx context.Context, r *rand.Rand) (string, error) {
	return a.down(ctx, "fast", 0)
}

func (a *adversary) restartImmediate(ctx context.Context, r *rand.Rand) (string, error) {
	return a.down(ctx, "immediate", 0)
}

// outage is longer than all leases.
func (a *adversary) outage(ctx context.Context, r *rand.Rand) (string, error) {
	return a.down(ctx, []string{"fast", "immediate"}[r.IntN(2)], between(r, a.lease, 2*a.lease))
}

// down stops the server and starts it again after d.
func (a *adversary) down(ctx context.Context, mode string, d time.Duration) (string, error) {
	if !a.restarting.TryLock() {
		return "", nil
	}
	defer a.restarting.Unlock()
	if err := a.server.Stop(mode); err != nil {
		return "", err
	}
	await(ctx, d)
	return "server", a.server.Restart(mode) // it is down: this starts it
}

// workersSQL matches the sessions of workers and enqueuers.
const workersSQL = `datname = current_database() and (application_name ~ '^p[0-9]+$' or application_name = 'app')`

func (a *adversary) terminate(ctx context.Context, r *rand.Rand) (string, error) {
	_, err := a.direct.Exec(ctx, `
select pg_terminate_backend(pid) from pg_stat_activity
where `+workersSQL+` and random() < $1`, []float64{0.1, 0.5, 1}[r.IntN(3)])
	return struck("server", err)
}

// struck is the victim if there was no error.
func struck(victim string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return victim, nil
}

// readOnly makes every new session read-only, as one on a standby is, and ends the old.
func (a *adversary) readOnly(ctx context.Context, r *rand.Rand) (string, error) {
	const end = `select pg_terminate_backend(pid) from pg_stat_activity where ` + workersSQL
	if _, err := a.direct.Exec(ctx, "alter database postgres set default_transaction_read_only = on"); err != nil {
		return "", err
	}
	_, err := a.direct.Exec(ctx, end)
	await(ctx, between(r, time.Second, 4*time.Second))
	undo, cancel := withoutEnd(ctx)
	defer cancel()
	return "server", errors.Join(err, a.insist(undo, "alter database postgres reset default_transaction_read_only", end))
}

// insist runs statements until they have gone through: the server may be away just now.
func (a *adversary) insist(ctx context.Context, statements ...string) (err error) {
	for _, sql := range statements {
		for {
			if _, err = a.direct.Exec(ctx, sql); err == nil {
				break
			}
			if pause(ctx, 50*time.Millisecond) != nil {
				return err
			}
		}
	}
	return nil
}

// connections takes all that the server has, and ends half of the workers' sessions so
// that they need new ones.
func (a *adversary) connections(ctx context.Context, r *rand.Rand) (string, error) {
	config := a.direct.Config().ConnConfig.Copy()
	config.RuntimeParams["application_name"] = "hog"
	var hogs []*pgx.Conn
	defer func() {
		undo, cancel := withoutEnd(ctx)
		defer cancel()
		for _, c := range hogs {
			_ = c.Close(undo) // it may be closed already
		}
	}()
	for range 200 {
		c, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			break // there are no more
		}
		hogs = append(hogs, c)
	}
	if len(hogs) == 0 {
		return "", nil
	}
	// Over one of the hogs: the pool may not get another.
	_, err := hogs[0].Exec(ctx, `
select pg_terminate_backend(pid) from pg_stat_activity
where `+workersSQL+` and random() < 0.5`)
	await(ctx, between(r, 500*time.Millisecond, 2*time.Second))
	return "server", err
}
