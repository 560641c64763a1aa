package rebase

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retention.Archive runs in the middle of a transaction of the recorder's, and is the only code of
// the user's over which the recorder has to give up a connection. So the whole transaction runs
// on a goroutine of its own, to which the connection is lent. An Archive that doesn't come back in
// its time keeps it: whatever of pgx it still uses is touched by nobody else, and the recorder
// makes a new one.

// purgeArchived hands the jobs over in the transaction that deletes them.
func (e *engine) purgeArchived(ctx context.Context, sql string, args []any, archive func(context.Context, pgx.Tx, []*Job) error) (n int, from time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.roundLimit())
	defer cancel()
	if err := e.results.open(ctx); err != nil {
		return 0, from, err
	}
	h := &handover{sql: sql, args: args, archive: archive, session: *e.results, limit: e.roundLimit(), from: e.sweep.from}
	beneath := h.session.conn.PgConn().Conn()
	e.results.conn, e.results.described = nil, nil // lent
	done := make(chan struct{})
	e.w.archiving.Store(true)
	go func() {
		defer close(done)
		defer e.w.archiving.Store(false)
		h.run(ctx)
	}()
	if !doneIn(ctx, done, min(e.roundLimit()/4, 500*time.Millisecond)) {
		abort(beneath)
		return 0, from, e.stuckArchive(h.first.Load())
	}
	*e.results = h.session
	return h.n, h.from, h.err
}

// doneIn waits for done, and for a little more than ctx.
func doneIn(ctx context.Context, done <-chan struct{}, more time.Duration) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	t := time.NewTimer(more)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// abort closes a connection that another goroutine may be using, without a word to the server,
// which then ends the transaction. With TLS a word would have to wait for its turn.
func abort(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close() // nobody needs it any more
}

// stuckArchive is the error of one that ignores its context.
func (e *engine) stuckArchive(first *place) error {
	if first == nil { // it was not even called
		return &lostError{err: errors.New("retention: deleting took too long")}
	}
	e.log.Error("rebase: Archive ignores its context and runs on; its jobs stay, and nothing is deleted until it returns", "worker", e.id)
	return &lostError{err: &archiveError{"it ignores its context", *first}}
}

// A handover is one batch on its way to Archive. It belongs to the goroutine that runs it, until
// that is done.
type handover struct {
	sql     string
	args    []any
	archive func(context.Context, pgx.Tx, []*Job) error
	session session
	limit   time.Duration

	n    int
	from time.Time
	err  error

	first atomic.Pointer[place] // the oldest job, once archive is called; for both
}

// run is the transaction.
func (h *handover) run(ctx context.Context) {
	h.err = h.session.transaction(ctx, h.limit, func(ctx context.Context, tx pgx.Tx) error {
		jobs, err := h.delete(ctx, tx)
		if h.n = len(jobs); h.n == 0 || err != nil {
			return err
		}
		first := place{*jobs[0].FinishedAt, jobs[0].ID}
		for _, j := range jobs {
			if j.FinishedAt.Before(first.at) {
				first = place{*j.FinishedAt, j.ID}
			}
			if j.FinishedAt.After(h.from) {
				h.from = *j.FinishedAt
			}
		}
		h.first.Store(&first)
		return callArchive(ctx, tx, jobs, first, h.archive)
	})
}

// delete deletes the batch, for now.
func (h *handover) delete(ctx context.Context, tx pgx.Tx) (jobs []*Job, err error) {
	rows, err := tx.Query(ctx, h.sql+jobColumns, h.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		j := new(Job)
		if err := viewJob(rows, 0, j); err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, rows.Err()
}

// An archiveError is an error of the user's function. It has no Unwrap: what failed there,
// a network perhaps, says nothing about the database.
type archiveError struct {
	text  string
	first place // the oldest job that it was given
}

func (e *archiveError) Error() string { return "retention: archive: " + e.text }

// callArchive keeps a panic of the user's function from ending the process, and runtime.Goexit from
// ending the recorder.
func callArchive(ctx context.Context, tx pgx.Tx, jobs []*Job, first place, archive func(context.Context, pgx.Tx, []*Job) error) error {
	err := error(&archiveError{"it called runtime.Goexit", first})
	isolated(func() {
		defer func() {
			if v := recover(); v != nil {
				err = &archiveError{"panic: " + panicText(v), first}
			}
		}()
		if said := archive(ctx, tx, jobs); said != nil {
			err = &archiveError{errorText(said), first}
		} else {
			err = nil
		}
	})
	if err == nil && tx.Conn().PgConn().IsBusy() { // nothing could be committed
		err = &archiveError{"it left rows of tx.Query open", first}
	}
	return err
}
