// Package faultnet is a TCP proxy for tests and benchmarks. It stands between a client and PostgreSQL and
// misbehaves on command: it cuts, refuses, stalls, swallows, delays, or loses the one reply that matters.
//
// Invariant: what a connection delivers is an unbroken prefix of what the other side sent. Bytes are lost only
// together with all that follow them, so a fault never forges a message. Methods may be called at any time.
package faultnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy listens on a free loopback port and passes each connection on to its target.
type Proxy struct {
	ln              net.Listener
	running         sync.WaitGroup
	accepted, delay atomic.Int64
	match           atomic.Pointer[func([]byte) bool]
	matching        sync.Mutex // held while match runs, so that it needs no lock of its own

	mu                    sync.Mutex // guards what follows, and lost and server of each link
	changed               sync.Cond  // wakes pipes that are held by stall
	links                 map[*link]struct{}
	refuse, stalled, hole bool
	network, target       string
}

// Listen starts a proxy for target: host:port, or the path of a unix socket (the socket, not its directory).
// The target need not be up: a client whose connection can't be passed on is reset.
func Listen(target string) (p *Proxy, err error) {
	p = &Proxy{links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	if err := p.Redirect(target); err != nil {
		return nil, err
	}
	if p.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("faultnet: listen: %w", err)
	}
	p.running.Go(p.accept)
	return p, nil
}

// Redirect leads new connections to another target, given as to Listen; open ones stay where they are until they end.
// After an error the old target stays.
func (p *Proxy) Redirect(target string) error {
	network := "unix"
	if !strings.HasPrefix(target, "/") {
		network = "tcp"
		if _, _, err := net.SplitHostPort(target); err != nil {
			return fmt.Errorf("faultnet: target %q: %w", target, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.target = network, target
	return nil
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// URL returns dsn, a postgres:// URL, with the proxy in the place of its host; all else stays.
// It panics if dsn is none, without showing it: it may hold a password.
func (p *Proxy) URL(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		panic("faultnet: URL: dsn is not a postgres:// URL")
	}
	q := u.Query()
	for _, name := range []string{"host", "hostaddr", "port"} {
		q.Del(name) // a parameter wins over the host part
	}
	u.Host, u.RawQuery = p.Addr(), q.Encode()
	return u.String()
}

// Accepted counts all connections so far, refused ones too.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Conns counts the connections open now: those of which at least one side has not ended.
func (p *Proxy) Conns() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.links) }

// Close cuts, stops listening and returns when nothing of the proxy runs any more: after one Delay at the latest.
func (p *Proxy) Close() {
	p.Refuse(true) // whoever is between Accept and the map
	p.Cut()
	_ = p.ln.Close() // fails only if closed before
	p.running.Wait()
}

// Cut resets every open connection, on both sides. They are closed when it returns.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.closeLocked(true)
	}
}

// Refuse resets new connections at once; open ones live on. The listener stays: closing it would give the port away.
func (p *Proxy) Refuse(on bool) { p.set(&p.refuse, on) }

// Stall holds back all bytes, both ways, and the news of a close too. Nothing is lost, and senders feel it once the
// buffers between are full. Bytes sent before the call may still arrive.
func (p *Proxy) Stall(on bool) { p.set(&p.stalled, on) }

// BlackHole drops the bytes of all open connections, and of new ones, which never reach the target. Neither side
// learns that the other has closed. A connection that was in the hole stays there after BlackHole(false), until both
// sides have closed or Cut resets it, for a stream with a gap must not go on.
func (p *Proxy) BlackHole(on bool) { p.set(&p.hole, on) }

func (p *Proxy) set(fault *bool, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*fault = on
	for l := range p.links {
		l.lost = l.lost || p.hole
	}
	p.changed.Broadcast()
}

// Delay adds oneWay to the way of every byte read from now on, in each direction. Bandwidth stays: bytes queue with the
// time when they are due. An idle Go process wakes up to 1 ms late, half on average, so the aim is that much earlier:
// the error is half a millisecond either way where the scheduler keeps up. Connecting itself is not delayed.
func (p *Proxy) Delay(oneWay time.Duration) {
	p.delay.Store(int64(oneWay - min(oneWay/20, time.Millisecond/2)))
}

// DropReplies loses the reply to a commit: once client bytes that match were passed on, the connection is cut when the
// server reports that a statement has run or failed and no transaction is open, and the piece with this report is dropped.
// Replies before it, such as begin's, arrive. With several transactions in flight on one connection it is the first to
// end. Pgx sends a statement's text only when it prepares it: match "commit", or a connection's first use of it. Match
// is shown each piece after up to 1 KiB of what it saw before, as a statement may span pieces; it must not keep it.
// Calls come one at a time. The rule is for all connections: a match that wants one victim says yes once. Nil: off.
func (p *Proxy) DropReplies(match func(clientBytes []byte) bool) { p.match.Store(&match) }

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, say: clients wait in the backlog
			time.Sleep(time.Millisecond)
			continue
		}
		p.accepted.Add(1)
		l := &link{Proxy: p, client: c}
		l.ctx, l.cancel = context.WithCancel(context.Background())
		p.running.Go(l.run)
	}
}
