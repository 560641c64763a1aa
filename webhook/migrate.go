package webhook

// PGStore's schema. It has versions of its own, since a service without a PGStore has no
// such table. All of a Migrate is one transaction under an advisory lock, so any number of
// processes may call it at once.

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed migrations/0001_endpoints.sql
var endpoints1 string

// migrations are in order; the number of each is its place, from 1.
var migrations = []string{endpoints1}

// migrateLock is the advisory lock of the queue's own migrations, the ASCII bytes of "rebase":
// both may have to make the schema, and must not do so at once.
const migrateLock = 0x726562617365

// Migrate makes the store's table, or brings it to the version that this binary knows. It is
// idempotent, safe from any number of processes at once, and leaves a newer one alone.
func (s *PGStore) Migrate(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		return migrate(ctx, tx)
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" { // insufficient_privilege
		err = fmt.Errorf("the role may not make the table; let the owner of schema rebase migrate, or one who may create that schema: %w", err)
	}
	if err != nil {
		return fmt.Errorf("webhook: migrate: %w", err)
	}
	return nil
}

// endpointsVersionSQL reads 0 where there is nothing. A table that is not there can't be
// named in a statement that is planned, so the first look is a statement of its own.
const (
	endpointsThereSQL   = `select to_regclass('rebase.webhook_migrations') is not null`
	endpointsVersionSQL = `select coalesce(max(version), 0) from rebase.webhook_migrations`
)

func migrate(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
		return err
	}
	var there bool
	if err := tx.QueryRow(ctx, endpointsThereSQL).Scan(&there); err != nil {
		return err
	}
	version := 0
	if there {
		if err := tx.QueryRow(ctx, endpointsVersionSQL).Scan(&version); err != nil {
			return err
		}
	}
	for ; version < len(migrations); version++ {
		// Many statements in one string: only the simple protocol takes that.
		if _, err := tx.Conn().PgConn().Exec(ctx, migrations[version]).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}
