package webhook_test

// What ends a delivery after one attempt, with the reason in its row, and what does not.

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

// requireEnd runs one attempt and asserts how it ended the delivery.
func (r *rig) requireEnd(d *webhook.Dispatcher, status rebase.Status, reason string) *rebase.Job {
	r.t.Helper()
	job := r.attempt(d, r.send(d).JobID)
	require.Equal(r.t, status, job.Status, job.LastError)
	require.Equal(r.t, reason, job.LastError)
	require.Equal(r.t, 1, job.Attempts)
	return job
}

// H3, W1, W4: addresses that are not public, by name or as they are.
func TestForbiddenDestinationsFailAfterOneAttemptWithTheKindOfAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.guarded(nil, names(map[string][]string{
		"private.test": {"10.0.0.5"}, "metadata.test": {"169.254.169.254"}, "mixed.test": {"93.184.216.34", "127.0.0.1"},
	}))
	trap := newTrap(t)
	for host, reason := range map[string]string{
		"private.test":                  "blocked: private",
		"metadata.test":                 "blocked: link-local",
		"mixed.test":                    "blocked: loopback",
		trap.Addr().String():            "blocked: loopback",
		"[::1]":                         "blocked: loopback",
		"[::ffff:169.254.169.254]":      "blocked: link-local",
		"[64:ff9b::7f00:1]":             "blocked: NAT64",
		"[2002:7f00:1::]":               "blocked: 6to4",
		"[2001:0:4136:e378::3f57:fefe]": "blocked: Teredo",
		"100.64.0.1":                    "blocked: carrier NAT",
		"0.0.0.1":                       "blocked: this network",
	} {
		r.requireEnd(r.to(host, &webhook.Options{Client: client}), "failed", "webhook: "+reason)
	}
	trap.requireUntouched(t)
}

// H3, W3: no redirect is followed, whatever its status, and wherever it leads.
func TestRedirectsFailAfterOneAttemptAndLeadNowhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	trap := newTrap(t)
	for code, reason := range map[int]string{
		300: "redirect 300", 301: "redirect 301", 302: "redirect 302", 303: "redirect 303", 304: "redirect 304", 307: "redirect 307", 308: "redirect 308",
	} {
		to := receive(t, func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", "http://"+trap.Addr().String()+"/"+pathToken)
			w.WriteHeader(code)
		})
		r.requireEnd(r.to(to.addr, nil), "failed", "webhook: "+reason)
		require.Len(t, to.all(), 1)
	}
	trap.requireUntouched(t)
}

// H3, W4, W8, W14: an endpoint that can't be used is refused when it is used, without a request.
func TestMisconfiguredEndpointsFailAfterOneAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	secrets := r.endpoint(to.addr).Secrets
	for _, c := range []struct {
		e      webhook.Endpoint
		reason string
	}{
		{webhook.Endpoint{URL: "ftp://" + to.addr + "/" + pathToken, Secrets: secrets}, `URL: scheme "ftp" is not http or https`},
		{webhook.Endpoint{URL: "file:///etc/" + pathToken, Secrets: secrets}, `URL: scheme "file" is not http or https`},
		{webhook.Endpoint{URL: "javascript:" + pathToken, Secrets: secrets}, `URL: scheme "javascript" is not http or https`},
		{webhook.Endpoint{URL: "http://user:" + pathToken + "@" + to.addr, Secrets: secrets}, "URL: has user information; use a header"},
		{webhook.Endpoint{URL: "http://\x00" + pathToken, Secrets: secrets}, "URL: is not a URL"},
		{webhook.Endpoint{URL: "http://" + to.addr}, "Secrets: none given"},
		{webhook.Endpoint{URL: "http://" + to.addr, Secrets: make([]webhook.Secret, 1)}, "Secrets: number 1 is the zero Secret"},
		{withHeader(secrets, to.addr, "Webhook-Signature", "v1,forged"), `Header: name "Webhook-Signature" is reserved`},
		{withHeader(secrets, to.addr, "x-webhook-attempt", "7"), `Header: name "x-webhook-attempt" is reserved`},
		{withHeader(secrets, to.addr, "Host", "elsewhere"), `Header: name "Host" is reserved`},
		{withHeader(secrets, to.addr, "X-A", headerToken+"\r\nX-B: 1"), `Header: value of "X-A" contains the control character '\r'`},
	} {
		d := r.dispatcher(webhook.Static(map[string]webhook.Endpoint{"shop": c.e}), nil)
		r.requireEnd(d, "failed", "webhook: misconfigured: "+c.reason)
	}
	require.Empty(t, to.all())
}

func withHeader(secrets []webhook.Secret, addr, name, value string) webhook.Endpoint {
	return webhook.Endpoint{URL: "http://" + addr, Secrets: secrets, Header: http.Header{name: {value}}}
}

// H3, W14: a store that can't read its own endpoint says so by the package's errors, and the
// delivery ends; no other attempt would find anything else.
func TestAStoresBadEndpointFailsAfterOneAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, text := range []string{"", "whsec_", "whsec_c2hvcnQ="} {
		_, err := webhook.ParseSecret(text)
		reason, _ := errors.AsType[*webhook.SecretError](err)
		require.NotNil(t, reason)
		d := r.dispatcher(&shelf{err: err}, nil)
		r.requireEnd(d, "failed", "webhook: misconfigured: Secrets: "+reason.Reason)
	}
}

// H3, W12: gone or disabled while the delivery waits: no request, and cancelled with the reason.
func TestGoneAndDisabledEndpointsEndTheDeliveryWithoutARequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, status(500))
	for _, reason := range []error{webhook.ErrNotFound, webhook.ErrDisabled} {
		store := &shelf{endpoint: r.endpoint(to.addr)}
		d := r.dispatcher(store, nil)
		sent := r.send(d)
		require.Equal(t, rebase.StatusPending, r.attempt(d, sent.JobID).Status)
		before := len(to.all())
		store.set(webhook.Endpoint{}, reason)
		job := r.attempt(d, sent.JobID)
		require.Equal(t, rebase.StatusCancelled, job.Status)
		require.Equal(t, reason.Error(), job.LastError)
		require.Len(t, to.all(), before)
	}
}

// W12: a store that fails is trouble that passes: the attempt is tried again like any other.
func TestAFailingStoreIsAnOrdinaryRetry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	store := &shelf{err: errors.New("the shelf is locked")}
	d := r.dispatcher(store, nil)
	sent := r.send(d)
	job := r.attempt(d, sent.JobID)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Equal(t, "webhook: store: the shelf is locked", job.LastError)
	require.Equal(t, 1, job.Attempts)
	store.set(r.endpoint(to.addr), nil)
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, sent.JobID).Status)
	require.Len(t, to.all(), 1)
}

// W16: 410 is a failure like any other, unless the option says that it disables the endpoint,
// which ends the delivery in the same step, and those that wait.
func TestGoneAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, status(http.StatusGone))
	store := &shelf{endpoint: r.endpoint(to.addr)}
	d := r.dispatcher(store, nil)
	job := r.attempt(d, r.send(d).JobID)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Equal(t, "webhook: status 410", job.LastError)
	require.Empty(t, store.disabled)

	d = r.dispatcher(store, &webhook.Options{DisableGone: true})
	waiting := r.send(d)
	_, err := r.pool.Exec(t.Context(), `update rebase.jobs set run_at = now() + interval '1 h' where id = $1`, waiting.JobID)
	require.NoError(t, err)
	r.requireEnd(d, "cancelled", "webhook: status 410: endpoint was disabled")
	require.Equal(t, "status 410", store.disabled)
	job = r.attempt(d, waiting.JobID)
	require.Equal(t, rebase.StatusCancelled, job.Status)
	require.Equal(t, webhook.ErrDisabled.Error(), job.LastError)
	require.Len(t, to.all(), 2)
}

// W16: a store that can't disable leaves a 410 to be tried again, and so does one that fails to.
func TestGoneAnswerWithAStoreThatCanNotDisable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, status(http.StatusGone))
	d := r.to(to.addr, &webhook.Options{DisableGone: true})
	require.Equal(t, rebase.StatusPending, r.attempt(d, r.send(d).JobID).Status)
	d = r.dispatcher(stuckShelf{webhook.Static(map[string]webhook.Endpoint{"shop": r.endpoint(to.addr)})}, &webhook.Options{DisableGone: true})
	job := r.attempt(d, r.send(d).JobID)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Equal(t, "webhook: store: disable: stuck", job.LastError)
}

// H1, W16: an endpoint that moves while its old address thinks is not disabled by that one's 410:
// what is sent, and judged, is the endpoint as it is now.
func TestGoneAnswerOfAnAddressThatTheEndpointHasLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.pgStore()
	moved := receive(t, nil)
	left := receive(t, func(_ int, w http.ResponseWriter) {
		if err := s.Put(context.Background(), "shop", r.endpoint(moved.addr)); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusGone)
	})
	require.NoError(t, s.Put(t.Context(), "shop", r.endpoint(left.addr)))
	d := r.dispatcher(s, &webhook.Options{DisableGone: true})
	sent := r.send(d)
	job := r.attempt(d, sent.JobID)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Equal(t, "webhook: status 410", job.LastError)
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, sent.JobID).Status)
	require.Len(t, left.all(), 1)
	require.Len(t, moved.all(), 1)
}

// W12, W16: a store that fails when it is asked whether the endpoint has moved disables nothing.
func TestGoneAnswerWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	store := &shelf{}
	to := receive(t, func(_ int, w http.ResponseWriter) {
		store.set(webhook.Endpoint{}, errors.New("away"))
		w.WriteHeader(http.StatusGone)
	})
	store.set(r.endpoint(to.addr), nil)
	d := r.dispatcher(store, &webhook.Options{DisableGone: true})
	job := r.attempt(d, r.send(d).JobID)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Equal(t, "webhook: store: away", job.LastError)
	require.Empty(t, store.disabled)
}

// H3, W11: Retry-After is a floor of the delay, and capped.
func TestRetryAfterIsAFloor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for value, want := range map[string]time.Duration{
		"7200": 2 * time.Hour, "120": time.Hour, "9999999999": webhook.MaxRetryAfter, "-5": time.Hour, "soon": time.Hour,
	} {
		to := receive(t, func(_ int, w http.ResponseWriter) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		d := r.to(to.addr, nil) // whose own delay is an hour
		job := r.attempt(d, r.send(d).JobID)
		require.Equal(t, rebase.StatusPending, job.Status)
		require.Equal(t, want, job.RunAt.Sub(job.UpdatedAt), value)
	}
}

// A panic in the hook comes after the request: it must not have the delivery sent again.
func TestAPanicInTheHookDoesNotSendAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.to(to.addr, &webhook.Options{OnDelivery: func(_ context.Context, a webhook.Attempt) { panic("the hook's") }})
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, r.send(d).JobID).Status)
	require.Len(t, to.all(), 1)
	require.True(t, strings.Contains(r.said.String(), "OnDelivery panicked"))
}
