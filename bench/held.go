package main

// A snapshot is held: some transaction, a backup perhaps, stays open while the queue works.
// Until it ends no dead row version may be removed, and whoever reads over them again and
// again slows down. The clean rate is measured in the same round, first or second in turns.

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const heldJobs = 200_000

var held = &scenario{
	name:    "held",
	about:   "200,000 no-op jobs while a snapshot is held; .clean without, .share of it, .decay: last fifth over the second",
	asks:    "Does an old snapshot, a backup perhaps, slow the queue down?",
	systems: append([]*system{ceilingSystem, nofloorsSystem}, bulkQueues...),
	warm:    true,
	run: func(ctx context.Context, t *trial) error {
		n := t.scaled(heldJobs)
		var clean, with *drained
		steps := []func() error{
			func() (err error) { clean, err = t.cleanDrain(ctx, n); return err },
			func() (err error) { with, err = t.heldDrain(ctx, n); return err },
		}
		for i := range steps {
			if err := steps[(i+t.round)%2](); err != nil {
				return err
			}
		}
		t.measured("", with.rate(n), "jobs/s", with.curve(n)...)
		t.measured("clean", clean.rate(n), "jobs/s", clean.curve(n)...)
		t.measured("share", with.rate(n)/clean.rate(n), "×")
		t.measured("decay", with.decay(), "×")
		return nil
	},
}

func (t *trial) cleanDrain(ctx context.Context, n int) (*drained, error) {
	if err := t.db.prepare(ctx, n, 0); err != nil {
		return nil, err
	}
	return t.db.drain(ctx, n, t.slots(), nil)
}

func (t *trial) heldDrain(ctx context.Context, n int) (*drained, error) {
	if err := t.db.prepare(ctx, n, 0); err != nil {
		return nil, err
	}
	holder, err := pgx.Connect(ctx, t.db.url)
	if err != nil {
		return nil, err
	}
	defer holder.Close(context.Background())
	tx, err := holder.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "select count(*) from pg_class"); err != nil { // takes the snapshot
		return nil, err
	}
	return t.db.drain(ctx, n, t.slots(), nil)
}
