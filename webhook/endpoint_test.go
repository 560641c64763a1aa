package webhook_test

// W4 and W8 in the text of an endpoint, and that it does not print its tokens.

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

func endpointTo(t testing.TB, url string) webhook.Endpoint {
	return webhook.Endpoint{URL: url, Secrets: []webhook.Secret{mustParse(t, vectorSecret)}}
}

func requireEndpointError(t *testing.T, err error, field, reason string) {
	t.Helper()
	e, ok := errors.AsType[*webhook.EndpointError](err)
	require.True(t, ok, "%T: %v", err, err)
	require.Equal(t, field, e.Field)
	require.Equal(t, reason, e.Reason)
	require.EqualError(t, e, "webhook: endpoint: "+field+": "+reason)
}

func TestValidateAcceptsOrdinaryEndpoints(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"https://example.com", "http://example.com/hooks/T0KEN?key=1", "HTTPS://EXAMPLE.COM:8443/", "https://example.com:65535",
		"https://[2606:4700::1111]/x", "https://203.0.113.7:1/", "https://bücher.example/", "https://example.com/a%20b",
		"http://127.0.0.1:8080/", // whether it may be contacted is the client's question, which has an option
	} {
		require.NoError(t, endpointTo(t, url).Validate(), url)
	}
}

func TestW4ValidateRefusesURLsThatAreNotPlainHTTP(t *testing.T) {
	t.Parallel()
	for url, reason := range map[string]string{
		"":                                 "has no scheme",
		"example.com/hook":                 "has no scheme",
		"//example.com/hook":               "has no scheme",
		"/hook":                            "has no scheme",
		"ftp://example.com/":               `scheme "ftp" is not http or https`,
		"file:///etc/passwd":               `scheme "file" is not http or https`,
		"javascript:alert(1)":              `scheme "javascript" is not http or https`,
		"gopher://example.com":             `scheme "gopher" is not http or https`,
		"data:text/plain,x":                `scheme "data" is not http or https`,
		"unix:/run/docker.sock":            `scheme "unix" is not http or https`,
		"averylongtokenpastedhere:x":       "scheme (not shown) is not http or https",
		"https:example.com":                "has no host",
		"https://":                         "has no host",
		"https:///path":                    "has no host",
		"https://:443/":                    "has no host",
		"https://user@example.com/":        "has user information; use a header",
		"https://user:pass@example.com/":   "has user information; use a header",
		"https://@example.com/":            "has user information; use a header",
		"https://example.com@127.0.0.1/":   "has user information; use a header",
		"https://[fe80::1%25eth0]/":        "host has a zone",
		"https://example.com:0/":           "port is not 1 to 65535",
		"https://example.com:65536/":       "port is not 1 to 65535",
		"https://example.com:99999999999/": "port is not 1 to 65535",
		"https://example.com:http/":        "is not a URL",
		"https://exa mple.com/":            "is not a URL",
		"https://example.com/\r\nX: y":     "is not a URL",
		"https://example.com/\x00":         "is not a URL",
		" https://example.com":             "is not a URL",
		"https://[::1":                     "is not a URL",
		"https://example.com/%zz":          "is not a URL",
	} {
		requireEndpointError(t, endpointTo(t, url).Validate(), "URL", reason)
	}
}

func TestW8HeadersOfTheDeliveryAndTheConnectionCannotBeNamed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"webhook-id", "Webhook-Id", "WEBHOOK-ID", "webhook-timestamp", "Webhook-Signature", "webhook-signature",
		"X-Webhook-Delivery", "x-webhook-attempt", "Content-Type", "content-type", "User-Agent",
		"Host", "host", "Content-Length", "Transfer-Encoding", "Connection",
		"Keep-Alive", "Proxy-Connection", "TE", "te", "Trailer", "Upgrade", "Expect",
	} {
		e := endpointTo(t, "https://example.com")
		e.Header = http.Header{name: {"x"}}
		requireEndpointError(t, e.Validate(), "Header", fmt.Sprintf("name %q is reserved", name))
		e.Header = http.Header{name: nil}
		require.Error(t, e.Validate(), "without a value too: net/http may give that a meaning")
	}
}

func TestW8LineBreaksAndControlCharactersInHeadersAreRefused(t *testing.T) {
	t.Parallel()
	for value, char := range map[string]string{
		"a\r\nWebhook-Signature: v1,x": `'\r'`, "a\nb": `'\n'`, "a\rb": `'\r'`, "\x00": `'\x00'`, "a\x7f": `'\x7f'`, "\x1b[31m": `'\x1b'`,
	} {
		e := endpointTo(t, "https://example.com")
		e.Header = http.Header{"X-Key": {"fine", value}}
		requireEndpointError(t, e.Validate(), "Header", `value of "X-Key" contains the control character `+char)
	}
	for _, name := range []string{"", "X Key", "X-Key:", "X\r\nY", "X\x00", "ключ", "(x)", "\xff"} {
		e := endpointTo(t, "https://example.com")
		e.Header = http.Header{name: {"x"}}
		err := e.Validate()
		requireEndpointError(t, err, "Header", fmt.Sprintf("name %q is not a token", name))
		require.True(t, utf8.ValidString(err.Error()))
	}
	e := endpointTo(t, "https://example.com")
	e.Header = http.Header{strings.Repeat("x", 1000) + " ": {"x"}}
	require.Less(t, len(e.Validate().Error()), 200, "an error is not as long as its input")
}

func TestValidateAcceptsOrdinaryHeaders(t *testing.T) {
	t.Parallel()
	e := endpointTo(t, "https://example.com")
	e.Header = http.Header{"Authorization": {"Bearer abc"}, "X-Tenant": {"a\tb", "é", ""}, "x_odd!name": {"1"}, "Host-Name": {"x"}}
	require.NoError(t, e.Validate())
}

func TestW14ValidateWantsUsableSecrets(t *testing.T) {
	t.Parallel()
	e := webhook.Endpoint{URL: "https://example.com"}
	requireEndpointError(t, e.Validate(), "Secrets", "none given")
	e.Secrets = []webhook.Secret{webhook.NewSecret(), {}}
	requireEndpointError(t, e.Validate(), "Secrets", "number 2 is the zero Secret")
	e.Secrets = make([]webhook.Secret, 11)
	requireEndpointError(t, e.Validate(), "Secrets", "11 given, a receiver examines 10")
}

func TestW9ErrorsAndPrintsOfAnEndpointHoldNoToken(t *testing.T) {
	t.Parallel()
	const token = "s3cr3t-t0k3n"
	for _, url := range []string{
		"https://example.com/" + token + "?k=" + token, "https://" + token + ":" + token + "@example.com/", "https://example.com/%zz" + token,
		"ftp://example.com/" + token, token, "https:" + token, "https://example.com:0/" + token,
	} {
		e := endpointTo(t, url)
		e.Header = http.Header{"X-Key": {token + "\n"}}
		err := e.Validate()
		require.Error(t, err)
		require.NotContains(t, err.Error(), token, url)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			for _, printed := range []string{fmt.Sprintf(verb, e), fmt.Sprintf(verb, &e), fmt.Sprintf(verb, []webhook.Endpoint{e})} {
				require.NotContains(t, printed, token, url)
			}
		}
		var out bytes.Buffer
		for _, printed := range []any{e, &e, []webhook.Endpoint{e}, map[string]webhook.Endpoint{"shop": e}, struct{ E webhook.Endpoint }{e}} {
			slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "endpoint", printed)
			slog.New(slog.NewTextHandler(&out, nil)).Info("x", "endpoint", printed)
		}
		require.NotContains(t, out.String(), token, url)
	}
	require.Equal(t, "webhook.Endpoint(https://example.com:8443/***)", endpointTo(t, "https://example.com:8443/"+token).String())
	require.Equal(t, "webhook.Endpoint(***)", fmt.Sprintf("%#v", webhook.Endpoint{}))
}
