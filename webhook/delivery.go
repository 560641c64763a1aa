package webhook

// The request of an attempt: the endpoint's own headers first, then those that it can't name,
// then the signature over the very bytes that are sent. And the schedule of the attempts.

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/rebasejobs/rebase"
)

func (d *Dispatcher) request(ctx context.Context, p *payload, endpoint Endpoint, attempt int, at time.Time) (*http.Request, error) {
	if err := endpoint.Validate(); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.URL, bytes.NewReader(p.Body))
	if err != nil {
		return nil, &EndpointError{Field: "url", Reason: "it can't be requested"} // the error quotes the URL
	}
	if endpoint.Header != nil {
		req.Header = endpoint.Header.Clone()
	}
	req.Header.Set("Content-Type", cmp.Or(p.ContentType, "application/json"))
	req.Header.Set("User-Agent", d.opts.UserAgent)
	req.Header.Set(HeaderDelivery, p.ID)
	req.Header.Set(HeaderAttempt, strconv.Itoa(attempt))
	if err := Sign(req.Header, p.ID, at, p.Body, endpoint.Secrets...); err != nil {
		return nil, &EndpointError{Field: "secrets", Reason: err.Error()}
	}
	return req, nil
}

// Ping sends an empty event, signed like any delivery, to the endpoint now, once, through the
// same guarded client, and returns nil if it answered with a 2xx: for a "send a test" button.
func (d *Dispatcher) Ping(ctx context.Context, endpoint string) error {
	e, err := d.store.Endpoint(ctx, endpoint)
	if err != nil {
		return err
	}
	p := &payload{ID: newDeliveryID(), Endpoint: endpoint, Event: "ping", Body: []byte(`{"type":"ping"}`)}
	job := &rebase.Job{Runs: 1, UpdatedAt: time.Now()}
	_, err = d.attempt(ctx, job, p, e)
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
