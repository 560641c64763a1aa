package rebase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// The Worker: what a service declares, and the life of one Run: check the database,
// work, and shut down in an order that leaves nothing behind unsaid. No SQL here.
//
// Three contexts never mix. Run's context says when to stop, and nothing else. Handlers
// get one of their own, which ends with a cause. Bookkeeping goes on until the results
// are written.

// A Handler runs a job. A nil error is success. An error or a panic is a failure: the
// job is tried again after a backoff, and is a dead letter when no attempt is left; see
// Permanent, Snooze, RetryAfter and ErrCancelled for the other ways to end. The context
// ends, with a cause to be read by context.Cause, when the attempt times out
// (ErrTimeout), the job is cancelled (ErrCancelled), its lease is lost (ErrLeaseLost) or
// the worker shuts down (ErrShutdown).
//
// A handler may run more than once for a job: it must be idempotent, or use
// Job.CompleteTx.
type Handler func(ctx context.Context, job *Job) error

// Middleware wraps every handler of a worker.
type Middleware func(next Handler) Handler

// WorkerOptions configure a Worker. Nil, and every zero field, is the default.
type WorkerOptions struct {
	// Name is a label; a random part is always added to it. If "", the host's name.
	Name string
	// Concurrency is how many jobs run at once. If zero, 5; at most 10,000.
	Concurrency int
	// PollInterval is the time to the first look for jobs after one that found some,
	// when there is no LISTEN; it doubles up to 30 s while nothing is found. If zero, 2 s.
	PollInterval time.Duration
	// VisibilityTimeout is how long a claim holds without being renewed; it is renewed
	// at every third of it, and every 30 s at the latest, for as long as the handler runs. It
	// decides only how soon the jobs of a dead worker come back. If zero, 5 min; from 3 s to
	// 24 h.
	VisibilityTimeout time.Duration
	// Timeout ends an attempt as a failure; if the worker's own connection broke meanwhile, as
	// one that uses no attempt. If zero, 15 min; if negative, there is none.
	Timeout time.Duration
	// ShutdownTimeout is how long Run takes at most after its context has ended: two
	// thirds for handlers to finish, one third for them to obey their context. If
	// zero, 15 s.
	ShutdownTimeout time.Duration
	// Backoff is the delay after a failed attempt. If nil, 1 s, 5 s, 25 s … ×5, at most 1
	// h, with jitter. What a Backoff of yours returns gets no jitter.
	Backoff Backoff
	// Middleware wraps the handlers; the first is the outermost.
	Middleware []Middleware
	// Logger gets what the worker has to say. If nil, the queue's.
	Logger *slog.Logger
	// Listen opens the connection for LISTEN; it must not go through a transaction
	// pooler. If nil, ListenURL decides.
	Listen func(context.Context) (*pgx.Conn, error)
	// ListenURL is the address for LISTEN. If "", the environment variable
	// DATABASE_DIRECT_URL, else the pool's own address.
	ListenURL string
	// PollOnly works without LISTEN.
	PollOnly bool
	// Retention says how long finished jobs are kept. If zero, succeeded and cancelled
	// ones 3 days, failed ones 30 days.
	Retention Retention
	// IsInfrastructure tells errors of handlers that speak of PostgreSQL's connection
	// from failures of the job: they use no attempt, 25 times in a row. If nil, these are: a
	// failed connect, a closed connection or pool, and SQLSTATE 08xxx, 57P01 to 57P05,
	// 53300 and 25006; and a connection that broke without a word (io.EOF, a reset,
	// driver.ErrBadConn) or a context's deadline if the worker's own connection broke too.
	// To tell, such a failure is kept for a second before it is recorded, or a tenth of
	// ShutdownTimeout if that is less; that of an HTTP client (*url.Error) isn't.
	IsInfrastructure func(error) bool

	defaultInfrastructure bool // IsInfrastructure was nil
}

// TaskOptions configure a task in a worker. Nil, and every zero field, is the default.
type TaskOptions struct {
	// Concurrency is how many jobs of the task run at once in this worker. If zero,
	// the worker's.
	Concurrency int
	// LaneConcurrency is how many jobs of one lane run at once, over all processes. If
	// zero, there is no limit. Jobs without a lane aren't limited.
	LaneConcurrency int
	// Timeout ends an attempt as a failure. If zero, the worker's; if negative, there is
	// none.
	Timeout time.Duration
	// Backoff is the delay after a failed attempt. If nil, the worker's.
	Backoff Backoff
}

// A Worker claims jobs and runs their handlers. One per process is the normal case. It
// uses three connections of its own, opened like the pool's, and none of the pool.
type Worker struct {
	q         *Queue
	opts      WorkerOptions
	tasks     []*taskConfig
	names     map[string]*taskConfig
	schedules map[string]*plannedSchedule
	archiving atomic.Bool // Archive runs, perhaps on after its time or after Run

	mu      sync.Mutex
	started bool
	engine  *engine // while Run or RunOnce is at work
}

// A taskConfig is what Register was given.
type taskConfig struct {
	name      string
	handler   Handler
	limit     int
	laneLimit int
	timeout   time.Duration // 0: none
	backoff   Backoff
}

// NewWorker makes a worker on the queue. It does no I/O. It panics on options that can't
// work, such as a VisibilityTimeout too short to be renewed.
func NewWorker(q *Queue, opts *WorkerOptions) *Worker {
	if q == nil {
		panic("rebase: NewWorker: nil queue")
	}
	w := &Worker{q: q, names: map[string]*taskConfig{}, schedules: map[string]*plannedSchedule{}}
	if opts != nil {
		w.opts = *opts
	}
	if err := w.opts.complete(q); err != nil {
		panic("rebase: NewWorker: " + err.Error())
	}
	return w
}

const (
	minVisibility = 3 * time.Second
	maxVisibility = 24 * time.Hour
)

// complete fills in the defaults and refuses what can't work.
func (o *WorkerOptions) complete(q *Queue) error {
	o.Concurrency = cmp.Or(o.Concurrency, 5)
	o.PollInterval = cmp.Or(o.PollInterval, 2*time.Second)
	o.VisibilityTimeout = cmp.Or(o.VisibilityTimeout, 5*time.Minute)
	o.Timeout = max(cmp.Or(o.Timeout, 15*time.Minute), 0)
	o.ShutdownTimeout = cmp.Or(o.ShutdownTimeout, 15*time.Second)
	o.Retention = o.Retention.withDefaults()
	o.Logger = cmp.Or(o.Logger, q.log)
	if o.Backoff == nil {
		o.Backoff = defaultBackoff
	}
	if o.IsInfrastructure == nil {
		o.IsInfrastructure, o.defaultInfrastructure = isInfrastructure, true
	}
	switch {
	case o.Concurrency < 0 || o.Concurrency > 10_000:
		return fmt.Errorf("option Concurrency %d is not between 1 and 10,000", o.Concurrency)
	case o.PollInterval < 0:
		return fmt.Errorf("option PollInterval %v is negative", o.PollInterval)
	case o.VisibilityTimeout < minVisibility || o.VisibilityTimeout > maxVisibility:
		return fmt.Errorf("option VisibilityTimeout %v is not between %v and %v", o.VisibilityTimeout, minVisibility, maxVisibility)
	case o.ShutdownTimeout < 0:
		return fmt.Errorf("option ShutdownTimeout %v is negative", o.ShutdownTimeout)
	case checkText(o.Name, 200) != "":
		return fmt.Errorf("option Name: %s", checkText(o.Name, 200))
	}
	return nil
}

// Register ties a handler to a task. The worker claims only tasks that it has handlers
// for. It panics on a name that can't be a task's, on a task that has a handler already,
// and after Run has begun.
func (w *Worker) Register(task string, h Handler, opts *TaskOptions) {
	t, err := w.newTask(task, h, opts)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		panic(fmt.Sprintf("rebase: Register: task %q: %v", task, err))
	case w.started:
		panic(fmt.Sprintf("rebase: Register: task %q: Run has begun; register before it", task))
	case w.names[task] != nil:
		panic(fmt.Sprintf("rebase: Register: task %q has a handler already", task))
	}
	w.names[task] = t
	w.tasks = append(w.tasks, t)
}

func (w *Worker) newTask(task string, h Handler, opts *TaskOptions) (*taskConfig, error) {
	if opts == nil {
		opts = new(TaskOptions)
	}
	if reason := checkTask(task); reason != "" {
		return nil, errors.New(reason)
	}
	if h == nil {
		return nil, errors.New("nil handler")
	}
	if opts.Concurrency < 0 || opts.LaneConcurrency < 0 {
		return nil, fmt.Errorf("options Concurrency %d, LaneConcurrency %d: negative", opts.Concurrency, opts.LaneConcurrency)
	}
	for i := len(w.opts.Middleware) - 1; i >= 0; i-- {
		h = w.opts.Middleware[i](h)
	}
	t := &taskConfig{name: task, handler: h, laneLimit: opts.LaneConcurrency, backoff: opts.Backoff}
	t.limit = min(cmp.Or(opts.Concurrency, w.opts.Concurrency), w.opts.Concurrency)
	t.timeout = max(cmp.Or(opts.Timeout, w.opts.Timeout), 0)
	if t.backoff == nil {
		t.backoff = w.opts.Backoff
	}
	return t, nil
}

// VisibilityTimeout returns the worker's, for packages that register handlers whose own
// deadlines must be shorter.
func (w *Worker) VisibilityTimeout() time.Duration { return w.opts.VisibilityTimeout }

// Run claims and runs jobs until ctx ends, then shuts down: it claims nothing more, gives
// back at once what it had claimed and not begun, and waits for the running handlers,
// at most two thirds of the shutdown timeout. Then their contexts end with ErrShutdown;
// in the last third one that returns nil has succeeded, and one that returns an error is
// put back without using an attempt.
//
// It returns nil after a clean shutdown, a *ShutdownError that names the jobs left
// behind, or, at its start, a *SchemaError. A database that can't be reached, at the
// start or later, is waited for. Close the pool after Run has returned.
func (w *Worker) Run(ctx context.Context) error {
	e, err := w.start(ctx, false)
	if err != nil {
		return err
	}
	defer w.finished()
	return e.work(ctx)
}

// RunOnce runs jobs until none is due, including what their handlers enqueue, and
// returns how many attempts it ran. It also takes back expired claims and fires due
// schedules. It is for tests and for programs started by a timer. When ctx ends it shuts
// down as Run does. Unlike Run it returns an error when the database can't be reached.
//
// Claims that it finds expired may belong to workers that live and come back from an outage
// just now. So it stays until they must have renewed them, and takes back only those that
// they have not: 41.5 s after it began with the default VisibilityTimeout, never longer
// with another, 3.5 s with the shortest. Meanwhile it works. If ctx ends before, they are left
// to the next. When nothing has expired, it does not wait.
//
// Jobs whose task the worker has no handler for are left alone: without any it returns 0.
func (w *Worker) RunOnce(ctx context.Context) (int, error) {
	e, err := w.start(ctx, true)
	if err != nil {
		return 0, err
	}
	defer w.finished()
	err = e.work(ctx)
	return e.attempts, err
}

func (w *Worker) start(ctx context.Context, once bool) (*engine, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.engine != nil {
		return nil, errWorkerRunning
	}
	w.started = true
	w.engine = newEngine(ctx, w, once)
	return w.engine, nil
}

func (w *Worker) finished() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engine = nil
}
