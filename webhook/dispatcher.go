package webhook

// The dispatcher: what a service declares. A delivery is a job. The job holds the
// endpoint's id, the event and the body's exact bytes, never the endpoint: its URL and
// its secrets are asked for at each attempt. The lane of a delivery is its endpoint, so
// that a dead one holds up nobody but itself. No I/O here: see send.go for how a
// delivery becomes a job, delivery.go for an attempt.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
)

// Task is the name of the task whose jobs are deliveries.
const Task = "webhook-delivery"

const (
	// defaultAttempts and the delays between them stretch over three days.
	defaultAttempts = 8
	// storeTime is what an attempt has beside its request, for the store and the hook.
	storeTime = 5 * time.Second
)

// Options configure a Dispatcher. Nil, and every zero field, is the default.
type Options struct {
	// Client sends the requests. If nil, one of NewClient: guarded, with the Timeout
	// below and any number of connections to a host, as the limits of the deliveries bound
	// them. One that NewClient did not make guards nothing.
	Client *http.Client
	// Timeout is the deadline of an attempt: the whole request with its body. If zero, 10 s.
	// Register panics unless it is below a third of the worker's visibility timeout.
	Timeout time.Duration
	// MaxAttempts is how often a delivery is tried. If zero, 8.
	MaxAttempts int
	// Backoff is the delay after a failed attempt. If nil: 10 s, 2 min, 15 min, 1 h, 6 h, 20
	// h, then 44 h, each give or take a tenth.
	Backoff rebase.Backoff
	// Concurrency is how many deliveries run at once in a worker. If zero, the worker's.
	Concurrency int
	// EndpointConcurrency is how many deliveries to one endpoint run at once, over all
	// processes. If zero, 4; if negative, there is no limit.
	EndpointConcurrency int
	// DisableGone disables an endpoint that answers 410, if the store is a Disabler, and ends
	// the delivery as cancelled. Otherwise, and if the endpoint has another URL by then, a 410
	// is tried again like any failure.
	DisableGone bool
	// UserAgent is sent with each request. If "", "rebase-webhook".
	UserAgent string
	// OnDelivery, if not nil, is called after each attempt, on the handler's goroutine. A
	// panic of its is logged and changes nothing.
	OnDelivery func(ctx context.Context, a Attempt)
	// Logger gets what the dispatcher has to say. If nil, slog.Default().
	Logger *slog.Logger
}

// An Attempt is what OnDelivery is told. It holds no URL, no header and no body.
type Attempt struct {
	JobID    int64
	ID       string // of the delivery
	Endpoint string
	Event    string
	Number   int           // X-Webhook-Attempt
	Status   int           // of the response, 0 without one
	Took     time.Duration // for the request
	Err      error         // nil if it was delivered, else mostly a *DeliveryError
}

// A Dispatcher enqueues deliveries and, registered with a worker, sends them. It is safe
// for concurrent use.
type Dispatcher struct {
	queue *rebase.Queue
	store Store
	opts  Options
}

// New makes a dispatcher. It does no I/O. It panics on a nil queue or store and on
// options that can't work.
func New(queue *rebase.Queue, store Store, opts *Options) *Dispatcher {
	if queue == nil || store == nil {
		panic("webhook: New: nil queue or store")
	}
	d := &Dispatcher{queue: queue, store: store}
	if opts != nil {
		d.opts = *opts
	}
	if err := d.opts.complete(); err != nil {
		panic("webhook: New: " + err.Error())
	}
	return d
}

// complete fills in the defaults and refuses what can't work.
func (o *Options) complete() error {
	switch {
	case o.Timeout < 0:
		return fmt.Errorf("option Timeout %v is negative", o.Timeout)
	case o.MaxAttempts < 0:
		return fmt.Errorf("option MaxAttempts %d is negative", o.MaxAttempts)
	case o.Concurrency < 0:
		return fmt.Errorf("option Concurrency %d is negative", o.Concurrency)
	case strings.ContainsFunc(o.UserAgent, control):
		return fmt.Errorf("option UserAgent %s contains a control character", quoted(o.UserAgent))
	}
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, defaultAttempts)
	o.EndpointConcurrency = max(cmp.Or(o.EndpointConcurrency, 4), 0)
	o.UserAgent = cmp.Or(o.UserAgent, "rebase-webhook")
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Client == nil {
		o.Client = NewClient(o.clientOptions())
	}
	if o.Backoff == nil {
		o.Backoff = retrySchedule
	}
	return nil
}

// clientOptions are those of the dispatcher's own client. The lanes bound the requests to an
// endpoint. A bound of the client's would be one for all endpoints at a host, so that dead
// ones could hold up the others.
func (o *Options) clientOptions() *ClientOptions {
	return &ClientOptions{Timeout: o.Timeout, MaxConnsPerHost: -1, Logger: o.Logger}
}

// Register makes the worker send deliveries. It panics if the deadline of an attempt is not
// below a third of the worker's visibility timeout, since a lease must outlive a request.
//
// Dead endpoints hold up to EndpointConcurrency slots each for a Timeout at a time: give the
// worker more slots than the endpoints that may be dead at once can hold.
func (d *Dispatcher) Register(w *rebase.Worker) {
	if lease := w.VisibilityTimeout(); d.opts.Timeout >= lease/3 {
		panic(fmt.Sprintf("webhook: Register: the timeout %v is not below a third of the visibility timeout %v", d.opts.Timeout, lease))
	}
	w.Register(Task, d.handle, &rebase.TaskOptions{
		Concurrency: d.opts.Concurrency, LaneConcurrency: d.opts.EndpointConcurrency,
		Timeout: d.opts.Timeout + storeTime, Backoff: d.opts.Backoff,
	})
}
