package webhook_test

// Fuzzing of what strangers write: the headers of a delivery, and secrets.

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

func FuzzParseSecret(f *testing.F) {
	for _, text := range []string{vectorSecret, "", "whsec_", "whsec_***", secretOf(23), secretOf(64), secretOf(65), vectorSecret + "\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := webhook.ParseSecret(text)
		if err != nil {
			e, ok := errors.AsType[*webhook.SecretError](err)
			require.True(t, ok)
			require.NotEmpty(t, e.Reason)
			require.True(t, s.IsZero())
			return
		}
		// What parses has one canonical text, which means the same key.
		again, err := webhook.ParseSecret(s.Reveal())
		require.NoError(t, err)
		require.True(t, s.Equal(again))
		require.Equal(t, s.Reveal(), again.Reveal())
		require.Len(t, text, len(s.Reveal()))
	})
}

// FuzzVerifyHeaders holds against Verify what Signature says: a delivery is
// accepted exactly when its first ten signatures hold the right one.
func FuzzVerifyHeaders(f *testing.F) {
	f.Add(vectorID, vectorTimestamp, vectorSignature, "", []byte(vectorBody))
	f.Add(vectorID, vectorTimestamp, "v1,x v2,y  "+vectorSignature, "v1,", []byte(vectorBody))
	f.Add("a.b", "1e9", "v1", " ", []byte(nil))
	f.Add("", "-1", "", "v1,AAAA", []byte{0})
	f.Add("é", "99999999999999999999", "v1,\x00", "\xff", []byte("x"))
	secret, other := mustParse(f, vectorSecret), mustParse(f, secretOf(24))
	f.Fuzz(func(t *testing.T, id, timestamp, first, second string, body []byte) {
		v := &webhook.Verifier{Secrets: []webhook.Secret{other, secret}, Tolerance: -1}
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {first, second}}
		got, err := v.Verify(h, body)
		if err != nil {
			_, ok := errors.AsType[*webhook.VerifyError](err)
			require.True(t, ok)
			require.Zero(t, got)
		} else {
			require.Equal(t, id, got.ID)
			require.Contains(t, first+" "+second, "v1,")
		}
		// The same headers, rightly signed, are accepted if signing takes them.
		seconds, parseErr := strconv.ParseInt(timestamp, 10, 64)
		if parseErr != nil || strconv.FormatInt(seconds, 10) != timestamp || seconds > 999999999999 {
			return
		}
		right, signErr := webhook.Signature(id, time.Unix(seconds, 0), body, secret)
		if signErr != nil {
			return
		}
		h["Webhook-Signature"] = []string{right, first, second}
		_, err = v.Verify(h, body)
		require.NoError(t, err)
	})
}
