package webhook

// Verifying a delivery. The order matters: headers first, because they are
// cheap and the body may be large; then the clock; then the signatures, each
// against each secret without an early exit, so that timing tells nothing
// about which of them matched. What is compared is the encoded text, which
// leaves no second spelling of the same signature.

import (
	"cmp"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Why a delivery was refused. Match them with errors.Is; [*VerifyError] carries
// the details.
var (
	ErrMissingHeader = errors.New("missing")
	ErrBadHeader     = errors.New("malformed")
	ErrTooOld        = errors.New("too old")
	ErrTooNew        = errors.New("too far in the future")
	ErrSignature     = errors.New("no signature matches")
	ErrBodyTooLarge  = errors.New("too large")
	ErrBodyRead      = errors.New("can't be read")
	// ErrNoSecret is the receiver's own mistake: a Verifier without secrets, or
	// with a zero Secret among them, accepts nothing.
	ErrNoSecret = errors.New("verifier has no usable secret")
)

const (
	defaultTolerance = 5 * time.Minute
	// maxTimestamp is the number of digits read: until the year 33658.
	maxTimestamp = 12
)

// VerifyError says why a delivery was refused. It unwraps to one of the
// sentinels above.
type VerifyError struct {
	Field  string // a header's name, "body" or "secrets"
	Detail string // further words, perhaps ""
	Err    error
}

func (e *VerifyError) Error() string {
	text := "webhook: verify: " + e.Field + ": " + e.Err.Error()
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

func (e *VerifyError) Unwrap() error { return e.Err }

// Verified is what the signature vouches for, and nothing that it does not:
// X-Webhook-Attempt and X-Webhook-Delivery are not signed.
type Verified struct {
	ID        string    // the same on every attempt: handle each id once
	Timestamp time.Time // of the attempt, in whole seconds
	Body      []byte    // the raw bytes
}

// Verifier checks that a delivery comes from somebody who knows a secret, and
// that it is recent. Fill it before its first use; then it is safe for use by
// many goroutines.
type Verifier struct {
	// Secrets are those that are accepted, in any order: during a rotation the
	// old one and the new one. Required.
	Secrets []Secret
	// Tolerance is how far webhook-timestamp may lie from Now, both ways. If
	// zero, 5 minutes; if negative, any time is accepted.
	Tolerance time.Duration
	// Now is the receiver's clock. If nil, time.Now.
	Now func() time.Time
	// MaxBody is the most that VerifyRequest and Middleware read, in bytes. If
	// zero, 1 MiB; if negative, no limit.
	MaxBody int64
}

// Verify checks a delivery with these headers and this raw body: the bytes as
// received, never JSON that was decoded and encoded again. The error is a
// [*VerifyError].
func (v *Verifier) Verify(header http.Header, body []byte) (Verified, error) {
	e, err := v.envelope(header)
	if err != nil {
		return Verified{}, err
	}
	return v.match(e, body)
}

// envelope is the headers, read and found plausible but proven by nothing.
type envelope struct {
	id, timestamp string // as signed, so as received
	at            time.Time
	signatures    []string
}

func (v *Verifier) envelope(header http.Header) (envelope, error) {
	var e envelope
	var err error
	if e.id, err = single(header, HeaderID); err != nil {
		return e, err
	}
	if reason := badID(e.id); reason != "" {
		return e, &VerifyError{Field: HeaderID, Err: ErrBadHeader, Detail: reason}
	}
	if e.timestamp, err = single(header, HeaderTimestamp); err != nil {
		return e, err
	}
	if e.at, err = parseTimestamp(e.timestamp); err != nil {
		return e, err
	}
	if err := v.checkTime(e.at); err != nil {
		return e, err
	}
	e.signatures, err = parseSignatures(header)
	return e, err
}

// match is the proof. Every secret meets every signature, whatever matched
// before; the cost is one HMAC over the body for each secret.
func (v *Verifier) match(e envelope, body []byte) (Verified, error) {
	if err := v.checkSecrets(); err != nil {
		return Verified{}, err
	}
	matched := 0
	for _, s := range v.Secrets {
		want := []byte(s.signature(e.id, e.timestamp, body))
		for _, got := range e.signatures {
			matched |= subtle.ConstantTimeCompare(want, []byte(got))
		}
	}
	if matched != 1 {
		return Verified{}, &VerifyError{Field: HeaderSignature, Err: ErrSignature}
	}
	return Verified{ID: e.id, Timestamp: e.at, Body: body}, nil
}

// checkSecrets refuses a zero Secret beside good ones too: it is a secret that
// failed to load, and saying so at the first delivery is the kindest moment.
func (v *Verifier) checkSecrets() error {
	for i, s := range v.Secrets {
		if s.IsZero() {
			return &VerifyError{Field: "secrets", Err: ErrNoSecret, Detail: fmt.Sprintf("number %d is the zero Secret", i+1)}
		}
	}
	if len(v.Secrets) == 0 {
		return &VerifyError{Field: "secrets", Err: ErrNoSecret}
	}
	return nil
}

func (v *Verifier) checkTime(at time.Time) error {
	tolerance := cmp.Or(v.Tolerance, defaultTolerance)
	if tolerance < 0 {
		return nil
	}
	now := time.Now
	if v.Now != nil {
		now = v.Now
	}
	// Sub saturates, so an absurd timestamp stays far away instead of wrapping.
	age := now().Sub(at)
	if age > tolerance {
		return &VerifyError{Field: HeaderTimestamp, Err: ErrTooOld, Detail: fmt.Sprintf("more than %v", tolerance)}
	}
	if age < -tolerance {
		return &VerifyError{Field: HeaderTimestamp, Err: ErrTooNew, Detail: fmt.Sprintf("more than %v", tolerance)}
	}
	return nil
}

// single returns a header that must stand there once. Two ids or timestamps
// would let us check one and somebody behind us read the other.
func single(header http.Header, name string) (string, error) {
	values := header.Values(name)
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", &VerifyError{Field: name, Err: ErrMissingHeader}
	case len(values) > 1:
		return "", &VerifyError{Field: name, Err: ErrBadHeader, Detail: fmt.Sprintf("given %d times", len(values))}
	}
	return values[0], nil
}

// parseTimestamp takes digits only: no sign, no fraction, no space.
func parseTimestamp(s string) (time.Time, error) {
	bad := func(reason string) error {
		return &VerifyError{Field: HeaderTimestamp, Err: ErrBadHeader, Detail: quoted(s) + " " + reason}
	}
	if len(s) > maxTimestamp {
		return time.Time{}, bad(fmt.Sprintf("has more than %d digits", maxTimestamp))
	}
	if strings.Trim(s, "0123456789") != "" {
		return time.Time{}, bad("is not a number of seconds")
	}
	seconds, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}, bad("is not a number of seconds")
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// parseSignatures returns the entries of version v1 among the first ten.
// Entries of other versions are no error, since a sender may add new ones, but
// they count: the cost of a forged header stays bounded.
func parseSignatures(header http.Header) ([]string, error) {
	values := header.Values(HeaderSignature)
	var list []string
	seen := 0
	for _, value := range values {
		for entry := range strings.SplitSeq(value, " ") {
			if entry == "" {
				continue
			}
			if seen++; seen > maxSignatures {
				return list, nil
			}
			if strings.HasPrefix(entry, signatureVersion) {
				list = append(list, entry)
			}
		}
	}
	switch {
	case seen == 0:
		return nil, &VerifyError{Field: HeaderSignature, Err: ErrMissingHeader}
	case len(list) == 0:
		return nil, &VerifyError{Field: HeaderSignature, Err: ErrBadHeader, Detail: "no entry of version v1"}
	}
	return list, nil
}
