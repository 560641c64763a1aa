package rebase

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rebasejobs/rebase/migrations"
)

// The schema: applying it, and telling at start whether this binary can work on
// what is there. Each migration is a transaction under an advisory lock, so N
// processes may migrate at once; each waits for table locks two seconds at most
// and then begins again, so that it never stands in front of a busy queue.

// minVersion is the oldest schema that this binary can work on.
const minVersion = 3

// migrateLock is the advisory lock's key: the ASCII bytes of "rebase".
const migrateLock = 0x726562617365

// A migration is a file of package migrations.
type migration struct {
	version int
	sql     string
}

// loadMigrations reads the embedded files in the order of their numbers.
func loadMigrations() ([]migration, error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []migration
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		sql, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			return nil, err
		}
		all = append(all, migration{version, string(sql)})
	}
	return all, nil
}

// Migrate brings the schema "rebase" to the version that this binary knows. It is
// idempotent and safe from any number of processes at once, also while older ones
// are working. It waits for locks until ctx ends. A schema newer than the binary is
// left as it is. It needs PostgreSQL 15 or later and returns a *SchemaError if the
// server is something else.
func (q *Queue) Migrate(ctx context.Context) error {
	all, err := loadMigrations()
	if err != nil {
		return fmt.Errorf("rebase: migrate: %w", err)
	}
	for _, m := range all {
		if err := q.applyPatiently(ctx, m); err != nil {
			if _, ok := errors.AsType[*SchemaError](err); ok {
				return err
			}
			return fmt.Errorf("rebase: migrate: %w", err)
		}
	}
	return nil
}

// applyPatiently begins again when a lock was not to be had in time.
func (q *Queue) applyPatiently(ctx context.Context, m migration) error {
	for {
		err := pgx.BeginTxFunc(ctx, q.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			return apply(ctx, tx, m)
		})
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pgErr.Code != "55P03" && pgErr.Code != "40P01" { // lock_not_available, deadlock_detected
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50*time.Millisecond + rand.N(200*time.Millisecond)):
		}
	}
}

func apply(ctx context.Context, tx pgx.Tx, m migration) error {
	if err := probeServer(ctx, tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
		pg_catalog.set_config('lock_timeout', '2s', true), pg_catalog.set_config('statement_timeout', '0', true)`)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
		return err
	}
	version, _, err := schemaVersion(ctx, tx)
	if isForbidden(err) {
		return fmt.Errorf("the role can't read rebase.migrations; let the schema's owner migrate: %w", err)
	}
	if err != nil || version >= m.version {
		return err
	}
	// Many statements in one string: only the simple protocol takes that.
	_, err = tx.Conn().PgConn().Exec(ctx, m.sql).ReadAll()
	switch {
	case isForbidden(err):
		return fmt.Errorf("version %d: the role may not change the schema; let its owner migrate, or one who may create a schema: %w", m.version, err)
	case err != nil:
		return fmt.Errorf("version %d: %w", m.version, err)
	}
	return nil
}

// isForbidden recognises insufficient_privilege.
func isForbidden(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "42501"
}

// withAdvice says what to do where the schema isn't there yet, or a lock was not to be had.
func withAdvice(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	table := pgErr.Code == "42P01" && strings.Contains(pgErr.Message, "rebase.")   // undefined_table
	schema := pgErr.Code == "3F000" && strings.Contains(pgErr.Message, `"rebase"`) // invalid_schema_name
	if table || schema {
		return fmt.Errorf("the schema is missing, call Queue.Migrate: %w", err)
	}
	if isLockTimeout(err) {
		return fmt.Errorf("another transaction has a lock on it, try again: %w", err)
	}
	return err
}

// probeServer refuses what only speaks PostgreSQL's protocol, and what is too old.
func probeServer(ctx context.Context, db querier) error {
	var number int
	var text string
	err := db.QueryRow(ctx, `select pg_catalog.current_setting('server_version_num')::pg_catalog.int4, pg_catalog.version()`).Scan(&number, &text)
	if err != nil {
		return err
	}
	if number < 150000 || !strings.HasPrefix(text, "PostgreSQL ") {
		return &SchemaError{Supports: newestVersion(), Reason: "the server is not PostgreSQL 15 or later, but " + text}
	}
	return nil
}

// schemaVersion returns 0 if there is no schema.
func schemaVersion(ctx context.Context, db querier) (version, minReader int, err error) {
	var there bool
	if err := db.QueryRow(ctx, `select pg_catalog.to_regclass('rebase.migrations') is not null`).Scan(&there); err != nil || !there {
		return 0, 0, err
	}
	err = db.QueryRow(ctx, `select coalesce(pg_catalog.max(version), 0), coalesce(pg_catalog.max(min_reader), 0) from rebase.migrations`).Scan(&version, &minReader)
	return version, minReader, err
}

func newestVersion() int {
	all, err := loadMigrations()
	if err != nil || len(all) == 0 {
		return 0
	}
	return all[len(all)-1].version
}

// Check tells whether this binary can work on the database: the schema is there
// and of a version that fits, the role has the grants that a worker needs, the
// encodings of the database and of the pool's sessions are UTF8, and the server takes
// writes. It returns a *SchemaError that says what to do, or the error of the
// connection. Worker.Run calls it.
func (q *Queue) Check(ctx context.Context) error {
	return pgx.BeginTxFunc(ctx, q.pool, pgx.TxOptions{}, func(tx pgx.Tx) error { return check(ctx, tx) })
}

func check(ctx context.Context, db querier) error {
	if err := probeServer(ctx, db); err != nil {
		return err
	}
	version, minReader, err := schemaVersion(ctx, db)
	if isForbidden(err) {
		return schemaError(0, "no permission on rebase.migrations: grant usage on schema rebase and the tables to this role")
	}
	if err != nil {
		return err
	}
	newest := newestVersion()
	switch {
	case version == 0:
		return schemaError(0, "the schema is missing: call Queue.Migrate, or apply the files of package migrations")
	case version < minVersion:
		return schemaError(version, fmt.Sprintf("version %d is too old for this binary, which needs %d: call Queue.Migrate", version, minVersion))
	case minReader > newest:
		return schemaError(version, fmt.Sprintf("version %d can only be worked on by a binary that knows version %d; this one knows %d: update the service", version, minReader, newest))
	}
	return checkServer(ctx, db, version)
}

func schemaError(version int, reason string) error {
	return &SchemaError{Version: version, Supports: newestVersion(), Reason: reason}
}

const checkServerSQL = `
select pg_catalog.current_setting('server_encoding'),
  pg_catalog.pg_client_encoding(),
  pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'on',
  coalesce((
    select pg_catalog.string_agg(pg_catalog.concat(w.privilege, ' on ', w.name), ', ')
    from (values ('jobs', 'select'), ('jobs', 'insert'), ('jobs', 'update'), ('jobs', 'delete'),
      ('claims', 'select'), ('claims', 'insert'), ('claims', 'update'), ('claims', 'delete'),
      ('workers', 'select'), ('workers', 'insert'), ('workers', 'update'), ('workers', 'delete'),
      ('counters', 'select'), ('counters', 'insert'), ('counters', 'update'), ('counters', 'delete'), ('paused', 'select'), ('jobs_id_seq', 'usage'), ('wake', 'execute'),
      ('schedules', 'select'), ('schedules', 'insert'), ('schedules', 'update'), ('schedules', 'delete'),
      ('schedule_slots', 'select'), ('schedule_slots', 'insert'), ('schedule_slots', 'update'), ('schedule_slots', 'delete')) w(name, privilege)
    where not case
      when w.name operator(pg_catalog.=) 'jobs_id_seq' then pg_catalog.has_sequence_privilege(pg_catalog.concat('rebase.', w.name), w.privilege)
      when w.name operator(pg_catalog.=) 'wake' then pg_catalog.has_function_privilege('rebase.wake(pg_catalog.text, pg_catalog.int4)', w.privilege)
      else pg_catalog.has_table_privilege(pg_catalog.concat('rebase.', w.name), w.privilege)
    end), '')`

// checkSession does for a worker's connection what the statement above can't tell under the settings
// of a round.
func checkSession(conn *pgx.Conn) error {
	if encoding := conn.PgConn().ParameterStatus("client_encoding"); encoding != "" && encoding != "UTF8" { // a pooler may keep it to itself
		return encodingError(newestVersion(), encoding)
	}
	return nil
}

func encodingError(version int, encoding string) error {
	return schemaError(version, fmt.Sprintf("the session's client_encoding is %s, and must be UTF8: set it for the role, the database or the connection", encoding))
}

func checkServer(ctx context.Context, db querier, version int) error {
	var encoding, session, missing string
	var readOnly bool
	if err := db.QueryRow(ctx, checkServerSQL).Scan(&encoding, &session, &readOnly, &missing); err != nil {
		return err
	}
	switch {
	case encoding != "UTF8":
		return schemaError(version, fmt.Sprintf("the database's encoding is %s, and must be UTF8", encoding))
	case session != "UTF8": // enqueues run on the pool's sessions as they are
		return encodingError(version, session)
	case missing != "":
		return schemaError(version, "the role lacks privileges: "+missing)
	case readOnly:
		return errReadOnly
	}
	return nil
}

// errReadOnly is not a *SchemaError: a standby is promoted sooner or later, so a
// worker waits for it like for a server that is away.
var errReadOnly = errors.New("rebase: the server is read-only (a standby, or default_transaction_read_only)")
