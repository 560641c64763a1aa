package webhook_test

// W17 at the HTTP level: the body is read under a cap and put back, and the
// middleware lets nothing unverified through. The last test is the whole way,
// signed by one end and verified by the other over a real connection.

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

// body counts its closes and can't be read again.
type body struct {
	io.Reader
	closed int
}

func (b *body) Close() error {
	b.closed++
	return nil
}

func vectorRequest(t *testing.T, from io.Reader) (*http.Request, *body) {
	t.Helper()
	b := &body{Reader: from}
	r := httptest.NewRequest(http.MethodPost, "/hooks", b)
	r.Body, r.Header = b, vectorHeader()
	return r, b
}

func requireBody(t *testing.T, r *http.Request, original *body, want string) {
	t.Helper()
	got, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
	require.Zero(t, original.closed)
	require.NoError(t, r.Body.Close())
	require.Equal(t, 1, original.closed, "closing reaches the original")
}

func TestW17VerifyRequestPutsTheBodyBack(t *testing.T) {
	t.Parallel()
	r, original := vectorRequest(t, iotest.OneByteReader(strings.NewReader(vectorBody)))
	got, err := vectorVerifier(mustParse(t, vectorSecret)).VerifyRequest(r)
	require.NoError(t, err)
	require.Equal(t, vectorBody, string(got.Body))
	requireBody(t, r, original, vectorBody)
}

func TestW17ARefusedRequestKeepsItsBodyToo(t *testing.T) {
	t.Parallel()
	r, original := vectorRequest(t, strings.NewReader("forged"))
	_, err := vectorVerifier(mustParse(t, vectorSecret)).VerifyRequest(r)
	requireRefused(t, err, "webhook-signature", webhook.ErrSignature)
	requireBody(t, r, original, "forged")
}

func TestW17ABodyOverTheCapIsRefusedAndStillWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit int64
		size  int
		want  error
	}{
		{10, 11, webhook.ErrBodyTooLarge},
		{10, 10, webhook.ErrSignature}, // read, and found forged
		{0, 1<<20 + 1, webhook.ErrBodyTooLarge},
		{0, 1 << 20, webhook.ErrSignature},
		{-1, 3 << 20, webhook.ErrSignature},
	} {
		v := vectorVerifier(mustParse(t, vectorSecret))
		v.MaxBody = c.limit
		text := strings.Repeat("x", c.size)
		r, original := vectorRequest(t, strings.NewReader(text))
		_, err := v.VerifyRequest(r)
		require.ErrorIs(t, err, c.want, "%+v", c)
		requireBody(t, r, original, text)
	}
}

func TestW17ABodyThatBreaksOffIsAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection lost")
	v := vectorVerifier(mustParse(t, vectorSecret))
	r, _ := vectorRequest(t, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
	_, err := v.VerifyRequest(r)
	requireRefused(t, err, "body", webhook.ErrBodyRead)
	got, err := io.ReadAll(r.Body)
	require.Equal(t, "half", string(got))
	require.ErrorIs(t, err, broken, "the next reader sees what happened")

	r, original := vectorRequest(t, strings.NewReader(vectorBody))
	r.Body = http.MaxBytesReader(nil, original, 5) // a cap of the server's own
	_, err = v.VerifyRequest(r)
	requireRefused(t, err, "body", webhook.ErrBodyTooLarge)
}

func TestW17TheBodyIsNotReadWhenTheHeadersFail(t *testing.T) {
	t.Parallel()
	v := vectorVerifier(mustParse(t, vectorSecret))
	v.Now = time.Now // years later
	r, _ := vectorRequest(t, iotest.ErrReader(errors.New("was read")))
	_, err := v.VerifyRequest(r)
	requireRefused(t, err, "webhook-timestamp", webhook.ErrTooOld)

	r.Body = nil // made by hand
	v.Tolerance = -1
	_, err = v.VerifyRequest(r)
	requireRefused(t, err, "webhook-signature", webhook.ErrSignature)
}

func TestW17MiddlewareLetsOnlyVerifiedDeliveriesThrough(t *testing.T) {
	t.Parallel()
	v := vectorVerifier(mustParse(t, vectorSecret))
	v.MaxBody = 100
	calls := 0
	h := v.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		got, ok := webhook.FromContext(r.Context())
		require.True(t, ok)
		read, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, vectorBody, string(read))
		require.Equal(t, read, got.Body)
		require.Equal(t, vectorID, got.ID)
		w.WriteHeader(http.StatusAccepted)
	}))
	for _, c := range []struct {
		change func(http.Header)
		body   string
		status int
	}{
		{func(http.Header) {}, vectorBody, 202},
		{func(http.Header) {}, "forged", 401},
		{func(h http.Header) { h.Set("webhook-timestamp", "1") }, vectorBody, 401},
		{func(h http.Header) { h.Set("webhook-timestamp", "99999999999") }, vectorBody, 401},
		{func(h http.Header) { h.Del("webhook-signature") }, vectorBody, 400},
		{func(h http.Header) { h.Set("webhook-id", "a.b") }, vectorBody, 400},
		{func(http.Header) {}, strings.Repeat("x", 101), 413},
	} {
		r, _ := vectorRequest(t, strings.NewReader(c.body))
		c.change(r.Header)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, c.status, w.Code, "%+v", c.body)
		if c.status != 202 {
			require.Equal(t, http.StatusText(c.status)+"\n", w.Body.String(), "no hint beyond the status")
		}
	}
	require.Equal(t, 1, calls)
	_, ok := webhook.FromContext(t.Context())
	require.False(t, ok)

	v.Secrets = nil // taken away later: the receiver's own mistake
	w := httptest.NewRecorder()
	r, _ := vectorRequest(t, strings.NewReader(vectorBody))
	h.ServeHTTP(w, r)
	require.Equal(t, 500, w.Code)
}

func TestADeliverySignedByOneEndIsVerifiedByTheOther(t *testing.T) { // H2, H4
	t.Parallel()
	old, fresh := webhook.NewSecret(), webhook.NewSecret()
	got := make(chan webhook.Verified, 1)
	v := &webhook.Verifier{Secrets: []webhook.Secret{old}} // has not heard of the new one yet
	target := serve(t, v.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d, _ := webhook.FromContext(r.Context())
		require.Equal(t, "Bearer x", r.Header.Get("Authorization"))
		got <- d
	})).ServeHTTP)
	endpoint := webhook.Endpoint{
		URL:     "http://" + target,
		Secrets: []webhook.Secret{fresh, old},
		Header:  http.Header{"Authorization": {"Bearer x"}},
	}
	require.NoError(t, endpoint.Validate())
	payload := []byte("{\"b\": 1,\n \"a\": \"\xff\"}") // raw bytes, whatever they are
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint.URL, bytes.NewReader(payload))
	require.NoError(t, err)
	req.Header = endpoint.Header.Clone()
	at := time.Now()
	require.NoError(t, webhook.Sign(req.Header, "42", at, payload, endpoint.Secrets...))
	resp, err := newClient(t, webhook.ClientOptions{Allow: loopback}).Do(req)
	require.NoError(t, webhook.Outcome(t.Context(), resp, err))
	require.NoError(t, resp.Body.Close())
	require.Equal(t, webhook.Verified{ID: "42", Timestamp: at.Truncate(time.Second).UTC(), Body: payload}, <-got)
}
