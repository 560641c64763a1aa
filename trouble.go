package rebase

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Trouble with the database is not a failure of the job: what errors of handlers speak of it,
// and how those that may speak of it are told from others.

// isInfrastructure is the default of WorkerOptions.IsInfrastructure: the error of a
// handler is a failure of PostgreSQL's connection, not of the handler. It must not
// match every network error: a webhook's dead host is an ordinary failure.
func isInfrastructure(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if errors.Is(err, pgconn.ErrConnClosed) || isClosedPool(err) {
		return true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code != "26000" && isOutage(pgErr.Code)
}

// isCut recognises an error that a broken connection leaves and that doesn't say whether
// it was one to PostgreSQL: a server that crashes says no goodbye. It is none of an HTTP
// client, which names its request, nor of a dial, which pgx calls a ConnectError. A deadline
// may be that of a query, or of a wait for a pool's connection.
func isCut(err error) bool {
	if _, isHTTP := errors.AsType[*url.Error](err); isHTTP {
		return false
	}
	op, isOp := errors.AsType[*net.OpError](err)
	return isOp && op.Op != "dial" || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, context.DeadlineExceeded)
}

// isClosedPool recognises puddle.ErrClosedPool, which pgxpool returns but doesn't
// export, by its text. An error whose methods panic is none.
func isClosedPool(err error) (is bool) {
	defer func() { _ = recover() }()
	eachError(err, func(err error) { is = is || err.Error() == "closed pool" })
	return is
}

// eachError visits an error and all that it wraps.
func eachError(err error, visit func(error)) {
	if err == nil {
		return
	}
	visit(err)
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		eachError(e.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			eachError(err, visit)
		}
	}
}

// suspect marks a failure that may be the database's.
func (e *engine) suspect(a *attempt, o *outcome, err error) {
	if a.job.setbacks < maxSetbacks && e.w.opts.defaultInfrastructure {
		o.cut, o.cutDelay = true, e.delay(a, a.job.setbacks+1, err)
	}
}

// reconsider turns a failure by a connection that broke without a word into a setback, if
// the worker's own connection to the database broke too, during the attempt or just before it
// (a pool may hand out a dead connection for a second). Nothing in such an error tells whose
// connection it was; that both broke does. The engine's lock is held.
func (e *engine) reconsider(a *attempt) {
	if o := &a.outcome; o.cut && e.cutAt.After(a.began.Add(-2*time.Second)) {
		o.cut, o.kind, o.delay = false, kindSetback, o.cutDelay
	}
}

// doubt is how long such a failure is kept before it is written. A server that crashes ends its
// sessions one after the other, and the worker's own may be the last: until then it can still
// commit. What is written after this time either goes through, and then nothing crashed, or
// finds its connection broken.
func (e *engine) doubt() time.Duration { return min(time.Second, e.w.opts.ShutdownTimeout/10) }
