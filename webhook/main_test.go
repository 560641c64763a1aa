package webhook_test

// Tools of this package's tests: real sockets on loopback behind names that
// only a fake resolver knows, and a trap, a listener that proves that nobody
// connected to it. No goroutine survives the tests. TestMain is also what the sender
// process of kill_test.go begins with.

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/webhook"
)

func TestMain(m *testing.M) {
	if os.Getenv(senderVariable) != "" {
		os.Exit(sender())
	}
	pgtest.Main(m)
}

// patience is how long a test waits for what must happen, on a slow machine too.
const patience = 20 * time.Second

var (
	localhost = netip.MustParseAddr("127.0.0.1")
	loopback  = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
)

// resolver is a webhook.Resolver made of a function.
type resolver func(ctx context.Context, host string) ([]netip.Addr, error)

func (r resolver) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	return r(ctx, host)
}

// names answers from a fixed list; other names don't exist.
func names(list map[string][]string) resolver {
	return func(_ context.Context, host string) ([]netip.Addr, error) {
		answers, ok := list[host]
		if !ok {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		var addrs []netip.Addr
		for _, a := range answers {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs, nil
	}
}

// everywhere resolves every name to loopback.
func everywhere(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{localhost}, nil }

func newClient(t *testing.T, o webhook.ClientOptions) *http.Client {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	client := webhook.NewClient(&o)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// serve starts a server on loopback and returns its "host:port".
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// serveRaw answers the first bytes of each connection with answer, which may
// write anything at all.
func serveRaw(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			answer(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func portOf(t *testing.T, hostport string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(hostport)
	require.NoError(t, err)
	return port
}

// trap is a target that must not be contacted.
type trap struct{ net.Listener }

func newTrap(t *testing.T) trap { return trap{listen(t)} }

// requireUntouched connects itself and sees its own bytes first: whoever had
// connected before would stand before it in the listener's queue.
func (tr trap) requireUntouched(t *testing.T) {
	t.Helper()
	own, err := net.Dial("tcp", tr.Addr().String())
	require.NoError(t, err)
	defer func() { _ = own.Close() }()
	_, err = own.Write([]byte("own"))
	require.NoError(t, err)
	first, err := tr.Accept()
	require.NoError(t, err)
	defer func() { _ = first.Close() }()
	require.Equal(t, own.LocalAddr().String(), first.RemoteAddr().String(), "somebody had connected before")
}

// post is one attempt: what Outcome makes of it, the body read to its end.
func post(t *testing.T, client *http.Client, url string) (*http.Response, error) {
	t.Helper()
	return postContext(t.Context(), t, client, url)
}

func postContext(ctx context.Context, t *testing.T, client *http.Client, url string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"event":1}`))
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return nil, webhook.Outcome(ctx, nil, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return resp, webhook.Outcome(ctx, nil, err)
	}
	return resp, webhook.Outcome(ctx, resp, nil)
}

// requireCode asserts the outcome of an attempt.
func requireCode(t *testing.T, err error, code string, permanent bool) *webhook.DeliveryError {
	t.Helper()
	e, ok := errors.AsType[*webhook.DeliveryError](err)
	require.True(t, ok, "%T: %v", err, err)
	require.Equal(t, code, e.Code)
	require.Equal(t, permanent, e.Permanent, "permanent")
	return e
}

func mustParse(t testing.TB, text string) webhook.Secret {
	t.Helper()
	s, err := webhook.ParseSecret(text)
	require.NoError(t, err)
	return s
}
