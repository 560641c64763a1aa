//go:build unix

// The handlers do whatever a handler may do, good or bad, as the payload says, and note
// when they began and what they are about to return. The note of the end is written before
// the return, so a result that stands in a row without such a note was made up.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// A payload says what a job's handler is to do.
type payload struct {
	N     int64  `json:"n,omitempty"`     // the enqueuer's own number, never used twice
	Does  string `json:"does"`            // one of the words below
	For   int64  `json:"for"`             // ms that it takes
	Times int    `json:"times,omitempty"` // in so many runs, then it succeeds; 0: in each
	Again int64  `json:"again,omitempty"` // ms that a later run takes, which succeeds; 0: as the first
}

// What a handler may do. What it takes part in, beyond that, is in the payload.
const (
	doesOK        = "ok"
	doesFail      = "fail"
	doesPanic     = "panic"
	doesGoexit    = "goexit"
	doesPermanent = "permanent"
	doesSnooze    = "snooze"
	doesLater     = "later"  // RetryAfter
	doesCancel    = "cancel" // itself
	doesDeaf      = "deaf"   // ignores its context
	doesQuery     = "query"  // waits in a query and returns its error as it is
	doesDie       = "die"    // kills its process
	doesComplete  = "complete"
	doesUndo      = "undo" // CompleteTx, then a rollback, then an error
	doesForget    = "forget"
)

// What a run has come to; some of what the library makes of it.
const (
	cameNil         = "nil"
	cameFail        = "fail"
	camePermanent   = "permanent"
	cameSnooze      = "snooze"
	cameCancelled   = "cancelled"
	cameContext     = "context"     // cut short by its context, and returned the cause
	cameInfra       = "infra"       // an error of PostgreSQL's connection
	cameCut         = "cut"         // one that doesn't tell whose connection it was
	cameUnsure      = "unsure"      // a commit of CompleteTx without an answer
	cameUncommitted = "uncommitted" // CompleteTx rolled back, and returned nil
	cameDead        = "dead"        // about to kill its process
)

type handlers struct {
	record *record
	pool   *pgxpool.Pool
	queue  *rebase.Queue
}

// handle puts the record round what the payload asks for.
func (h *handlers) handle(ctx context.Context, job *rebase.Job, p payload) error {
	h.record.note(note{Kind: noteBegin, Job: job.ID, Fence: job.Fence, Run: job.Runs, Task: job.Task, N: p.N, On: p.Does})
	what, err := h.do(ctx, job, p)
	n := note{Kind: noteEnd, Job: job.ID, Fence: job.Fence, What: what}
	if err != nil {
		n.Text = err.Error()
	}
	if cause := context.Cause(ctx); cause != nil {
		n.On = cause.Error()
	}
	h.record.note(n)
	switch {
	case what == cameDead:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // there is nobody to tell
		select {}                                      // the signal is on its way
	case what == cameFail && p.Does == doesPanic:
		panic(err)
	case what == cameFail && p.Does == doesGoexit:
		runtime.Goexit()
	}
	return err
}

// do returns what the run has come to, and the handler's error.
func (h *handlers) do(ctx context.Context, job *rebase.Job, p payload) (string, error) {
	if p.Times > 0 && job.Runs > p.Times {
		p.Does, p.For = doesOK, 1
	}
	if p.Again > 0 && job.Runs > 1 {
		p.For = p.Again
	}
	d := time.Duration(p.For) * time.Millisecond
	switch p.Does {
	case doesDeaf:
		ctx = context.WithoutCancel(ctx)
		return came(ctx, pause(ctx, d))
	case doesQuery:
		_, err := h.pool.Exec(ctx, "select pg_sleep($1)", d.Seconds())
		return came(ctx, err)
	case doesComplete, doesUndo, doesForget:
		return h.complete(ctx, job, p.Does, d)
	}
	if err := pause(ctx, d); err != nil {
		return came(ctx, err)
	}
	switch p.Does {
	case doesFail, doesPanic, doesGoexit:
		return cameFail, errors.New("an ordinary failure")
	case doesPermanent:
		return camePermanent, rebase.Permanent(errors.New("a permanent failure"))
	case doesSnooze:
		return cameSnooze, rebase.Snooze(300 * time.Millisecond)
	case doesLater:
		return cameFail, rebase.RetryAfter(600*time.Millisecond, errors.New("a failure that wants to wait"))
	case doesCancel:
		return cameCancelled, rebase.ErrCancelled
	case doesDie:
		return cameDead, nil
	}
	return cameNil, nil
}

// complete makes an effect, in half of the cases another job, and this job's end one
// commit; or it makes the three and takes them back.
func (h *handlers) complete(ctx context.Context, job *rebase.Job, does string, wait time.Duration) (string, error) {
	tx, err := h.pool.Begin(ctx)
	if err != nil {
		return came(ctx, err)
	}
	defer rollBack(ctx, tx)
	child := job.Fence%2 == 0
	if _, err := tx.Exec(ctx, "insert into torture.effects (job, fence, child) values ($1, $2, $3)", job.ID, job.Fence, child); err != nil {
		return came(ctx, err)
	}
	if child {
		if _, err := h.queue.EnqueueTx(ctx, tx, taskShort, payload{N: childOf(job.ID, job.Fence), Does: doesOK, For: 1}, nil); err != nil {
			return came(ctx, err)
		}
	}
	if err := job.CompleteTx(ctx, tx); err != nil {
		return came(ctx, err)
	}
	if err := pause(ctx, wait); err != nil {
		return came(ctx, err)
	}
	switch does {
	case doesUndo:
		return cameFail, errors.New("rolled back on purpose")
	case doesForget:
		return cameUncommitted, nil
	}
	if err := tx.Commit(ctx); err != nil {
		return cameUnsure, fmt.Errorf("commit: %w", err)
	}
	return cameNil, nil
}

// childOf is the number of the job that a run makes. A fence alone would not do: all jobs of
// a claim have the same.
func childOf(job, fence int64) int64 { return (fence^job*0x1E3779B97F4A7C15)&(1<<62-1) | 1<<62 }

// came classifies an error by itself, without the library's help.
func came(ctx context.Context, err error) (string, error) {
	if err == nil {
		return cameNil, nil
	}
	if ctx.Err() != nil {
		return cameContext, err
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch code := pgErr.Code; {
		case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P0"), code == "53300", code == "25006":
			return cameInfra, err
		}
		return cameFail, err
	}
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	_, isNet := errors.AsType[*net.OpError](err)
	switch {
	case isConnect, errors.Is(err, pgconn.ErrConnClosed):
		return cameInfra, err
	case isNet, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), pgconn.Timeout(err):
		return cameCut, err
	}
	return cameFail, err
}
