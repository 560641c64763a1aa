package webhook

// Deliveries as jobs. A job holds the endpoint's id, the event and the body's exact bytes,
// never the endpoint: its URL and its secrets are asked for at each attempt. The lane of a
// delivery is its endpoint, so that a dead endpoint holds up nobody but itself.

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase"
)

// Task is the name of the task whose jobs are deliveries.
const Task = "webhook-delivery"

// defaultAttempts and the delays between them stretch over three days.
const defaultAttempts = 8

// Options configure a Dispatcher. Nil, and every zero field, is the default.
type Options struct {
	// Client sends the requests. If nil, NewClient(nil): guarded, with a deadline of 10 s.
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
	// the delivery as cancelled. Otherwise a 410 is tried again like any failure.
	DisableGone bool
	// UserAgent is sent with each request. If "", "rebase-webhook".
	UserAgent string
	// OnDelivery, if not nil, is called after each attempt, on the handler's goroutine.
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
	Err      error         // nil if it was delivered
}

// A Delivery is an event for one endpoint.
type Delivery struct {
	Endpoint string // its id in the store, 1 to 255 bytes
	Event    string // such as "order.paid", for logs and the receiver's header
	// Body is sent as it is, byte for byte, on every attempt.
	Body []byte
	// ContentType, if "", is application/json.
	ContentType string
	// Key makes the delivery idempotent: one unfinished delivery for each endpoint and key.
	Key string
}

// Sent is what became of a Delivery.
type Sent struct {
	JobID     int64  // 0 for a duplicate that can't be seen
	ID        string // of the delivery; "" for a duplicate
	Duplicate bool
}

// A Dispatcher enqueues deliveries and, registered with a worker, sends them.
type Dispatcher struct {
	queue *rebase.Queue
	store Store
	opts  Options
}

// New makes a dispatcher. It does no I/O.
func New(queue *rebase.Queue, store Store, opts *Options) *Dispatcher {
	if queue == nil || store == nil {
		panic("webhook: New: nil queue or store")
	}
	d := &Dispatcher{queue: queue, store: store}
	if opts != nil {
		d.opts = *opts
	}
	o := &d.opts
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, defaultAttempts)
	o.EndpointConcurrency = max(cmp.Or(o.EndpointConcurrency, 4), 0)
	o.UserAgent = cmp.Or(o.UserAgent, "rebase-webhook")
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Client == nil {
		o.Client = NewClient(&ClientOptions{Timeout: o.Timeout, Logger: o.Logger})
	}
	if o.Backoff == nil {
		o.Backoff = retrySchedule
	}
	return d
}

// payload is a delivery as it stands in the job. []byte is base64 in JSON, which keeps the
// bytes as they are; jsonb would not keep a body's order of keys.
type payload struct {
	ID          string `json:"id"`
	Endpoint    string `json:"endpoint"`
	Event       string `json:"event"`
	ContentType string `json:"content_type,omitempty"`
	Body        []byte `json:"body"`
}

// Send enqueues a delivery in the caller's transaction or, if tx is nil, in one of its own.
func (d *Dispatcher) Send(ctx context.Context, tx pgx.Tx, delivery Delivery) (Sent, error) {
	sent, err := d.SendAll(ctx, tx, []Delivery{delivery})
	if err != nil {
		return Sent{}, err
	}
	return sent[0], nil
}

// SendAll enqueues deliveries with one statement, in the caller's transaction or, if tx is
// nil, in one of its own. The results are in the order of the deliveries.
func (d *Dispatcher) SendAll(ctx context.Context, tx pgx.Tx, deliveries []Delivery) ([]Sent, error) {
	items, sent := make([]rebase.Item, len(deliveries)), make([]Sent, len(deliveries))
	for i, v := range deliveries {
		if v.Endpoint == "" {
			return nil, &rebase.PayloadError{Index: i, Task: Task, Field: "endpoint", Reason: "it is empty"}
		}
		sent[i].ID = newDeliveryID()
		opts := &rebase.EnqueueOptions{Lane: v.Endpoint, MaxAttempts: d.opts.MaxAttempts}
		if v.Key != "" {
			opts.IdempotencyKey = fmt.Sprintf("%d:%s:%s", len(v.Endpoint), v.Endpoint, v.Key)
		}
		items[i] = rebase.Item{Task: Task, Options: opts, Payload: payload{sent[i].ID, v.Endpoint, v.Event, v.ContentType, v.Body}}
	}
	var done []rebase.Enqueued
	var err error
	if tx == nil {
		done, err = d.queue.EnqueueMany(ctx, items)
	} else {
		done, err = d.queue.EnqueueManyTx(ctx, tx, items)
	}
	if err != nil {
		return nil, err
	}
	for i, e := range done {
		if sent[i].JobID = e.ID; e.Duplicate {
			sent[i].ID, sent[i].Duplicate = "", true
		}
	}
	return sent, nil
}

// newDeliveryID is minted once, at enqueue. It has no dots, which separate what is signed.
func newDeliveryID() string { return "msg_" + rand.Text() }

// Register makes the worker send deliveries. It panics if the deadline of an attempt is not
// below a third of the worker's visibility timeout, since a lease must outlive a request.
func (d *Dispatcher) Register(w *rebase.Worker) {
	if lease := w.VisibilityTimeout(); d.opts.Timeout >= lease/3 {
		panic(fmt.Sprintf("webhook: Register: the timeout %v is not below a third of the visibility timeout %v", d.opts.Timeout, lease))
	}
	w.Register(Task, d.handle, &rebase.TaskOptions{
		Concurrency: d.opts.Concurrency, LaneConcurrency: d.opts.EndpointConcurrency,
		Timeout: d.opts.Timeout + 5*time.Second, Backoff: d.opts.Backoff,
	})
}

// handle makes one attempt.
func (d *Dispatcher) handle(ctx context.Context, job *rebase.Job) error {
	var p payload
	if err := json.Unmarshal(job.Payload, &p); err != nil {
		return fmt.Errorf("decode delivery: %w", err)
	}
	endpoint, err := d.store.Endpoint(ctx, p.Endpoint)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrDisabled) {
		return ended(err)
	}
	if err != nil {
		return fmt.Errorf("webhook: store: %w", err)
	}
	began := time.Now()
	status, err := d.attempt(ctx, job, &p, endpoint)
	if d.opts.OnDelivery != nil {
		d.opts.OnDelivery(ctx, Attempt{JobID: job.ID, ID: p.ID, Endpoint: p.Endpoint, Event: p.Event, Number: job.Runs,
			Status: status, Took: time.Since(began), Err: err})
	}
	return d.verdict(ctx, p.Endpoint, status, err)
}

// ended cancels a delivery with its reason, which is one of the sentinels' own texts.
func ended(err error) error {
	reason := ErrNotFound
	if errors.Is(err, ErrDisabled) {
		reason = ErrDisabled
	}
	return fmt.Errorf("%w: %w", reason, rebase.ErrCancelled)
}

// attempt sends the request and judges the answer.
func (d *Dispatcher) attempt(ctx context.Context, job *rebase.Job, p *payload, endpoint Endpoint) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	defer cancel()
	req, err := d.request(ctx, p, endpoint, job.Runs, databaseNow(job))
	if err != nil {
		return 0, Outcome(ctx, nil, err)
	}
	resp, err := d.opts.Client.Do(req)
	if err != nil {
		return 0, Outcome(ctx, nil, err)
	}
	defer resp.Body.Close()
	if err := Outcome(ctx, resp, nil); err != nil {
		return resp.StatusCode, err
	}
	// The answer is a 2xx: the receiver has taken the event, whatever becomes of its body.
	return resp.StatusCode, nil
}

// verdict tells the queue what to do.
func (d *Dispatcher) verdict(ctx context.Context, endpoint string, status int, err error) error {
	if err == nil {
		return nil
	}
	if status == http.StatusGone && d.opts.DisableGone {
		if s, ok := d.store.(Disabler); ok {
			if disableErr := s.Disable(ctx, endpoint, "status 410"); disableErr != nil {
				return fmt.Errorf("webhook: store: disable: %w", disableErr)
			}
			return ended(ErrDisabled)
		}
	}
	failure, ok := errors.AsType[*DeliveryError](err)
	switch {
	case ok && failure.Permanent:
		return rebase.Permanent(err)
	case ok && failure.RetryAfter > 0:
		return rebase.RetryAfter(failure.RetryAfter, err)
	}
	return err
}

// databaseNow is the database's clock: that of the claim, which was just now.
func databaseNow(job *rebase.Job) time.Time {
	if job.StartedAt != nil {
		return *job.StartedAt
	}
	return job.UpdatedAt
}
