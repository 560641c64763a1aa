//go:build unix

// What sessions of other people do to the queue's tables: hold snapshots, rows and whole
// tables, vacuum, move schedules by hand. No lease may be lost by it, except those of the
// rows that were locked.

package main

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hold runs sql in a transaction that then stays open for d, and returns what it returned.
func (a *adversary) hold(ctx context.Context, level pgx.TxIsoLevel, sql string, d time.Duration) (ids []int64, err error) {
	tx, err := a.direct.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return nil, err
	}
	defer func() {
		undo, cancel := withoutEnd(ctx)
		defer cancel()
		_ = tx.Rollback(undo) // the server may have ended it
	}()
	if _, err := tx.Exec(ctx, "set local lock_timeout = '2s'"); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return nil, err
	}
	await(ctx, d)
	return ids, nil
}

func (a *adversary) snapshot(ctx context.Context, r *rand.Rand) (string, error) {
	_, err := a.hold(ctx, pgx.RepeatableRead, "select count(*) from rebase.jobs", between(r, 2*time.Second, 8*time.Second))
	return struck("tables", err)
}

// rowLocks holds jobs, pending and running, for less than a lease or for more. Their
// leases may run out: nobody can renew them, and nobody can take them.
func (a *adversary) rowLocks(ctx context.Context, r *rand.Rand) (string, error) {
	ids, err := a.hold(ctx, pgx.ReadCommitted, `
select id from rebase.jobs
where finished_at is null
order by random()
limit 20
for update skip locked`, between(r, 200*time.Millisecond, a.lease*3/2))
	if len(ids) == 0 {
		return "", err
	}
	var list strings.Builder
	for _, id := range ids {
		list.WriteString(strconv.FormatInt(id, 10) + " ")
	}
	return list.String(), err
}

// claimLocks holds the ledger.
func (a *adversary) claimLocks(ctx context.Context, r *rand.Rand) (string, error) {
	_, err := a.hold(ctx, pgx.ReadCommitted, "select token from rebase.claims for update skip locked", between(r, 200*time.Millisecond, a.lease*3/2))
	return struck("tables", err)
}

// tableLock stops everybody.
func (a *adversary) tableLock(ctx context.Context, r *rand.Rand) (string, error) {
	table := []string{"jobs", "claims", "workers"}[r.IntN(3)]
	return struck("server", a.lockTable(ctx, table, between(r, 200*time.Millisecond, a.lease*3/2)))
}

func (a *adversary) lockTable(ctx context.Context, table string, d time.Duration) error {
	return pgx.BeginFunc(ctx, a.direct, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local lock_timeout = '2s'"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "lock table rebase."+table+" in access exclusive mode"); err != nil {
			return err
		}
		await(ctx, d)
		return nil
	})
}

// fullPool takes all connections of the enqueuers' pool.
func (a *adversary) fullPool(ctx context.Context, r *rand.Rand) (string, error) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var taken []*pgxpool.Conn
	defer func() {
		for _, c := range taken {
			c.Release()
		}
	}()
	for range a.pool.Config().MaxConns {
		c, err := a.pool.Acquire(short)
		if err != nil {
			break
		}
		taken = append(taken, c)
	}
	await(ctx, between(r, 200*time.Millisecond, 2*time.Second))
	return "app", nil
}

func (a *adversary) vacuum(ctx context.Context, r *rand.Rand) (string, error) {
	table := []string{"jobs", "claims", "workers"}[r.IntN(3)]
	_, err := a.direct.Exec(ctx, "vacuum (analyze) rebase."+table)
	return struck("tables", err)
}

// rewind moves schedules back by hand, so that slots of the past fire, those that have
// fired already excepted.
func (a *adversary) rewind(ctx context.Context, r *rand.Rand) (string, error) {
	_, err := a.direct.Exec(ctx, `
update rebase.schedules
set next_slot = date_trunc('minute', now()) - $1 * interval '1 minute', next_run_at = date_trunc('minute', now()) - $1 * interval '1 minute'
where random() < 0.3`, 1+r.IntN(10))
	return struck("tables", err)
}
