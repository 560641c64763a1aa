package webhook

// Signing by the Standard Webhooks scheme: HMAC-SHA256 over
// "id.timestamp.body". The dots separate, so an id must not contain one:
// with "a.5" as the id somebody could move bytes from the body into the
// timestamp and keep the signature valid. The body is signed as the bytes that
// are sent; nothing here encodes JSON.

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a delivery. HTTP does not mind their case.
const (
	HeaderID        = "webhook-id"         // the same on every attempt
	HeaderTimestamp = "webhook-timestamp"  // Unix seconds of this attempt
	HeaderSignature = "webhook-signature"  // "v1,…" for each secret, newest first
	HeaderDelivery  = "X-Webhook-Delivery" // the id once more, not signed
	HeaderAttempt   = "X-Webhook-Attempt"  // from 1, not signed
)

const (
	signatureVersion = "v1,"
	// maxID bounds what a receiver has to keep; ours have some twenty bytes.
	maxID = 255
	// maxSignatures is both what a Verifier examines and what an Endpoint may
	// have: a signature that no receiver looks at would be a silent failure.
	maxSignatures = 10
)

// SignError says which argument can't be signed with, and why.
type SignError struct {
	Field  string // "id", "at" or "secrets"
	Value  string // what was given, quoted and cut; "" for secrets
	Reason string
}

func (e *SignError) Error() string {
	if e.Value == "" {
		return "webhook: sign: " + e.Field + ": " + e.Reason
	}
	return "webhook: sign: " + e.Field + " " + e.Value + ": " + e.Reason
}

// Sign sets webhook-id, webhook-timestamp and webhook-signature in h, replacing
// what stood there. The secrets are given newest first; see [Signature]. When it
// returns an error, always a [*SignError], h is unchanged.
func Sign(h http.Header, id string, at time.Time, body []byte, secrets ...Secret) error {
	signature, err := Signature(id, at, body, secrets...)
	if err != nil {
		return err
	}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, unixSeconds(at))
	h.Set(HeaderSignature, signature)
	return nil
}

// Signature returns the value of the webhook-signature header: for each secret
// "v1," and the base64 of its HMAC, in the order given and separated by spaces.
// The id consists of 1 to 255 visible ASCII characters without a dot; at is
// taken in whole seconds and lies after 1970; there are 1 to 10 secrets, none of
// them zero. Otherwise it returns a [*SignError].
func Signature(id string, at time.Time, body []byte, secrets ...Secret) (string, error) {
	if reason := badID(id); reason != "" {
		return "", &SignError{Field: "id", Value: quoted(id), Reason: reason}
	}
	if at.Unix() <= 0 {
		return "", &SignError{Field: "at", Value: at.UTC().Format(time.RFC3339), Reason: "is not after 1970"}
	}
	if reason := badSecrets(secrets); reason != "" {
		return "", &SignError{Field: "secrets", Reason: reason}
	}
	timestamp := unixSeconds(at)
	list := make([]string, len(secrets))
	for i, s := range secrets {
		list[i] = s.signature(id, timestamp, body)
	}
	return strings.Join(list, " "), nil
}

// signature is one entry of the header's list.
func (s Secret) signature(id, timestamp string, body []byte) string {
	return signatureVersion + base64.StdEncoding.EncodeToString(s.mac(id, timestamp, body))
}

// badID says what is wrong with an id; "" if nothing is. Signing and verifying
// share it: an id that one side would refuse must not leave the other.
func badID(id string) string {
	if id == "" {
		return "is empty"
	}
	if len(id) > maxID {
		return fmt.Sprintf("has more than %d bytes", maxID)
	}
	for i := range len(id) {
		if c := id[i]; c == '.' || c <= ' ' || c >= 0x7f {
			return fmt.Sprintf("contains %q", c)
		}
	}
	return ""
}

// badSecrets says what is wrong with a list of secrets; "" if nothing is.
func badSecrets(secrets []Secret) string {
	if len(secrets) == 0 {
		return "none given"
	}
	if len(secrets) > maxSignatures {
		return fmt.Sprintf("%d given, a receiver examines %d", len(secrets), maxSignatures)
	}
	for i, s := range secrets {
		if s.IsZero() {
			return fmt.Sprintf("number %d is the zero Secret", i+1)
		}
	}
	return ""
}

func unixSeconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// quoted makes foreign text fit for an error: no control characters, no invalid
// UTF-8, and 40 characters at most, since errors end up in a column.
func quoted(s string) string { return fmt.Sprintf("%.40q", s) }
