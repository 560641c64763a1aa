package webhook

// The client that all deliveries share. The invariant: nothing that an endpoint
// does or says can make a request take longer than its deadline, hold more than
// a fixed amount of memory, or go to another address than the guard allowed.
// Sharing it is what bounds connections; its pool is keyed by host.

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

const (
	defaultTimeout = 10 * time.Second
	defaultConns   = 8
	maxHeaders     = 64 << 10
	maxBody        = 64 << 10
	// idleTimeout is shorter than the five seconds after which common servers
	// close an idle connection: a POST sent into one that is just closing fails,
	// and would cost an attempt.
	idleTimeout = 4 * time.Second
)

// ClientOptions are the options of [NewClient]. A nil pointer and zero values
// give the defaults.
type ClientOptions struct {
	// Timeout is the deadline of a whole request: look-up, connection, waiting
	// for a free connection, response, body. If zero, 10 s. It can't be switched
	// off: NewClient panics if it is negative.
	Timeout time.Duration
	// MaxConnsPerHost bounds the connections to one host, and so the requests
	// to it at a time; the others wait, within their deadline. If zero, 8; if
	// negative, no limit, as for the client that a Dispatcher makes itself:
	// several endpoints may be at one host.
	MaxConnsPerHost int
	// Allow lists prefixes that may be contacted although they are not public:
	// for tests, or for targets in the own network. Logged once, by NewClient.
	// It panics on an invalid prefix.
	Allow []netip.Prefix
	// Resolver looks names up. If nil, net.DefaultResolver.
	Resolver Resolver
	// TLS is the configuration for https, for instance with the roots of a
	// private authority. It is copied. If nil, the defaults of crypto/tls.
	TLS *tls.Config
	// Logger gets the line about Allow. If nil, slog.Default().
	Logger *slog.Logger
}

// NewClient returns a client for deliveries: it connects to public addresses
// only, over http or https, uses no proxy, follows no redirect (the 3xx is the
// response, its Location removed), asks for no compression, speaks HTTP/1.1,
// and reads 64 KiB of headers and 64 KiB of body at most. A longer body ends
// after that, without an error. Make one and share it; when done, call
// CloseIdleConnections.
//
// Its errors are those of net/http and hold the URL: give them to [Outcome].
// One line can't be switched off: to an endpoint that sends bytes behind its
// response net/http reacts with the first of them, quoted, in the standard log.
func NewClient(opts *ClientOptions) *http.Client {
	o := ClientOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Timeout < 0 {
		panic(fmt.Sprintf("webhook: ClientOptions.Timeout %v is negative", o.Timeout))
	}
	timeout := cmp.Or(o.Timeout, defaultTimeout)
	d := &dialer{guard: newGuard(o.Allow, o.Logger), resolver: o.Resolver, timeout: timeout, tls: o.TLS.Clone()}
	if d.resolver == nil {
		d.resolver = net.DefaultResolver
	}
	if d.tls == nil {
		d.tls = &tls.Config{}
	}
	d.tls.NextProtos = []string{"http/1.1"}
	return &http.Client{
		Timeout:       timeout,
		Transport:     &transport{base: d.transport(o.MaxConnsPerHost)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// newGuard refuses what could never match, and says what is open.
func newGuard(allow []netip.Prefix, logger *slog.Logger) guard {
	g := guard{}
	for _, p := range allow {
		if !p.IsValid() {
			panic("webhook: ClientOptions.Allow holds an invalid prefix")
		}
		// Addresses are unmapped before they are compared, so prefixes are too.
		if p.Addr().Is4In6() {
			if p.Bits() < 96 {
				panic(fmt.Sprintf("webhook: ClientOptions.Allow: prefix %v spans more than the IPv4-mapped addresses", p))
			}
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		g.allow = append(g.allow, p.Masked())
	}
	if len(g.allow) > 0 {
		if logger == nil {
			logger = slog.Default()
		}
		logger.Warn("webhook: the guard lets through addresses that are not public", "prefixes", slices.Clone(g.allow))
	}
	return g
}

// transport leaves everything out that it does not name: Proxy is nil, so the
// environment has no say. HTTP/2 is off: one of its connections carries many
// requests, so one that hangs would fail them all, and MaxConnsPerHost would
// bound nothing.
func (d *dialer) transport(conns int) *http.Transport {
	conns = cmp.Or(conns, defaultConns)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		Protocols:              protocols,
		DisableCompression:     true, // a small gzip body could be a large one
		MaxResponseHeaderBytes: maxHeaders,
		MaxConnsPerHost:        max(conns, 0),
		MaxIdleConns:           100,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        idleTimeout,
	}
}

// transport puts the rules that net/http has no setting for round its own.
type transport struct {
	base *http.Transport
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := checkURL(req.URL); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper's duty, also when it fails
		}
		return nil, err
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 3 {
		// CheckRedirect alone would keep redirects from being followed, but
		// http.Client parses Location before it asks, and fails on a malformed
		// one: the redirect would look like a broken connection.
		resp.Header.Del("Location")
	}
	resp.Body = cappedBody{io.LimitReader(resp.Body, maxBody), resp.Body}
	return resp, nil
}

// CloseIdleConnections is called by http.Client's method of that name.
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

type cappedBody struct {
	io.Reader
	io.Closer
}
