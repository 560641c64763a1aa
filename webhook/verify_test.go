package webhook_test

// W17: what Verify accepts, and which error says why it refuses.

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

func vectorHeader() http.Header {
	h := http.Header{}
	h.Set("webhook-id", vectorID)
	h.Set("webhook-timestamp", vectorTimestamp)
	h.Set("webhook-signature", vectorSignature)
	return h
}

// vectorVerifier has a clock that stands at the vector's time.
func vectorVerifier(secrets ...webhook.Secret) *webhook.Verifier {
	return &webhook.Verifier{Secrets: secrets, Now: func() time.Time { return vectorTime }}
}

func requireRefused(t *testing.T, err error, field string, want error) {
	t.Helper()
	require.ErrorIs(t, err, want)
	e, ok := errors.AsType[*webhook.VerifyError](err)
	require.True(t, ok, "%T", err)
	require.Equal(t, field, e.Field)
	require.True(t, strings.HasPrefix(e.Error(), "webhook: verify: "+field+": "+want.Error()), e.Error())
}

func TestW17VerifyAgreesWithThePublishedVector(t *testing.T) {
	t.Parallel()
	got, err := vectorVerifier(mustParse(t, vectorSecret)).Verify(vectorHeader(), []byte(vectorBody))
	require.NoError(t, err)
	require.Equal(t, webhook.Verified{ID: vectorID, Timestamp: vectorTime.UTC(), Body: []byte(vectorBody)}, got)
}

func TestW17VerifyTakesTheRawBytesOnly(t *testing.T) {
	t.Parallel()
	v := vectorVerifier(mustParse(t, vectorSecret))
	for _, body := range []string{`{"test":2432232314}`, vectorBody + "\n", " " + vectorBody, "", `{"test": 2432232315}`} {
		_, err := v.Verify(vectorHeader(), []byte(body))
		requireRefused(t, err, "webhook-signature", webhook.ErrSignature)
	}
	for i := range vectorBody { // every single byte counts
		body := []byte(vectorBody)
		body[i] ^= 1
		_, err := v.Verify(vectorHeader(), body)
		require.ErrorIs(t, err, webhook.ErrSignature)
	}
}

func TestW17TheIDAndTheTimestampAreSigned(t *testing.T) {
	t.Parallel()
	v := vectorVerifier(mustParse(t, vectorSecret))
	for name, value := range map[string]string{"webhook-id": vectorID + "x", "webhook-timestamp": "1614265331"} {
		h := vectorHeader()
		h.Set(name, value)
		_, err := v.Verify(h, []byte(vectorBody))
		requireRefused(t, err, "webhook-signature", webhook.ErrSignature)
	}
	// The same second in other digits is another signed text.
	h := vectorHeader()
	h.Set("webhook-timestamp", "0"+vectorTimestamp)
	_, err := v.Verify(h, []byte(vectorBody))
	require.ErrorIs(t, err, webhook.ErrSignature)
}

func TestW17AnyOfSeveralSecretsMayMatch(t *testing.T) {
	t.Parallel()
	good := mustParse(t, vectorSecret)
	for _, secrets := range [][]webhook.Secret{
		{good, webhook.NewSecret()}, {webhook.NewSecret(), good}, {webhook.NewSecret(), good, webhook.NewSecret()}, {good, good},
	} {
		_, err := vectorVerifier(secrets...).Verify(vectorHeader(), []byte(vectorBody))
		require.NoError(t, err)
	}
	_, err := vectorVerifier(webhook.NewSecret(), webhook.NewSecret()).Verify(vectorHeader(), []byte(vectorBody))
	requireRefused(t, err, "webhook-signature", webhook.ErrSignature)
}

func TestW17TheToleranceHoldsBothWays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tolerance, age time.Duration
		want           error
	}{
		{0, 5 * time.Minute, nil},
		{0, 5*time.Minute + time.Nanosecond, webhook.ErrTooOld},
		{0, -5 * time.Minute, nil},
		{0, -5*time.Minute - time.Nanosecond, webhook.ErrTooNew},
		{time.Second, time.Second, nil},
		{time.Second, 2 * time.Second, webhook.ErrTooOld},
		{time.Second, -2 * time.Second, webhook.ErrTooNew},
		{time.Hour, 59 * time.Minute, nil},
		{-1, 1000 * time.Hour, nil},
		{-1, -1000 * time.Hour, nil},
	} {
		v := vectorVerifier(mustParse(t, vectorSecret))
		v.Tolerance = c.tolerance
		v.Now = func() time.Time { return vectorTime.Add(c.age) }
		_, err := v.Verify(vectorHeader(), []byte(vectorBody))
		if c.want == nil {
			require.NoError(t, err, "%+v", c)
			continue
		}
		requireRefused(t, err, "webhook-timestamp", c.want)
	}
}

func TestW17TheDefaultClockIsTheHosts(t *testing.T) {
	t.Parallel()
	s := webhook.NewSecret()
	v := &webhook.Verifier{Secrets: []webhook.Secret{s}}
	h := http.Header{}
	require.NoError(t, webhook.Sign(h, "a", time.Now(), nil, s))
	_, err := v.Verify(h, nil)
	require.NoError(t, err)
	_, err = v.Verify(vectorHeader(), []byte(vectorBody))
	require.ErrorIs(t, err, webhook.ErrTooOld)
}

func TestW17MalformedHeadersHaveTypedErrors(t *testing.T) {
	t.Parallel()
	v := vectorVerifier(mustParse(t, vectorSecret))
	for _, c := range []struct {
		name   string
		values []string
		want   error
	}{
		{"webhook-id", nil, webhook.ErrMissingHeader},
		{"webhook-id", []string{""}, webhook.ErrMissingHeader},
		{"webhook-id", []string{"a.b"}, webhook.ErrBadHeader},
		{"webhook-id", []string{"a b"}, webhook.ErrBadHeader},
		{"webhook-id", []string{strings.Repeat("a", 256)}, webhook.ErrBadHeader},
		{"webhook-id", []string{vectorID, "another"}, webhook.ErrBadHeader},
		{"webhook-timestamp", nil, webhook.ErrMissingHeader},
		{"webhook-timestamp", []string{""}, webhook.ErrMissingHeader},
		{"webhook-timestamp", []string{"now"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"-1614265330"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"+1614265330"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"1614265330.5"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{" 1614265330"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"0x6037b2f2"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"١٦١٤٢٦٥٣٣٠"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"16142653300000000000000"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{vectorTimestamp, "1614265331"}, webhook.ErrBadHeader},
		{"webhook-timestamp", []string{"999999999999"}, webhook.ErrTooNew},
		{"webhook-timestamp", []string{"0"}, webhook.ErrTooOld},
		{"webhook-signature", nil, webhook.ErrMissingHeader},
		{"webhook-signature", []string{""}, webhook.ErrMissingHeader},
		{"webhook-signature", []string{"   "}, webhook.ErrMissingHeader},
		{"webhook-signature", []string{"v2,abc"}, webhook.ErrBadHeader},
		{"webhook-signature", []string{"v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw=="}, webhook.ErrBadHeader},
		{"webhook-signature", []string{strings.TrimPrefix(vectorSignature, "v1,")}, webhook.ErrBadHeader},
		{"webhook-signature", []string{"v1,"}, webhook.ErrSignature},
		{"webhook-signature", []string{"v1,%%%"}, webhook.ErrSignature},
		{"webhook-signature", []string{vectorSignature + "="}, webhook.ErrSignature},
		{"webhook-signature", []string{strings.TrimSuffix(vectorSignature, "=")}, webhook.ErrSignature},
		{"webhook-signature", []string{strings.Replace(vectorSignature, "OE=", "OF=", 1)}, webhook.ErrSignature}, // decodes to the same bytes
		{"webhook-signature", []string{vectorSignature + "," + vectorSignature}, webhook.ErrSignature},
	} {
		h := vectorHeader()
		h.Del(c.name)
		for _, value := range c.values {
			h.Add(c.name, value)
		}
		_, err := v.Verify(h, []byte(vectorBody))
		requireRefused(t, err, c.name, c.want)
	}
}

func TestW17TenSignaturesAreExaminedAtMost(t *testing.T) {
	t.Parallel()
	v := vectorVerifier(mustParse(t, vectorSecret))
	wrong := "v1," + strings.Repeat("A", 43) + "="
	verify := func(values ...string) error {
		h := vectorHeader()
		h["Webhook-Signature"] = values
		_, err := v.Verify(h, []byte(vectorBody))
		return err
	}
	require.NoError(t, verify(strings.Repeat(wrong+" ", 9)+vectorSignature))
	require.ErrorIs(t, verify(strings.Repeat(wrong+" ", 10)+vectorSignature), webhook.ErrSignature)
	// Other versions are stepped over, yet they count.
	require.NoError(t, verify("v1a,x v2,y "+vectorSignature))
	require.NoError(t, verify(strings.Repeat("v9,x ", 9)+vectorSignature))
	require.ErrorIs(t, verify(wrong+" "+strings.Repeat("v9,x ", 9)+vectorSignature), webhook.ErrSignature)
	// So do those of further header lines, and spaces don't.
	require.NoError(t, verify(wrong, "  "+wrong+"   "+vectorSignature+" "))
	require.ErrorIs(t, verify(strings.Repeat(wrong+" ", 6), strings.Repeat(wrong+" ", 4)+vectorSignature), webhook.ErrSignature)
}

// The comparison itself is crypto/subtle's; what could tell secrets apart is an
// early exit. The allocations of a call count the HMACs that it computed.
func TestW17TheWorkIsTheSameWhicheverSecretMatches(t *testing.T) { // not parallel: it counts allocations
	good := mustParse(t, vectorSecret)
	work := func(secrets ...webhook.Secret) float64 {
		v, h := vectorVerifier(secrets...), vectorHeader()
		return testing.AllocsPerRun(50, func() {
			if _, err := v.Verify(h, []byte(vectorBody)); err != nil {
				panic(err)
			}
		})
	}
	a, b, c := webhook.NewSecret(), webhook.NewSecret(), webhook.NewSecret()
	require.InDelta(t, work(good, a, b, c), work(a, b, c, good), 0)
	require.Greater(t, work(good, a, b, c), work(good))
}

func TestW17AVerifierWithoutUsableSecretsAcceptsNothing(t *testing.T) {
	t.Parallel()
	good := mustParse(t, vectorSecret)
	for _, secrets := range [][]webhook.Secret{nil, {{}}, {good, {}}} {
		v := vectorVerifier(secrets...)
		_, err := v.Verify(vectorHeader(), []byte(vectorBody))
		requireRefused(t, err, "secrets", webhook.ErrNoSecret)
		r, err := http.NewRequest(http.MethodPost, "/", bytes.NewReader([]byte(vectorBody)))
		require.NoError(t, err)
		r.Header = vectorHeader()
		_, err = v.VerifyRequest(r)
		requireRefused(t, err, "secrets", webhook.ErrNoSecret)
		require.Panics(t, func() { v.Middleware(http.NotFoundHandler()) })
	}
}
