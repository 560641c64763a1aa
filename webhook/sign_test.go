package webhook_test

// Signing by the Standard Webhooks scheme, against its published test vector.

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

// The vector that the Standard Webhooks libraries test themselves with.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTimestamp = "1614265330"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorTime = time.Unix(1614265330, 0)

func TestW17SigningAgreesWithThePublishedVector(t *testing.T) { // H2
	t.Parallel()
	h := http.Header{}
	require.NoError(t, webhook.Sign(h, vectorID, vectorTime, []byte(vectorBody), mustParse(t, vectorSecret)))
	require.Equal(t, vectorID, h.Get("webhook-id"))
	require.Equal(t, vectorTimestamp, h.Get("webhook-timestamp"))
	require.Equal(t, vectorSignature, h.Get("webhook-signature"))
	require.Len(t, h, 3)
}

func TestSignatureTakesWholeSeconds(t *testing.T) {
	t.Parallel()
	got, err := webhook.Signature(vectorID, vectorTime.Add(999*time.Millisecond), []byte(vectorBody), mustParse(t, vectorSecret))
	require.NoError(t, err)
	require.Equal(t, vectorSignature, got)
}

func TestW14RotationSignsWithBothSecretsThenOnlyTheNewOne(t *testing.T) {
	t.Parallel()
	old, fresh := mustParse(t, vectorSecret), webhook.NewSecret()
	sign := func(secrets ...webhook.Secret) http.Header {
		h := http.Header{}
		require.NoError(t, webhook.Sign(h, vectorID, vectorTime, []byte(vectorBody), secrets...))
		return h
	}
	verify := func(h http.Header, s webhook.Secret) error {
		_, err := vectorVerifier(s).Verify(h, []byte(vectorBody))
		return err
	}
	before, during, after := sign(old), sign(fresh, old), sign(fresh)

	list := strings.Split(during.Get("webhook-signature"), " ")
	require.Len(t, list, 2)
	require.Equal(t, after.Get("webhook-signature"), list[0], "newest first")
	require.Equal(t, before.Get("webhook-signature"), list[1])

	require.NoError(t, verify(before, old))
	require.NoError(t, verify(during, old))
	require.NoError(t, verify(during, fresh))
	require.NoError(t, verify(after, fresh))
	require.ErrorIs(t, verify(after, old), webhook.ErrSignature)
	require.ErrorIs(t, verify(before, fresh), webhook.ErrSignature)
}

func TestSignRefusesWhatCannotBeSignedAndLeavesTheHeaderAlone(t *testing.T) { // ids without dots
	t.Parallel()
	good := mustParse(t, vectorSecret)
	eleven := make([]webhook.Secret, 11)
	for i := range eleven {
		eleven[i] = good
	}
	for _, c := range []struct {
		id      string
		at      time.Time
		secrets []webhook.Secret
		field   string
		text    string
	}{
		{"", vectorTime, []webhook.Secret{good}, "id", `webhook: sign: id "": is empty`},
		{"msg.1", vectorTime, []webhook.Secret{good}, "id", `webhook: sign: id "msg.1": contains '.'`},
		{"msg 1", vectorTime, []webhook.Secret{good}, "id", `webhook: sign: id "msg 1": contains ' '`},
		{"msg\r\nX: y", vectorTime, []webhook.Secret{good}, "id", `webhook: sign: id "msg\r\nX: y": contains '\r'`},
		{"m\x00", vectorTime, []webhook.Secret{good}, "id", `webhook: sign: id "m\x00": contains '\x00'`},
		{"é", vectorTime, []webhook.Secret{good}, "id", `webhook: sign: id "é": contains 'Ã'`},
		{strings.Repeat("a", 256), vectorTime, []webhook.Secret{good}, "id",
			`webhook: sign: id "` + strings.Repeat("a", 40) + `": has more than 255 bytes`},
		{"a", time.Time{}, []webhook.Secret{good}, "at", "webhook: sign: at 0001-01-01T00:00:00Z: is not after 1970"},
		{"a", time.Unix(0, 0), []webhook.Secret{good}, "at", "webhook: sign: at 1970-01-01T00:00:00Z: is not after 1970"},
		{"a", vectorTime, nil, "secrets", "webhook: sign: secrets: none given"},
		{"a", vectorTime, []webhook.Secret{good, {}}, "secrets", "webhook: sign: secrets: number 2 is the zero Secret"},
		{"a", vectorTime, eleven, "secrets", "webhook: sign: secrets: 11 given, a receiver examines 10"},
	} {
		h := http.Header{"Webhook-Id": {"as it was"}}
		err := webhook.Sign(h, c.id, c.at, nil, c.secrets...)
		e, ok := errors.AsType[*webhook.SignError](err)
		require.True(t, ok, "%q passed", c.id)
		require.Equal(t, c.field, e.Field)
		require.EqualError(t, e, c.text)
		require.Equal(t, http.Header{"Webhook-Id": {"as it was"}}, h)
	}
	require.NoError(t, webhook.Sign(http.Header{}, strings.Repeat("a", 255), vectorTime, nil, eleven[:10]...))
}
