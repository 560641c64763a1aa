package webhook

// An attempt of a delivery: ask the store, build and sign the request, send it, and tell
// the queue what its answer means. The invariants: the endpoint's own headers come first
// and can replace nothing of ours; the signature is over the very bytes that are sent;
// and no error that leaves here holds a URL, a header or a body.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/rebasejobs/rebase"
)

// handle makes one attempt.
func (d *Dispatcher) handle(ctx context.Context, job *rebase.Job) error {
	var p payload
	if err := json.Unmarshal(job.Payload, &p); err != nil {
		return fmt.Errorf("webhook: decode delivery: %w", err)
	}
	// One that was enqueued by SQL need not have an id: the job's is as stable.
	p.ID = cmp.Or(p.ID, "job_"+strconv.FormatInt(job.ID, 10))
	endpoint, err := d.store.Endpoint(ctx, p.Endpoint)
	if err != nil {
		return storeError(ctx, err)
	}
	began := time.Now()
	status, err := d.attempt(ctx, &p, endpoint, job.Runs, databaseNow(job))
	d.tell(ctx, Attempt{JobID: job.ID, ID: p.ID, Endpoint: p.Endpoint, Event: p.Event, Number: job.Runs,
		Status: status, Took: time.Since(began), Err: err})
	return d.verdict(ctx, p.Endpoint, endpoint.URL, status, err)
}

// storeError ends a delivery whose endpoint is not to be used or can't be, ever; any other
// trouble of the store's passes. The error is kept whole then, so that an outage of the
// database is seen as one and uses no attempt.
func storeError(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*SecretError](err); ok {
		err = &EndpointError{Field: "Secrets", Reason: e.Reason}
	}
	if e, ok := errors.AsType[*EndpointError](err); ok {
		return rebase.Permanent(Outcome(ctx, nil, e))
	}
	for _, sentinel := range []error{ErrNotFound, ErrDisabled} {
		if errors.Is(err, sentinel) {
			return &endedError{sentinel.Error(), sentinel}
		}
	}
	return fmt.Errorf("webhook: store: %w", err)
}

// endedError ends a delivery as cancelled, with the reason alone as its text.
type endedError struct {
	reason string
	cause  error
}

func (e *endedError) Error() string   { return e.reason }
func (e *endedError) Unwrap() []error { return []error{e.cause, rebase.ErrCancelled} }

// attempt sends the request and judges the answer.
func (d *Dispatcher) attempt(ctx context.Context, p *payload, endpoint Endpoint, number int, at time.Time) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	defer cancel()
	req, err := d.request(ctx, p, endpoint, number, at)
	if err != nil {
		return 0, Outcome(ctx, nil, err)
	}
	resp, err := d.opts.Client.Do(req)
	if err != nil {
		return 0, Outcome(ctx, nil, err)
	}
	defer func() { _ = resp.Body.Close() }()
	// The status decides: with a 2xx the receiver has taken the event, whatever becomes of
	// the body behind it.
	err = Outcome(ctx, resp, nil)
	drain(resp.Body, cancel)
	return resp.StatusCode, err
}

// drainTime is how long an answer's body is waited for.
const drainTime = 250 * time.Millisecond

// drain reads an answer to its end, without which its connection could not be used again.
// For a body that drips or never ends a new connection is cheaper.
func drain(body io.Reader, cancel context.CancelFunc) {
	stop := time.AfterFunc(drainTime, cancel)
	defer stop.Stop()
	_, _ = io.CopyN(io.Discard, body, maxBody+1) // counted here too: the client may be another
}

func (d *Dispatcher) request(ctx context.Context, p *payload, endpoint Endpoint, number int, at time.Time) (*http.Request, error) {
	if err := endpoint.Validate(); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.URL, bytes.NewReader(p.Body))
	if err != nil {
		return nil, &EndpointError{Field: "URL", Reason: "can't be requested"} // the error quotes the URL
	}
	for name, values := range endpoint.Header {
		for _, v := range values {
			req.Header.Add(name, v) // in the spelling of the wire, which the map need not have
		}
	}
	req.Header.Set("Content-Type", cmp.Or(p.ContentType, "application/json"))
	req.Header.Set("User-Agent", d.opts.UserAgent)
	req.Header.Set(HeaderDelivery, p.ID)
	req.Header.Set(HeaderAttempt, strconv.Itoa(number))
	if err := Sign(req.Header, p.ID, at, p.Body, endpoint.Secrets...); err != nil {
		// The endpoint was validated, so this is a delivery that nobody enqueued by Send.
		return nil, &DeliveryError{Code: "misconfigured", Detail: "the delivery can't be signed: " + err.Error(), Permanent: true}
	}
	return req, nil
}

// tell calls the user's hook. The request was made and can't be taken back: a panic here
// must not have it made again.
func (d *Dispatcher) tell(ctx context.Context, a Attempt) {
	if d.opts.OnDelivery == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			d.opts.Logger.Error("webhook: OnDelivery panicked", "panic", fmt.Sprintf("%.200v", v), "job_id", a.JobID)
		}
	}()
	d.opts.OnDelivery(ctx, a)
}

// verdict tells the queue what to do. url is what the request went to.
func (d *Dispatcher) verdict(ctx context.Context, endpoint, url string, status int, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := d.store.(Disabler); ok && status == http.StatusGone && d.opts.DisableGone {
		if ended := d.gone(ctx, s, endpoint, url); ended != nil {
			return ended
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

// gone disables an endpoint that answered 410, or returns nil if it has moved since: then the
// old address is gone, and the new one is to be tried. (A move between the two calls of the
// store is missed; one during the request, which may take seconds, is not.) If the store fails
// the delivery is tried again, and so is this.
func (d *Dispatcher) gone(ctx context.Context, s Disabler, endpoint, url string) error {
	now, err := d.store.Endpoint(ctx, endpoint)
	switch {
	case errors.Is(err, ErrDisabled) || errors.Is(err, ErrNotFound): // no error for Disable
	case err != nil:
		return storeError(ctx, err)
	case now.URL != url:
		return nil
	}
	if err := s.Disable(ctx, endpoint, "status 410"); err != nil {
		return fmt.Errorf("webhook: store: disable: %w", err)
	}
	return &endedError{"webhook: status 410: endpoint was disabled", ErrDisabled}
}

// databaseNow is the database's clock: that of the claim, which was just now.
func databaseNow(job *rebase.Job) time.Time {
	if job.StartedAt != nil {
		return *job.StartedAt
	}
	return job.UpdatedAt
}

// Ping sends the event {"type":"ping"}, signed like any delivery, to the endpoint now, once,
// through the same guarded client, and returns nil if it answered with a 2xx: for a "send a
// test" button. It makes no job; its timestamp is by this host's clock. It returns a
// *DeliveryError, or the store's error.
func (d *Dispatcher) Ping(ctx context.Context, endpoint string) error {
	e, err := d.store.Endpoint(ctx, endpoint)
	if err != nil {
		return err
	}
	p := &payload{ID: newDeliveryID(), Endpoint: endpoint, Event: "ping", Body: []byte(`{"type":"ping"}`)}
	_, err = d.attempt(ctx, p, e, 1, time.Now())
	return err
}

// retryDelays are the waits after the first, second … attempt: 8 attempts in three days.
var retryDelays = []time.Duration{
	10 * time.Second, 2 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 20 * time.Hour, 44 * time.Hour,
}

// retrySchedule spreads each delay by a tenth either way, so that the deliveries of a dead
// host don't come back all at once.
func retrySchedule(attempt int) time.Duration {
	d := float64(retryDelays[min(max(attempt, 1), len(retryDelays))-1])
	return time.Duration(d * (0.9 + 0.2*rand.Float64()))
}
