package webhook

// Connecting. A name is resolved once, all its answers are judged, and only the
// judged addresses are dialled, as literals: there is no second look-up for a
// name server to lie in. The socket's own address is judged once more by the
// guard's control. A name with one forbidden answer is refused whole: mixing a
// public and a private address is how rebinding begins. Every step has an end of
// its own, because net/http detaches a dial from the request that began it.

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"
)

// Resolver looks names up. A [*net.Resolver] is one.
type Resolver interface {
	// LookupNetIP returns all addresses of host; network is "ip".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	// maxAddresses bounds the dials for one connection: a name with a thousand
	// answers would otherwise make us a port scanner.
	maxAddresses = 8
	// minShare is the least time that an address gets, even if the ones behind
	// it then get none.
	minShare = 2 * time.Second
)

// lookupError and tlsError mark where an error came from. The originals can't
// be told by type: a resolver returns what it likes, and crypto/tls mostly bare
// strings.
type (
	lookupError struct{ err error }
	tlsError    struct{ err error }
)

func (e *lookupError) Error() string { return "webhook: look-up: " + e.err.Error() }
func (e *lookupError) Unwrap() error { return e.err }
func (e *tlsError) Error() string    { return "webhook: TLS: " + e.err.Error() }
func (e *tlsError) Unwrap() error    { return e.err }

type dialer struct {
	guard    guard
	resolver Resolver
	timeout  time.Duration // for look-up, connection and handshake together
	tls      *tls.Config   // never nil, cloned for each connection
}

// dial is an http.Transport's DialContext.
func (d *dialer) dial(ctx context.Context, _, hostport string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	return d.connect(ctx, hostport)
}

// dialTLS is an http.Transport's DialTLSContext. The handshake is ours only so
// that its failure can be told from others.
func (d *dialer) dialTLS(ctx context.Context, _, hostport string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	raw, err := d.connect(ctx, hostport)
	if err != nil {
		return nil, err
	}
	config := d.tls.Clone()
	if config.ServerName == "" {
		// hostport was split by connect already, so this can't fail.
		config.ServerName, _, _ = net.SplitHostPort(hostport)
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &tlsError{err}
	}
	return conn, nil
}

// connect tries the addresses in the resolver's order, each with its share of
// the time left, and returns the first one's error if none answers.
func (d *dialer) connect(ctx context.Context, hostport string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	addrs, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	addrs = addrs[:min(len(addrs), maxAddresses)]
	deadline, _ := ctx.Deadline() // set by dial and dialTLS
	var first error
	for i, addr := range addrs {
		share := max(time.Until(deadline)/time.Duration(len(addrs)-i), minShare)
		nd := net.Dialer{Timeout: share, ControlContext: d.guard.control}
		conn, err := nd.DialContext(ctx, "tcp", net.JoinHostPort(addr.String(), port))
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// resolve returns the addresses of host, at least one and every one of them
// judged. Spellings such as 0x7f.1 are no addresses to netip; should the
// resolver understand them, its answer is judged like any other.
func (d *dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	if literal, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{literal}
	} else if addrs, err = d.resolver.LookupNetIP(ctx, "ip", host); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &lookupError{err}
	}
	if len(addrs) == 0 {
		return nil, &lookupError{&net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}}
	}
	checked := make([]netip.Addr, len(addrs))
	for i, addr := range addrs {
		if err := d.guard.check(addr); err != nil {
			return nil, err
		}
		checked[i] = addr.Unmap()
	}
	return checked, nil
}
