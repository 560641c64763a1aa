package webhook

// A Secret is the key that signs an endpoint's deliveries. Its invariant: the
// key leaves the package by Reveal and by nothing else. Printing, logging and
// encoding all give ***. fmt calls no methods on unexported fields, so the bytes
// stand behind two pointers: it looks through one, but never through the
// second, and a Secret buried in somebody's private struct prints as an address.
// The zero Secret has no key; it never signs and never verifies.

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

const (
	secretPrefix = "whsec_"
	// The scheme's own limits: 192 bits are the least that resists guessing,
	// and HMAC-SHA256 hashes a key of more than 64 bytes down anyway.
	minSecret = 24
	maxSecret = 64
	masked    = "***"
)

// Secret is a signing key: 24 to 64 bytes, written "whsec_" and base64. Make
// one with [ParseSecret] or [NewSecret]. It prints as *** everywhere; [Secret.Reveal]
// gives the text. Compare with [Secret.Equal]: == does not compile.
type Secret struct {
	_   [0]func() // forbids ==, which would compare pointers and leak timing
	key **secretKey
}

type secretKey struct{ bytes []byte }

func secretFrom(key []byte) Secret {
	inner := &secretKey{key}
	return Secret{key: &inner}
}

// SecretError says why a text is not a secret. It never holds the text.
type SecretError struct {
	Reason string
}

func (e *SecretError) Error() string { return "webhook: secret " + e.Reason }

// ParseSecret reads the form "whsec_" followed by the padded standard base64
// of 24 to 64 bytes. The error is a [*SecretError].
func ParseSecret(text string) (Secret, error) {
	if text == "" {
		return Secret{}, &SecretError{Reason: "is empty"}
	}
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return Secret{}, &SecretError{Reason: "does not begin with " + secretPrefix}
	}
	// encoding/base64 skips line breaks. One at the end of a secret read from
	// a file is better named than dropped.
	if strings.ContainsAny(encoded, "\r\n") {
		return Secret{}, &SecretError{Reason: "contains a line break"}
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		// The decoder's own error names an offset, which says a little about
		// the text: leave it out.
		return Secret{}, &SecretError{Reason: "is not base64 behind " + secretPrefix}
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return Secret{}, &SecretError{Reason: fmt.Sprintf("has %d bytes, not %d to %d", len(key), minSecret, maxSecret)}
	}
	return secretFrom(key), nil
}

// NewSecret draws a random secret of 32 bytes. Show its [Secret.Reveal] to the
// receiver and store it.
func NewSecret() Secret {
	key := make([]byte, 32)
	// Read fills the slice or ends the process: there is no error to handle.
	_, _ = rand.Read(key)
	return secretFrom(key)
}

// Reveal returns the secret as text, for storing it or showing it to its
// owner; "" for the zero Secret. Never log it.
func (s Secret) Reveal() string {
	if s.IsZero() {
		return ""
	}
	return secretPrefix + base64.StdEncoding.EncodeToString(s.bytes())
}

// IsZero reports whether s has no key.
func (s Secret) IsZero() bool { return s.key == nil }

// bytes is the key of a Secret that is not zero.
func (s Secret) bytes() []byte { return (*s.key).bytes }

// Equal reports in constant time whether both have the same key.
func (s Secret) Equal(other Secret) bool {
	if s.IsZero() || other.IsZero() {
		return s.IsZero() && other.IsZero()
	}
	return subtle.ConstantTimeCompare(s.bytes(), other.bytes()) == 1
}

// String returns ***.
func (s Secret) String() string { return masked }

// GoString returns ***.
func (s Secret) GoString() string { return masked }

// Format writes *** for every verb: %x and %d would not ask String.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, masked) }

// LogValue returns ***.
func (s Secret) LogValue() slog.Value { return slog.StringValue(masked) }

// MarshalText returns ***, for encoding/json and everything else that asks. A
// Secret is stored by [Secret.Reveal], so that it can't be stored by accident.
func (s Secret) MarshalText() ([]byte, error) { return []byte(masked), nil }

// UnmarshalText is [ParseSecret], for configuration files.
func (s *Secret) UnmarshalText(text []byte) error {
	parsed, err := ParseSecret(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// mac is the HMAC of the signed content. It panics on a zero Secret (nil key):
// an HMAC with an empty key can be computed by anybody, so callers check first.
func (s Secret) mac(id, timestamp string, body []byte) []byte {
	h := hmac.New(sha256.New, s.bytes())
	// The three parts are written apart: joining them would copy the body.
	_, _ = io.WriteString(h, id+"."+timestamp+".")
	_, _ = h.Write(body)
	return h.Sum(nil)
}
