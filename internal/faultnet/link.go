// A link is a client's connection and its counterpart to the server; each direction is a pipe of two goroutines. One
// stamps what it reads with the time when it is due, the other writes it then: the queue between them keeps bandwidth
// under delay. The end of a stream queues like bytes, so it doesn't overtake them; only a failed write ends a link at once.
package faultnet

import (
	"bytes"
	"context"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"time"
)

type link struct {
	*Proxy
	ctx            context.Context // ends when the link is closed
	cancel         context.CancelFunc
	client, server net.Conn
	lost           bool                              // in the black hole
	armed          atomic.Pointer[func([]byte) bool] // the match that has said yes here
}

type pipe struct {
	*link
	src, dst net.Conn
	queue    chan piece
	seenBy   *func([]byte) bool // the match that tail belongs to
	tail     []byte
}

type piece struct {
	b   []byte
	end error // why src has ended, if it has
	due time.Time
}

// run passes bytes until both sides have ended.
func (l *link) run() {
	defer l.close(false)
	l.mu.Lock()
	if l.refuse {
		l.closeLocked(true) // all that follows fails at once
	} else {
		l.links[l], l.lost = struct{}{}, l.hole
	}
	l.mu.Unlock()
	if !l.flows() {
		_, _ = io.Copy(io.Discard, l.client) // any error is the end that is waited for
		return
	}
	l.mu.Lock()
	network, target := l.network, l.target
	l.mu.Unlock()
	c, err := new(net.Dialer).DialContext(l.ctx, network, target)
	if err != nil {
		l.close(true)
		return
	}
	l.mu.Lock()
	if l.server = c; l.ctx.Err() != nil {
		l.closeLocked(true) // again: the first time missed the server
	}
	l.mu.Unlock()
	// 1,024 pieces are 64 MiB, or 100,000 small writes a second at 10 ms; beyond that reads grow.
	up := &pipe{link: l, src: l.client, dst: l.server, queue: make(chan piece, 1024)}
	down := &pipe{link: l, src: l.server, dst: l.client, queue: make(chan piece, 1024)}
	var wg sync.WaitGroup
	for _, f := range []func(){up.read, up.write, down.read, down.write} {
		wg.Go(f)
	}
	wg.Wait()
}

// flows waits while the proxy stalls, then says whether the bytes at hand may pass: not on a closed or lost link.
func (l *link) flows() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled && !l.lost && l.ctx.Err() == nil {
		l.changed.Wait()
	}
	return !l.lost && l.ctx.Err() == nil
}

func (l *link) close(reset bool) { l.mu.Lock(); defer l.mu.Unlock(); l.closeLocked(reset) }

// closeLocked ends the link. With reset both sides see RST, and bytes under way are lost.
func (l *link) closeLocked(reset bool) {
	l.cancel()
	delete(l.links, l)
	l.changed.Broadcast()
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, ok := c.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		if c != nil {
			_ = c.Close()
		}
	}
}

// read ends with its source; the queue never blocks it for good, because write empties it even when all is closed.
func (d *pipe) read() {
	defer close(d.queue)
	buf := make([]byte, 64<<10)
	for {
		n, err := d.src.Read(buf)
		pc := piece{bytes.Clone(buf[:n]), err, time.Now().Add(time.Duration(d.delay.Load()))}
		d.flows() // a stall holds the reader too: the sender shall feel it
		d.queue <- pc
		if err != nil {
			return
		}
	}
}

func (d *pipe) write() {
	for pc := range d.queue {
		time.Sleep(time.Until(pc.due))
		if !d.flows() || d.isVictim(pc.b) {
			continue
		}
		_, err := d.dst.Write(pc.b)
		if pc.end == io.EOF {
			_ = d.dst.(interface{ CloseWrite() error }).CloseWrite() // the other direction lives on
		} else if pc.end != nil || err != nil {
			d.close(true)
		}
	}
}

// over is a reply after which no transaction is open: CommandComplete or ErrorResponse, then ReadyForQuery, idle. The
// reply to a mere Parse has neither of the first two.
var over = regexp.MustCompile(`(?s)(C\x00\x00\x00[\x05-\x3f][A-Z ]+[0-9 ]*|VERROR)\x00.*Z\x00\x00\x00\x05I`)

// isVictim does the work of DropReplies, before b is written: the reply may follow at once.
func (d *pipe) isVictim(b []byte) bool {
	m := d.match.Load()
	if m == nil || *m == nil || len(b) == 0 || d.dst == d.client && d.armed.Load() != m {
		return false
	}
	d.matching.Lock()
	defer d.matching.Unlock()
	if m != d.seenBy {
		d.seenBy, d.tail = m, nil
	}
	d.tail = append(d.tail[max(0, len(d.tail)-1024):], b...)
	switch {
	case d.dst == d.server && (*m)(d.tail):
		d.armed.Store(m)
	case d.dst == d.client && over.Match(d.tail):
		d.close(true)
		return true
	}
	return false
}
