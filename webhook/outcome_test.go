package webhook_test

// What is said of an attempt: the right word, and nothing but words of our own.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

func answer(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

// refusing is an address on which nobody listens any more.
func refusing(t *testing.T) string {
	t.Helper()
	l := listen(t)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func TestOutcomeNamesEachFailureByItsCode(t *testing.T) { // H3: what is permanent and what is not
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback, Resolver: names(map[string][]string{"empty.example": {}})})
	raw := func(text string) string {
		return serveRaw(t, func(c net.Conn) { _, _ = io.WriteString(c, text) })
	}
	for _, c := range []struct{ url, code string }{
		{"http://" + serve(t, answer(400)), "status 400"},
		{"http://" + serve(t, answer(404)), "status 404"},
		{"http://" + serve(t, answer(410)), "status 410"}, // W16: a failure like any other by default
		{"http://" + serve(t, answer(429)), "status 429"},
		{"http://" + serve(t, answer(500)), "status 500"},
		{"http://" + serve(t, answer(599)), "status 599"},
		{"http://" + refusing(t), "refused"},
		{"http://missing.example", "dns"},
		{"http://empty.example", "dns"},
		{"https://" + serve(t, thanks), "tls"},
		{"http://" + raw(""), "reset"},
		{"http://" + raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"), "reset"},
		{"http://" + raw("SSH-2.0-OpenSSH_9.2\r\n"), "protocol"},
	} {
		_, err := post(t, client, c.url)
		e := requireCode(t, err, c.code, false)
		require.EqualError(t, e, "webhook: "+c.code)
		require.NoError(t, errors.Unwrap(e), "an error of net/http would bring the URL along")
	}
}

func TestOutcomeIsNilForEvery2xx(t *testing.T) {
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	for _, status := range []int{200, 201, 202, 204, 299} {
		_, err := post(t, client, "http://"+serve(t, answer(status)))
		require.NoError(t, err, "%d", status)
	}
}

func TestOutcomeUnwrapsToTheCauseOfTheContext(t *testing.T) { // J13: the job's context ends with a cause
	t.Parallel()
	entered := make(chan struct{}, 2)
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-r.Context().Done()
	})
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	reason := errors.New("shutting down")

	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-entered
		cancel(reason)
	}()
	_, err := postContext(ctx, t, client, "http://"+hang)
	requireCode(t, err, "cancelled", false)
	require.ErrorIs(t, err, reason)

	ctx, stop := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, reason)
	defer stop()
	_, err = postContext(ctx, t, client, "http://"+hang)
	requireCode(t, err, "timeout", false)
	require.ErrorIs(t, err, reason)
}

// J9: the worker takes an error that matches context.DeadlineExceeded for one that may come from
// its database. That of a delivery never does, whichever deadline passed.
func TestOutcomeOfADeadlineMatchesNoWaitForADatabase(t *testing.T) {
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	ended, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	job, timeOut := context.WithCancelCause(t.Context())
	timeOut(rebase.ErrTimeout)
	for _, ctx := range []context.Context{ended, job} {
		_, err := postContext(ctx, t, client, "http://"+refusing(t))
		requireCode(t, err, "timeout", false)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
}

func TestOutcomeKeepsADeliveryErrorAsItIs(t *testing.T) {
	t.Parallel()
	first := webhook.Outcome(t.Context(), &http.Response{StatusCode: 302}, nil)
	require.Same(t, first, webhook.Outcome(t.Context(), nil, fmt.Errorf("again: %w", first)))
}

func TestW9ATokenInTheURLIsInNoError(t *testing.T) {
	t.Parallel()
	const token = "s3cr3t-t0k3n"
	client := impatient(t, webhook.ClientOptions{Resolver: names(map[string][]string{"private.example": {"10.0.0.1"}})})
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	echo := func(status int) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://[broken/"+r.URL.Path)
			w.Header().Set("Retry-After", r.URL.Path)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, r.URL.String())
		})
	}
	garbage := serveRaw(t, func(c net.Conn) { _, _ = io.WriteString(c, token+" is not HTTP\r\n\r\n") })
	leaked := 0
	for _, host := range []string{
		"http://" + hang, "http://" + refusing(t), "http://" + echo(500), "http://" + echo(302), "http://" + garbage,
		"http://missing.example", "http://private.example", "https://" + echo(200), "ftp://example.com",
		"http://" + token + ":" + token + "@example.com",
	} {
		url := host + "/" + token + "?key=" + token
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(token))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil && strings.Contains(err.Error(), token) {
			leaked++ // the raw error does hold it
		}
		outcome := webhook.Outcome(t.Context(), resp, err)
		require.Error(t, outcome, host)
		for ; outcome != nil; outcome = errors.Unwrap(outcome) {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
				require.NotContains(t, fmt.Sprintf(verb, outcome), token, "%s of %s", verb, host)
			}
		}
		if resp != nil {
			require.NoError(t, resp.Body.Close())
		}
	}
	require.Greater(t, leaked, 4, "if net/http hides URLs by itself, this test shows nothing")
}

func TestW13AResponseOfNULAndInvalidUTF8LeavesNoTrace(t *testing.T) {
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	for text, code := range map[string]string{
		"HTTP/1.1 503 \x01\xff\xfe\r\nRetry-After: \xff\r\nContent-Length: 4\r\n\r\n\x00\xff\x00\xfe": "status 503",
		"HTTP/1.1 500 \xc3\x28\r\nContent-Length: 0\r\n\r\n":                                          "status 500",
		"HTTP/1.1 200\x00 \xff\r\n\r\n":                                                               "protocol",
		"\x00\xff\xfe\x00\r\n\r\n":                                                                    "protocol",
		"HTTP/1.1 200 OK\r\nX-A\x00: \xff\r\n\r\n":                                                    "protocol",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\x00\xffzz\r\n":                         "protocol",
	} {
		_, err := post(t, client, "http://"+serveRaw(t, func(c net.Conn) { _, _ = io.WriteString(c, text) }))
		e := requireCode(t, err, code, false)
		require.True(t, utf8.ValidString(e.Error()))
		require.NotContains(t, e.Error(), "\x00")
	}
}

func TestW11RetryAfterIsAFloorCappedAndIgnoredIfSenseless(t *testing.T) {
	t.Parallel()
	const date = "Sat, 29 Nov 2025 12:00:00 GMT"
	for value, want := range map[string]time.Duration{
		"120":                              2 * time.Minute,
		" 120 ":                            2 * time.Minute,
		"0":                                0,
		"86400":                            24 * time.Hour,
		"86401":                            webhook.MaxRetryAfter,
		"9999999999":                       webhook.MaxRetryAfter, // overflows a time.Duration
		"99999999999999999999999":          webhook.MaxRetryAfter, // overflows an int64
		"Sat, 29 Nov 2025 12:02:00 GMT":    2 * time.Minute,
		"Saturday, 29-Nov-25 12:02:00 GMT": 2 * time.Minute,
		"Sat Nov 29 12:02:00 2025":         2 * time.Minute,
		"Sat, 29 Nov 2025 11:00:00 GMT":    0,
		"Fri, 31 Dec 9999 23:59:59 GMT":    webhook.MaxRetryAfter,
		"-5":                               0,
		"+5":                               0,
		"1.5":                              0,
		"1e3":                              0,
		"soon":                             0,
		"":                                 0,
		"12 0":                             0,
	} {
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		err := webhook.Outcome(t.Context(), &http.Response{StatusCode: 503, Header: h}, nil)
		require.Equal(t, want, requireCode(t, err, "status 503", false).RetryAfter, "%q", value)
	}
}

func TestW11ARetryAfterDateIsComparedWithTheEndpointsOwnClock(t *testing.T) { // J22: hosts may be an hour off
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	theirs := time.Now().Add(-72 * time.Hour).UTC()
	late := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", theirs.Format(http.TimeFormat))
		w.Header().Set("Retry-After", theirs.Add(90*time.Second).Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err := post(t, client, "http://"+late)
	require.Equal(t, 90*time.Second, requireCode(t, err, "status 429", false).RetryAfter)

	// Without a Date the local clock has to do.
	h := http.Header{"Retry-After": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}}
	err = webhook.Outcome(t.Context(), &http.Response{StatusCode: 503, Header: h}, nil)
	require.InDelta(t, time.Hour, requireCode(t, err, "status 503", false).RetryAfter, float64(time.Minute))
}

func TestW11RetryAfterOverTheWire(t *testing.T) {
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	for _, status := range []int{429, 500, 503} {
		busy := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(status)
		})
		_, err := post(t, client, "http://"+busy)
		require.Equal(t, 2*time.Minute, requireCode(t, err, "status "+strconv.Itoa(status), false).RetryAfter)
	}
}
