package cli

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rebasejobs/rebase"
)

// The connection, and the bounds on what is done with it. Each statement has --timeout;
// when that or an interrupt ends it, pgx tells the server to stop, too, and closing the pool
// waits for that, so that nothing goes on behind a command that has ended.

type db struct {
	pool    *pgxpool.Pool
	q       *rebase.Queue
	timeout time.Duration
}

// open does no I/O.
func (a *app) open() (*db, error) {
	url := cmp.Or(a.url, a.Env("DATABASE_URL"))
	if url == "" {
		return nil, &usageError{"--database-url", "", "set it, or the environment variable DATABASE_URL"}
	}
	if a.timeout <= 0 {
		return nil, &usageError{"--timeout", a.timeout.String(), "must be above zero"}
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx's error quotes the address, and can't always tell where a password is in it.
		return nil, &usageError{"--database-url", "(not shown)", "no address of PostgreSQL: want postgres://user@host:5432/database, or key=value pairs"}
	}
	config.MaxConns = 2
	if params := config.ConnConfig.RuntimeParams; params["application_name"] == "" {
		params["application_name"] = "rebase"
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return &db{pool, rebase.New(pool, &rebase.Options{Logger: log}), a.timeout}, nil
}

// limit is the context of one statement.
func (d *db) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d.timeout, errTooLong)
}

// patient is the context of a listing: it ends when there was no touch for the timeout.
func (d *db) patient(ctx context.Context) (_ context.Context, touch func(), cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d.timeout, func() { end(errTooLong) })
	return ctx, func() { timer.Reset(d.timeout) }, func() { timer.Stop(); end(nil) }
}

// each visits the jobs of a filter.
func (d *db) each(ctx context.Context, f rebase.Filter, visit func(*rebase.Job) error) error {
	return visitAll(ctx, d, func(ctx context.Context) iter.Seq2[*rebase.Job, error] { return d.q.Jobs(ctx, f) }, visit)
}

// visitAll goes through a listing.
func visitAll[T any](ctx context.Context, d *db, list func(context.Context) iter.Seq2[T, error], visit func(T) error) error {
	ctx, touch, cancel := d.patient(ctx)
	defer cancel()
	for x, err := range list(ctx) {
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		touch()
		if err := visit(x); err != nil {
			return err
		}
	}
	return nil
}

// settingsSQL makes a transaction independent of the role's settings, and lets the planner
// see the parameters, which the partial indexes need.
const settingsSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('client_encoding', 'UTF8', true),
  pg_catalog.set_config('jit', 'off', true), pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true), pg_catalog.set_config('lock_timeout', '2s', true),
  pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('statement_timeout', $1, true)`

// in runs f in a transaction of its own, for what rebase.Queue doesn't offer.
func (d *db) in(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, settingsSQL, milliseconds(d.timeout)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// ask runs one query and returns its one row.
func ask[T any](ctx context.Context, d *db, scan pgx.RowToFunc[T], sql string, args ...any) (v T, err error) {
	err = d.in(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sql, args...) // CollectExactlyOneRow tells the error
		v, err = pgx.CollectExactlyOneRow(rows, scan)
		return err
	})
	return v, err
}

// now is the database's clock: ages are told by it, since hosts may be hours off.
func (d *db) now(ctx context.Context) (time.Time, error) {
	return ask(ctx, d, pgx.RowTo[time.Time], `select now()`)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }
