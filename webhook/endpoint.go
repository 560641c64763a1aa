package webhook

// An Endpoint is where deliveries go. It is a customer's input, so it is judged
// whole each time it is used: Validate catches what can be seen in the text,
// the guarded client what only a resolved address shows. No error and no
// printed form holds more of a URL than its scheme and host, or anything of a
// header's value: tokens live in both.

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Endpoint is one webhook of one receiver.
type Endpoint struct {
	// URL is absolute, http or https, without user information.
	URL string
	// Secrets sign each delivery, newest first: 1 to 10, two during a rotation.
	Secrets []Secret
	// Header is added to each delivery. It can't name the headers that belong
	// to the delivery (Content-Type, User-Agent, webhook-*, X-Webhook-Delivery,
	// X-Webhook-Attempt) or to the connection (Host, Content-Length, …).
	Header http.Header
}

// EndpointError says which field of an Endpoint can't be used, and why. The
// reason holds no path, query or header value.
type EndpointError struct {
	Field  string // "URL", "Secrets" or "Header"; from PGStore.Put also "ID"
	Reason string
}

func (e *EndpointError) Error() string { return "webhook: endpoint: " + e.Field + ": " + e.Reason }

// Validate returns nil or a [*EndpointError] for the first thing that is wrong.
// It does no I/O: whether the host is a public one is decided when connecting.
func (e Endpoint) Validate() error {
	u, err := url.Parse(e.URL)
	if err != nil {
		// url.Parse quotes its input in the error.
		return &EndpointError{Field: "URL", Reason: "is not a URL"}
	}
	if err := checkURL(u); err != nil {
		return err
	}
	if reason := badSecrets(e.Secrets); reason != "" {
		return &EndpointError{Field: "Secrets", Reason: reason}
	}
	return checkHeader(e.Header)
}

// checkURL is used by Validate and again by the client, which may be handed a
// request that nobody validated.
func checkURL(u *url.URL) error {
	reason := ""
	switch port, err := strconv.Atoi(u.Port()); {
	case u.Scheme == "":
		reason = "has no scheme"
	case u.Scheme != "http" && u.Scheme != "https":
		reason = "scheme " + shortScheme(u.Scheme) + " is not http or https"
	case u.User != nil:
		// Named before the host, which a password with an @ could confuse.
		reason = "has user information; use a header"
	case u.Opaque != "" || u.Hostname() == "":
		reason = "has no host"
	case strings.Contains(u.Hostname(), "%"):
		reason = "host has a zone"
	case u.Port() != "" && (err != nil || port < 1 || port > 65535):
		reason = "port is not 1 to 65535"
	}
	if reason == "" {
		return nil
	}
	return &EndpointError{Field: "URL", Reason: reason}
}

// shortScheme names a wrong scheme, unless it is so long that it may be a token
// pasted into the wrong field.
func shortScheme(s string) string {
	if len(s) > 12 {
		return "(not shown)"
	}
	return strconv.Quote(s)
}

// reserved are the headers that a delivery or the connection sets itself. A
// custom one would forge a signature, or make two parsers disagree on where the
// request ends; net/http drops some of them silently, which is no better.
var reserved = func() map[string]bool {
	set := map[string]bool{}
	for _, name := range []string{
		HeaderID, HeaderTimestamp, HeaderSignature, HeaderDelivery, HeaderAttempt, "Content-Type", "User-Agent",
		"Host", "Content-Length", "Transfer-Encoding", "Connection",
		"Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade", "Expect",
	} {
		set[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return set
}()

// checkHeader goes through the names in order, so that the same header gives
// the same error each time.
func checkHeader(header http.Header) error {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if name == "" || strings.ContainsFunc(name, notToken) {
			return &EndpointError{Field: "Header", Reason: "name " + quoted(name) + " is not a token"}
		}
		// The map may hold any spelling; the wire knows only one.
		if reserved[textproto.CanonicalMIMEHeaderKey(name)] {
			return &EndpointError{Field: "Header", Reason: "name " + quoted(name) + " is reserved"}
		}
		for _, value := range header[name] {
			if i := strings.IndexFunc(value, control); i >= 0 {
				return &EndpointError{Field: "Header", Reason: fmt.Sprintf("value of %s contains the control character %q", quoted(name), value[i])}
			}
		}
	}
	return nil
}

// notToken reports what RFC 9110 does not allow in a header's name.
func notToken(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// control reports CR, LF, NUL and their like; a tab is allowed in a value.
func control(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// String names the scheme and the host: a path or query may be a token. (Fmt
// asks no String of an unexported field: print no struct that hides an Endpoint.)
func (e Endpoint) String() string {
	u, err := url.Parse(e.URL)
	if err != nil || u.Host == "" {
		return "webhook.Endpoint(***)"
	}
	return "webhook.Endpoint(" + u.Scheme + "://" + u.Host + "/***)"
}

// GoString is String.
func (e Endpoint) GoString() string { return e.String() }

// Format writes String for every verb.
func (e Endpoint) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// LogValue is String.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.String()) }

// MarshalText is String, for encoding/json and everything else that asks: a log
// in JSON asks no LogValue of what stands in a slice, a map or a struct. Store
// the fields, as [PGStore] does.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// clone shares nothing that can be changed with e.
func (e Endpoint) clone() Endpoint {
	e.Secrets = slices.Clone(e.Secrets)
	e.Header = e.Header.Clone()
	return e
}
