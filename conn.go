package rebase

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A session is one of a worker's own connections. Everything on it is a round: one
// pipelined transaction that first makes the session independent of the user's
// settings and then runs its statements. Nothing that a round returns counts
// before the reply to its COMMIT.
//
// A session belongs to one goroutine. It is connected when a round needs it and
// dropped at the first sign of trouble; whether the round took effect is then
// unknown, and its caller must cope.

// A statement of a round. rows, if not nil, reads what it returns.
type statement struct {
	sql  string
	args []any
	rows func(pgx.Rows) error
}

type session struct {
	connect func(context.Context) (*pgx.Conn, error)
	conn    *pgx.Conn
	rtt     time.Duration // smoothed time of the emptiest round trips, 0 while unknown
	server  time.Time     // when the server of the last round started: whether it is still the same
	begun   bool          // the last round's transaction, which reads and writes, had begun

	// described are the statements that pgx has a description of, nil if it keeps none.
	described map[string]struct{}
	mode      pgx.QueryExecMode // of conn
}

const (
	beginSQL = `begin isolation level read committed read write`

	// set_config, not SET: it takes parameters and lasts for the transaction, so
	// that it leaks nowhere behind a transaction pooler. search_path shuts out
	// decoys; Go's texts are UTF8, and another encoding would end a claim of what it
	// lacks; styles and zone make times readable, those in a history too (there
	// were zones with odd seconds once). The planner's settings leave
	// the one good plan of every statement, on an empty table too, and the generic
	// plan saves planning each claim anew. JIT never pays for these statements.
	settingsSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
  pg_catalog.set_config('client_encoding', 'UTF8', true),
  pg_catalog.set_config('datestyle', 'ISO', true),
  pg_catalog.set_config('timezone', 'UTC', true),
  pg_catalog.set_config('intervalstyle', 'postgres', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('enable_seqscan', 'off', true),
  pg_catalog.set_config('enable_bitmapscan', 'off', true),
  pg_catalog.set_config('enable_hashjoin', 'off', true),
  pg_catalog.set_config('enable_mergejoin', 'off', true),
  pg_catalog.set_config('enable_indexscan', 'on', true),
  pg_catalog.set_config('enable_tidscan', 'on', true),
  pg_catalog.set_config('enable_nestloop', 'on', true),
  pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true),
  pg_catalog.set_config('lock_timeout', '200', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', $1::pg_catalog.text, true),
  pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true),
  pg_catalog.pg_postmaster_start_time()`

	commitSQL = `commit`

	// operatorSettingsSQL is for what operators call: rare statements with many shapes,
	// which the planner should see anew each time. But a table without statistics must not
	// tempt it to read and sort all of it for one page.
	operatorSettingsSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
  pg_catalog.set_config('client_encoding', 'UTF8', true),
  pg_catalog.set_config('datestyle', 'ISO', true),
  pg_catalog.set_config('timezone', 'UTC', true),
  pg_catalog.set_config('intervalstyle', 'postgres', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('enable_seqscan', 'off', true),
  pg_catalog.set_config('enable_bitmapscan', 'off', true),
  pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', '10000', true),
  pg_catalog.set_config('lock_timeout', '200', true),
  pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true)`
)

// round runs the statements in one transaction, within limit. It connects first if
// it must. After an error that isLost recognises, nothing is known about the
// transaction; after any other it was rolled back.
func (s *session) round(ctx context.Context, limit time.Duration, statements ...statement) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return err
	}
	if s.undescribed(statements) {
		if err := roundInSteps(ctx, s.conn, s.batch(limit, statements)); err != nil {
			return s.failed(ctx, err)
		}
		s.remember(statements)
		return nil
	}
	b := s.batch(limit, statements)
	start := time.Now()
	if err := s.conn.SendBatch(ctx, b).Close(); err != nil {
		return s.failed(ctx, err)
	}
	s.measure(time.Since(start))
	return nil
}

// batch is roundBatch for a worker. It takes note of the server: one that has started anew, or another
// that has taken over, may have lost what was committed last, and a pooler hides the change.
func (s *session) batch(limit time.Duration, statements []statement) *pgx.Batch {
	s.begun = false
	b := roundBatch(settingsSQL, milliseconds(limit), statements)
	b.QueuedQueries[1].Query(func(rows pgx.Rows) error {
		if !rows.Next() {
			return rows.Err()
		}
		s.begun = true
		columns := make([]any, len(rows.FieldDescriptions()))
		columns[len(columns)-1] = &s.server
		return rows.Scan(columns...)
	})
	return b
}

// roundBatch makes a transaction of statements, to be sent at once.
func roundBatch(settings, statementTimeout string, statements []statement) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(beginSQL)
	b.Queue(settings, statementTimeout)
	for _, st := range statements {
		q := b.Queue(st.sql, st.args...)
		if st.rows != nil {
			q.Query(st.rows)
		}
	}
	b.Queue(commitSQL)
	return b
}

// describes says whether pgx lets the server describe statements before they run. In a
// batch it does so before the batch begins, under the session's own search_path: what is
// parsed there may find a stranger's type or operator, and stays bound to it.
func describes(mode pgx.QueryExecMode) bool {
	return mode != pgx.QueryExecModeExec && mode != pgx.QueryExecModeSimpleProtocol
}

// roundInSteps is roundBatch in two, so that the statements are described, all at once, when
// the transaction and its settings are there. Of an error it leaves no transaction.
func roundInSteps(ctx context.Context, conn *pgx.Conn, whole *pgx.Batch) error {
	const first = 2 // begin and settings, which name nothing without its schema
	for _, part := range [][]*pgx.QueuedQuery{whole.QueuedQueries[:first], whole.QueuedQueries[first:]} {
		if err := conn.SendBatch(ctx, &pgx.Batch{QueuedQueries: part}).Close(); err != nil {
			if conn.PgConn().TxStatus() != 'I' {
				_, _ = conn.PgConn().Exec(ctx, "rollback").ReadAll() // a connection that can't is of no use anyway
			}
			return err
		}
	}
	return nil
}

// undescribed says whether one of the statements has to be described first. Once each has
// been, a round is one batch.
func (s *session) undescribed(statements []statement) bool {
	if !describes(s.mode) {
		return false
	}
	for i := range statements {
		if _, ok := s.described[statements[i].sql]; !ok {
			return true
		}
	}
	return false
}

// remember notes what has been described. pgx keeps descriptions in two of its modes.
func (s *session) remember(statements []statement) {
	if s.mode != pgx.QueryExecModeCacheStatement && s.mode != pgx.QueryExecModeCacheDescribe {
		return
	}
	if s.described == nil {
		s.described = map[string]struct{}{}
	}
	for i := range statements {
		s.described[statements[i].sql] = struct{}{}
	}
}

// open connects if there is no connection. Its error is recognised by isLost.
func (s *session) open(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	s.drop()
	conn, err := s.connect(ctx)
	if err != nil {
		return &connectError{err}
	}
	s.conn, s.rtt, s.mode, s.described = conn, 0, conn.Config().DefaultQueryExecMode, nil
	return nil
}

// connectError marks a failure before anything was sent.
type connectError struct{ err error }

func (e *connectError) Error() string { return "connect: " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// failed leaves the session usable, or dropped.
func (s *session) failed(ctx context.Context, err error) error {
	s.described = nil // pgx may have forgotten some of it
	if ctx.Err() != nil || s.conn.IsClosed() || isLost(err) {
		answered := s.begun && ctx.Err() == nil && isAnswer(err)
		s.drop()
		return &lostError{err, answered}
	}
	if s.conn.PgConn().TxStatus() != 'I' {
		if _, rollbackErr := s.conn.PgConn().Exec(ctx, "rollback").ReadAll(); rollbackErr != nil {
			s.drop()
		}
	}
	return err
}

// lostError marks a round whose outcome is unknown. It was answered if one of its statements was
// refused by a server that was there and let it write: the SQLSTATE speaks of the connection, but
// may be a trigger's, which asked another server.
type lostError struct {
	err      error
	answered bool
}

func (e *lostError) Error() string { return "connection lost: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// drop closes the connection without waiting for the server.
func (s *session) drop() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = s.conn.Close(ctx) // it is gone or useless; there is nobody to tell
	s.conn = nil
}

// measure keeps the round trip from the quickest rounds: a claim's own work must
// not count as distance.
func (s *session) measure(d time.Duration) {
	if s.rtt == 0 || d < s.rtt {
		s.rtt = d
		return
	}
	s.rtt += min((d-s.rtt)/64, s.rtt/64+1)
}

// isLost says whether err ends the connection's use: it broke, the server ends it,
// or the server is no place for a worker (a standby: SQLSTATE 25006 or 0A000).
func isLost(err error) bool {
	if _, ok := errors.AsType[*lostError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*connectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*refusedError](err); ok {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		// 0A000 is a standby's answer to "begin read write"; and that of a statement whose plan
		// no longer fits its table, which a new connection cures as well.
		return isOutage(pgErr.Code) || pgErr.Code == "0A000"
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || errors.Is(err, pgconn.ErrConnClosed) || pgconn.Timeout(err)
}

// isOutage recognises the SQLSTATEs that speak of the server or the connection, not
// of the statement. See https://www.postgresql.org/docs/current/errcodes-appendix.html.
func isOutage(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P04", "57P05", // the server ends the session, or starts up
		"53300", "25006", // too many connections; read-only
		"26000": // a prepared statement is gone: a pooler changed the connection beneath
		return true
	}
	return len(code) == 5 && code[:2] == "08" // connection exceptions
}

// isLockTimeout recognises lock_not_available: lock_timeout has passed.
func isLockTimeout(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "55P03"
}

// poolConnect makes connections as the pool would: its address and fallbacks, TLS,
// BeforeConnect (which may fetch a password) and AfterConnect (which may set a
// role). Notifications go to heard, or if that is nil to WaitForNotification, whatever the
// pool does with its own.
func poolConnect(pool *pgxpool.Pool, heard pgconn.NotificationHandler) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) {
		config := pool.Config() // a copy
		cc := config.ConnConfig
		cc.OnNotification = heard
		if config.BeforeConnect != nil {
			if err := config.BeforeConnect(ctx, cc); err != nil {
				return nil, fmt.Errorf("BeforeConnect: %w", err)
			}
		}
		conn, err := pgx.ConnectConfig(ctx, cc)
		if err != nil {
			return nil, err
		}
		if config.AfterConnect != nil {
			if err := config.AfterConnect(ctx, conn); err != nil {
				closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer cancel()
				_ = conn.Close(closeCtx) // the first error is the one to tell
				return nil, fmt.Errorf("AfterConnect: %w", err)
			}
		}
		return conn, nil
	}
}

// maxRedial is the longest pause between two attempts to connect.
const maxRedial = 1500 * time.Millisecond

// A redial spaces out attempts to connect: 50 ms doubling to 1 s, with jitter, so
// that a fleet doesn't come back in one instant. Its zero value is ready.
type redial struct {
	failures int
}

func (r *redial) next() time.Duration {
	d := min(50*time.Millisecond<<min(r.failures, 10), time.Second)
	r.failures++
	return d/2 + rand.N(d)
}

func (r *redial) reset() { r.failures = 0 }

// transaction runs f in a transaction with the same settings, for the few things that
// can't be one round.
func (s *session) transaction(ctx context.Context, limit time.Duration, f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return err
	}
	s.begun = false
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	err := pgx.BeginTxFunc(ctx, s.conn, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, settingsSQL, milliseconds(limit)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
	if err != nil {
		return s.failed(ctx, err)
	}
	return nil
}

// milliseconds is the statement_timeout of a round: shorter than the client's limit, so that
// a slow statement ends as an error and not as a lost connection.
func milliseconds(limit time.Duration) string {
	return strconv.FormatInt(max(limit*3/4, 100*time.Millisecond).Milliseconds(), 10)
}
