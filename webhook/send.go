package webhook

// How a delivery becomes a job, and a finished one a job again. What can be wrong with
// a delivery by itself is found here, before any SQL; what is wrong with its endpoint
// shows at each attempt. The delivery's id is drawn once and is part of the job.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase"
)

// A Delivery is an event for one endpoint.
type Delivery struct {
	Endpoint string // its id in the store, 1 to 255 bytes
	Event    string // such as "order.paid": kept in the job and told to OnDelivery, not sent
	// Body is sent as it is, byte for byte, on every attempt. The job holds it in base64, so
	// three quarters of the queue's MaxPayload are the most: 768 KiB less some bytes.
	Body []byte
	// ContentType, if "", is application/json.
	ContentType string
	// Key makes the delivery idempotent: one unfinished delivery for each endpoint and key.
	Key string
	// Meta travels with the job, for tracing and the like, and is not sent; 16 KiB at most.
	Meta map[string]string
}

// Sent is what became of a Delivery.
type Sent struct {
	JobID     int64  // of a duplicate: that of the job that has the key, 0 if it can't be seen
	ID        string // of the delivery; "" for a duplicate
	Duplicate bool
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
// It returns a *rebase.PayloadError, before any SQL, for what can't be enqueued.
func (d *Dispatcher) Send(ctx context.Context, tx pgx.Tx, delivery Delivery) (Sent, error) {
	sent, err := d.SendAll(ctx, tx, []Delivery{delivery})
	if err != nil {
		return Sent{}, err
	}
	return sent[0], nil
}

// SendAll enqueues deliveries with one statement, in the caller's transaction or, if tx is
// nil, in one of its own. The results are in the order of the deliveries. It returns a
// *rebase.PayloadError that names the first delivery that can't be enqueued.
func (d *Dispatcher) SendAll(ctx context.Context, tx pgx.Tx, deliveries []Delivery) ([]Sent, error) {
	items, sent := make([]rebase.Item, len(deliveries)), make([]Sent, len(deliveries))
	for i, v := range deliveries {
		if field, reason := v.fault(); reason != "" {
			return nil, &rebase.PayloadError{Index: i, Task: Task, Field: field, Reason: reason}
		}
		sent[i].ID = newDeliveryID()
		items[i] = v.item(sent[i].ID, d.opts.MaxAttempts)
	}
	done, err := d.enqueue(ctx, tx, items)
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

// fault says what is wrong with a delivery; the queue looks at the rest.
func (v *Delivery) fault() (field, reason string) {
	switch {
	case v.Endpoint == "":
		return "endpoint", "it is empty"
	case strings.ContainsFunc(v.ContentType, control):
		// It would fail at every attempt, in net/http, as something of the network's.
		return "content_type", quoted(v.ContentType) + " contains a control character"
	}
	return "", ""
}

// item makes the job. The key's length prefix keeps two endpoints from sharing a key.
func (v *Delivery) item(id string, maxAttempts int) rebase.Item {
	opts := &rebase.EnqueueOptions{Lane: v.Endpoint, MaxAttempts: maxAttempts, Meta: v.Meta}
	if v.Key != "" {
		opts.IdempotencyKey = fmt.Sprintf("%d:%s:%s", len(v.Endpoint), v.Endpoint, v.Key)
	}
	return rebase.Item{Task: Task, Options: opts, Payload: payload{id, v.Endpoint, v.Event, v.ContentType, v.Body}}
}

func (d *Dispatcher) enqueue(ctx context.Context, tx pgx.Tx, items []rebase.Item) (done []rebase.Enqueued, err error) {
	if tx == nil {
		done, err = d.queue.EnqueueMany(ctx, items)
	} else {
		done, err = d.queue.EnqueueManyTx(ctx, tx, items)
	}
	if e, ok := errors.AsType[*rebase.PayloadError](err); ok && e.Field == "lane" {
		e.Field = "endpoint" // the caller knows it by this name
	}
	return done, err
}

// newDeliveryID is minted once, at enqueue. It has no dots, which separate what is signed.
func newDeliveryID() string { return "msg_" + rand.Text() }

// Redeliver sends a finished delivery again, whether it had succeeded or not. It is the same
// delivery: its id and body stay, and X-Webhook-Attempt goes on counting, so a receiver that
// has handled it drops it. It has all its attempts once more. The errors are those of
// [rebase.Queue.Retry]; a job that is no delivery is rebase.ErrNotFound.
func (d *Dispatcher) Redeliver(ctx context.Context, jobID int64) error {
	job, err := d.queue.Job(ctx, jobID)
	if err == nil && job.Task != Task {
		err = fmt.Errorf("job %d is no delivery: %w", jobID, rebase.ErrNotFound)
	}
	if err == nil {
		err = d.queue.Retry(ctx, jobID)
	}
	if err != nil {
		return fmt.Errorf("webhook: redeliver: %w", err)
	}
	return nil
}
