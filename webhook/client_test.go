package webhook_test

// The client against names that lie, endpoints that redirect, and an environment
// that wants a proxy.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

// thanks reads the request and answers 200.
func thanks(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "thanks")
}

func TestW1APublicNameThatResolvesInwardsIsRefusedForGood(t *testing.T) {
	t.Parallel()
	target := newTrap(t)
	client := newClient(t, webhook.ClientOptions{Resolver: names(map[string][]string{
		"private.example":  {"10.0.0.5"},
		"metadata.example": {"169.254.169.254"},
		"loopback.example": {"127.0.0.1"},
		"mapped.example":   {"::ffff:127.0.0.1"},
		"six.example":      {"::1"},
	})})
	port := portOf(t, target.Addr().String())
	for host, kind := range map[string]string{
		"private.example": "private", "metadata.example": "link-local", "loopback.example": "loopback",
		"mapped.example": "loopback", "six.example": "loopback",
	} {
		for _, scheme := range []string{"http", "https"} {
			_, err := post(t, client, scheme+"://"+host+":"+port)
			e := requireCode(t, err, "blocked: "+kind, true)
			require.EqualError(t, e, "webhook: blocked: "+kind)
			_, isBlocked := errors.AsType[*webhook.BlockedError](err)
			require.True(t, isBlocked)
		}
	}
	target.requireUntouched(t)
}

func TestW1AHostWithOneForbiddenAnswerIsRefusedWhole(t *testing.T) {
	t.Parallel()
	target := newTrap(t)
	// 127.0.0.1 is allowed here and listens: only the other answer is forbidden.
	client := newClient(t, webhook.ClientOptions{Allow: loopback, Resolver: names(map[string][]string{
		"first.example": {"10.0.0.5", "127.0.0.1"},
		"last.example":  {"127.0.0.1", "127.0.0.1", "10.0.0.5"},
		"far.example":   append(strings.Fields(strings.Repeat("127.0.0.1 ", 50)), "10.0.0.5"),
	})})
	for _, host := range []string{"first.example", "last.example", "far.example"} {
		_, err := post(t, client, "http://"+host+":"+portOf(t, target.Addr().String()))
		requireCode(t, err, "blocked: private", true)
	}
	target.requireUntouched(t)
}

func TestW2EachConnectionGoesToTheAddressesOfItsOneLookUp(t *testing.T) {
	t.Parallel()
	var hits, lookups atomic.Int64
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		w.Header().Set("Connection", "close") // the next request must look up again
		thanks(w, r)
	})
	// First the address that passes, as if public; from then on an inward one.
	client := newClient(t, webhook.ClientOptions{
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Resolver: resolver(func(context.Context, string) ([]netip.Addr, error) {
			if lookups.Add(1) == 1 {
				return []netip.Addr{localhost}, nil
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil
		}),
	})
	url := "http://rebinding.example:" + portOf(t, target)
	_, err := post(t, client, url)
	require.NoError(t, err)
	require.EqualValues(t, 1, lookups.Load(), "no second look-up between the check and the connection")
	_, err = post(t, client, url)
	requireCode(t, err, "blocked: loopback", true)
	require.EqualValues(t, 2, lookups.Load())
	require.EqualValues(t, 1, hits.Load())
}

func TestW3ARedirectIsNeverFollowed(t *testing.T) {
	t.Parallel()
	target := newTrap(t)
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	inward := "http://" + target.Addr().String() + "/internal"
	for _, status := range []int{300, 301, 302, 303, 304, 305, 307, 308, 399} {
		for name, location := range map[string]string{"inward": inward, "none": "", "malformed": "http://[::1/%zz", "relative": "/again"} {
			t.Run(fmt.Sprintf("%d %s", status, name), func(t *testing.T) {
				t.Parallel()
				var hits atomic.Int64
				from := serve(t, func(w http.ResponseWriter, _ *http.Request) {
					hits.Add(1)
					if location != "" {
						w.Header().Set("Location", location)
					}
					w.WriteHeader(status)
				})
				_, err := post(t, client, "http://"+from)
				e := requireCode(t, err, fmt.Sprintf("redirect %d", status), true)
				require.Equal(t, status, e.Status)
				require.EqualValues(t, 1, hits.Load())
			})
		}
	}
	t.Cleanup(func() { target.requireUntouched(t) }) // after the parallel ones
}

func TestW4LiteralsAndSchemesAreRefusedByTheClientToo(t *testing.T) {
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Resolver: names(nil)})
	for url, code := range map[string]string{
		"http://[::ffff:169.254.169.254]/": "blocked: link-local",
		"http://[64:ff9b::a9fe:a9fe]/":     "blocked: NAT64",
		"http://[2002:a9fe:a9fe::]/":       "blocked: 6to4",
		"http://[2001:0:1::1]/":            "blocked: Teredo",
		"http://100.64.0.1/":               "blocked: carrier NAT",
		"http://0.0.0.0/":                  "blocked: this network",
		"http://0.1.2.3/":                  "blocked: this network",
		"https://127.0.0.1/":               "blocked: loopback",
		"http://[::1]/":                    "blocked: loopback",
		"http://①②⑦.0.0.1/":                "blocked: loopback", // net/http folds the digits to ASCII
		"ftp://example.com/":               "misconfigured",
		"file:///etc/passwd":               "misconfigured",
		"javascript:alert(1)":              "misconfigured",
		"http://user:pass@example.com/":    "misconfigured",
	} {
		_, err := post(t, client, url)
		requireCode(t, err, code, true)
	}
}

func TestW4OddSpellingsOfAnAddressAreJudgedByWhatTheResolverMakesOfThem(t *testing.T) {
	t.Parallel()
	target := newTrap(t)
	client := newClient(t, webhook.ClientOptions{Resolver: resolver(everywhere)})
	for _, host := range []string{"0x7f.1", "2130706433", "127.1", "0177.0.0.1", "127.0.0.1."} {
		_, err := post(t, client, "http://"+host+":"+portOf(t, target.Addr().String()))
		requireCode(t, err, "blocked: loopback", true)
	}
	target.requireUntouched(t)
}

func TestW5TheProxyOfTheEnvironmentIsIgnored(t *testing.T) { // not parallel: it sets the environment
	proxy := newTrap(t)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, "http://"+proxy.Addr().String())
	}
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	target := serve(t, thanks)
	url := "http://hooks.example:" + portOf(t, target)
	req, err := http.NewRequest(http.MethodPost, url, nil)
	require.NoError(t, err)
	used, err := http.ProxyFromEnvironment(req)
	require.NoError(t, err)
	require.NotNil(t, used, "the environment must mean a proxy, or this test shows nothing")

	client := newClient(t, webhook.ClientOptions{Allow: loopback, Resolver: resolver(everywhere)})
	_, err = post(t, client, url)
	require.NoError(t, err)
	_, err = post(t, client, "https://hooks.example:"+portOf(t, target))
	requireCode(t, err, "tls", false) // it reached the target, which speaks no TLS
	proxy.requireUntouched(t)
}

func TestHTTPSIsVerifiedAgainstTheGivenRoots(t *testing.T) { // H4
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(thanks))
	srv.Config.ErrorLog = discardLog
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	o := webhook.ClientOptions{Allow: loopback, Resolver: resolver(everywhere)}
	port := portOf(t, srv.Listener.Addr().String())

	_, err := post(t, newClient(t, o), "https://example.com:"+port)
	requireCode(t, err, "tls", false)

	o.TLS = &tls.Config{RootCAs: roots}
	client := newClient(t, o)
	resp, err := post(t, client, "https://example.com:"+port) // the certificate is for example.com
	require.NoError(t, err)
	require.NotNil(t, resp.TLS)
	require.Equal(t, "HTTP/1.1", resp.Proto)
	_, err = post(t, client, "https://other.example:"+port)
	requireCode(t, err, "tls", false)
	require.Empty(t, o.TLS.ServerName, "the caller's configuration is left alone")
	require.Empty(t, o.TLS.NextProtos)
}

func TestAHostIsTriedAtItsOtherAddressesWhenOneRefuses(t *testing.T) {
	t.Parallel()
	target := serve(t, thanks)
	client := newClient(t, webhook.ClientOptions{
		Allow:    append([]netip.Prefix{netip.MustParsePrefix("::1/128")}, loopback...),
		Resolver: names(map[string][]string{"two.example": {"::1", "127.0.0.1"}}), // only the second listens
	})
	_, err := post(t, client, "http://two.example:"+portOf(t, target))
	require.NoError(t, err)
}

func TestConnectionsToAHostStayFewAndAreReused(t *testing.T) { // "few connections per host"
	t.Parallel()
	var open, most atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(thanks))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			n := open.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	client := newClient(t, webhook.ClientOptions{Allow: loopback, MaxConnsPerHost: 3})
	errs := make(chan error)
	for range 60 {
		go func() {
			_, err := post(t, client, srv.URL)
			errs <- err
		}()
	}
	for range 60 {
		require.NoError(t, <-errs)
	}
	// A connection that the client closed may still be open to the server for a
	// moment; the bound that counts is far below 60.
	require.LessOrEqual(t, most.Load(), int64(12))
}

func TestNewClientPanicsOnANegativeTimeout(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { webhook.NewClient(&webhook.ClientOptions{Timeout: -1}) })
	require.Equal(t, 10*time.Second, webhook.NewClient(nil).Timeout, "the default of H4")
}
