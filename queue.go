package rebase

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Queue is what producers and operators call. It holds no connection and no
// goroutine of its own: everything runs on the caller's pool or transaction. The
// verbs that enqueue are here; see enqueue.go for their statements, migrate.go for
// the schema, and manage.go for what operators do to jobs.

// A Queue enqueues jobs and operates on them. It is safe for concurrent use.
type Queue struct {
	pool       *pgxpool.Pool
	log        *slog.Logger
	maxPayload int
	maxBatch   int // bytes; always 512 MiB, but in tests
	notify     NotifyMode
	events     *events // nil without OnEvent

	mu      sync.Mutex
	engines map[*engine]struct{} // running workers of this process, woken without NOTIFY
}

// Options configure a Queue. Nil, and every zero field, is the default.
type Options struct {
	// Logger gets what the queue has to say. If nil, slog.Default().
	Logger *slog.Logger
	// MaxPayload is the largest payload in bytes. If zero, 1 MiB; if negative, 255
	// MiB, which is what jsonb can hold.
	MaxPayload int
	// Notify says when an enqueue sends a NOTIFY. If zero, Gated.
	Notify NotifyMode
	// OnEvent, if not nil, is called for what this Queue's enqueues and workers do with
	// jobs, one event at a time, on a goroutine that no job waits for, in the order in which
	// they got to know of it. If it is so slow that 10,000 events wait, further ones are
	// dropped, with a warning. Only OnEvent
	// is told of an attempt that failed and is tried again; the log has what failed for good.
	OnEvent func(Event)
}

// A NotifyMode says when a statement that makes a job pending sends a NOTIFY.
type NotifyMode int

const (
	// Gated notifies only if a worker that may serve the task is asleep. This is
	// what keeps enqueues fast: a NOTIFY takes a lock for the whole cluster until
	// its transaction is on disk.
	Gated NotifyMode = iota
	// Always notifies with every enqueue.
	Always
	// Never notifies: workers find jobs by looking. For two-phase commit, which
	// PostgreSQL refuses for a transaction with a NOTIFY, and for poolers that pin
	// a connection on advisory locks.
	Never
)

// New makes a Queue on the pool. It does no I/O.
func New(pool *pgxpool.Pool, opts *Options) *Queue {
	if pool == nil {
		panic("rebase: New: nil pool")
	}
	if opts == nil {
		opts = new(Options)
	}
	q := &Queue{
		pool: pool, log: opts.Logger, maxPayload: opts.MaxPayload, maxBatch: maxBatch, notify: opts.Notify,
		engines: map[*engine]struct{}{},
	}
	if q.log == nil {
		q.log = slog.Default()
	}
	if opts.OnEvent != nil {
		q.events = &events{call: opts.OnEvent, log: q.log}
	}
	if q.maxPayload == 0 {
		q.maxPayload = 1 << 20
	}
	return q
}

// Enqueue makes a job in a transaction of its own: when it returns without error
// the job is there. The payload is any value for encoding/json. JSON that is ready
// is a json.RawMessage: a string would be a JSON string, and a []byte is refused. A
// job whose idempotency key an unfinished job of the task has already is a
// duplicate: no job is made and no error returned.
//
// It returns a *PayloadError, before any SQL, for what can't be stored.
func (q *Queue) Enqueue(ctx context.Context, task string, payload any, opts *EnqueueOptions) (Enqueued, error) {
	return first(q.EnqueueMany(ctx, []Item{{task, payload, opts}}))
}

// EnqueueTx makes a job in the caller's transaction: when that commits the job is
// there, when it rolls back it never was.
//
// With an idempotency key it waits for a concurrent transaction that has inserted
// the same key, like any unique index. In READ COMMITTED a duplicate never raises,
// so it never aborts the transaction; in REPEATABLE READ and above a duplicate
// newer than the transaction's snapshot is an ordinary serialisation failure
// (40001). Several calls with keys in one transaction follow the usual rule of a
// common lock order; one EnqueueManyTx needs none.
//
// It returns a *PayloadError, before any SQL, for what can't be stored.
func (q *Queue) EnqueueTx(ctx context.Context, tx pgx.Tx, task string, payload any, opts *EnqueueOptions) (Enqueued, error) {
	return first(q.EnqueueManyTx(ctx, tx, []Item{{task, payload, opts}}))
}

// EnqueueMany makes many jobs with one statement, in a transaction of its own: all
// or none. The results are in the order of the items. It returns a *PayloadError
// that names the first item that can't be stored, or with which the batch has more
// than 512 MiB.
func (q *Queue) EnqueueMany(ctx context.Context, items []Item) ([]Enqueued, error) {
	rows, err := q.encode(items)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	done, err := q.enqueueOwn(ctx, rows)
	if err != nil {
		return nil, err
	}
	q.committed(rows, done)
	return done, nil
}

// EnqueueManyTx is EnqueueMany in the caller's transaction; see EnqueueTx.
func (q *Queue) EnqueueManyTx(ctx context.Context, tx pgx.Tx, items []Item) ([]Enqueued, error) {
	rows, err := q.encode(items)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	done, err := insertJobs(ctx, tx, rows, q.notify)
	if err != nil {
		return nil, err
	}
	q.uncommitted(rows, done)
	return done, nil
}

func first(done []Enqueued, err error) (Enqueued, error) {
	if err != nil {
		return Enqueued{}, err
	}
	return done[0], nil
}

// enqueueOwn inserts on the pool. When the insert has returned, the jobs are there: what becomes
// of the look for the duplicates' ids, a transaction of its own, is no error of theirs, and never
// a reason to insert again.
func (q *Queue) enqueueOwn(ctx context.Context, rows []jobRow) (done []Enqueued, err error) {
	err = againstConflicts(func() error {
		done, err = insert(ctx, q.pool, rows, q.notify)
		return err
	})
	if err != nil {
		return nil, enqueueError(err)
	}
	_ = againstConflicts(func() error { return findDuplicates(ctx, q.pool, rows, done) }) // their ids stay 0
	return done, nil
}

// againstConflicts runs a statement that is a transaction of its own, so a serialisation failure
// (the role's default isolation may be REPEATABLE READ) can simply be tried again.
func againstConflicts(f func() error) (err error) {
	for range 10 {
		err = f()
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "40001" && pgErr.Code != "40P01" {
			break
		}
	}
	return err
}

// committed wakes this process's workers for jobs that are in the table.
func (q *Queue) committed(rows []jobRow, done []Enqueued) {
	q.eachEngine(func(e *engine) {
		for i := range rows {
			if !done[i].Duplicate && e.wake(rows[i].task) {
				break
			}
		}
	})
	q.emitEnqueued(rows, done, false)
}

// uncommitted tells this process's workers that jobs will be in the table, perhaps,
// once the caller has committed, which the queue can't see.
func (q *Queue) uncommitted(rows []jobRow, done []Enqueued) {
	q.eachEngine(func(e *engine) {
		for i := range rows {
			if !done[i].Duplicate && e.expect(rows[i].task) {
				break
			}
		}
	})
	q.emitEnqueued(rows, done, true)
}

// Wake makes the workers of this process look for jobs now. It is for those who
// enqueue in a transaction, poll, and don't want to wait for the next look: call it
// after the commit.
func (q *Queue) Wake() {
	q.eachEngine(func(e *engine) { e.wake("") })
}

// eachEngine calls f for the workers of this process that run on this queue.
func (q *Queue) eachEngine(f func(*engine)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := range q.engines {
		f(e)
	}
}

func (q *Queue) addEngine(e *engine) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.engines[e] = struct{}{}
}

func (q *Queue) removeEngine(e *engine) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.engines, e)
}
