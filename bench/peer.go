package main

// The other side of child.go for the systems in Go: this program as a child of itself. It does
// what node/peer.mjs does for the queues of the Node.js world, in the same protocol.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// peerArg as the first argument makes the program a child that works.
const peerArg = "peer"

// tellEvery is how long handled jobs are gathered before they are told.
const tellEvery = 2 * time.Millisecond

type peer struct {
	client  client
	handled atomic.Int64
	begun   uint64 // allocations before the work
	stops   []func() error

	mu  sync.Mutex
	out io.Writer // guarded by mu
}

// A command is what the parent says.
type command struct {
	ID      int    `json:"id"`
	Cmd     string `json:"cmd"`
	Slots   int    `json:"slots"`
	Workers int    `json:"workers"`
	Idle    bool   `json:"idle"`
}

// servePeer obeys until the input ends.
func servePeer(ctx context.Context, name, url string, in io.Reader, out io.Writer) error {
	s, err := systemNamed(name)
	if err != nil {
		return err
	}
	p := &peer{out: out}
	if p.client, err = s.open(ctx, url, 1); err != nil {
		return err
	}
	defer p.client.close()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("command %q: %w", lines.Text(), err)
		}
		l := childLine{ID: c.ID}
		if l.Mallocs, err = p.obey(ctx, c); err != nil {
			l.Error = err.Error()
		}
		p.say(l)
	}
	return lines.Err()
}

func (p *peer) obey(ctx context.Context, c command) (mallocs uint64, err error) {
	switch c.Cmd {
	case "work":
		p.begun = allocations()
		for range c.Workers {
			stop, err := p.client.work(ctx, worker{slots: c.Slots, idle: c.Idle}, p.count)
			if err != nil {
				return 0, errors.Join(err, p.stop())
			}
			p.stops = append(p.stops, stop)
		}
		return 0, nil
	case "stop":
		err := p.stop()
		p.flush()
		return allocations() - p.begun, err
	case "close":
		return 0, p.stop()
	}
	return 0, fmt.Errorf("unknown command %q", c.Cmd)
}

// stop ends all workers at once.
func (p *peer) stop() error {
	errs := make([]error, len(p.stops))
	var all sync.WaitGroup
	for i, stop := range p.stops {
		all.Go(func() { errs[i] = stop() })
	}
	all.Wait()
	p.stops = nil
	return errors.Join(errs...)
}

func allocations() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// count is the handler. The first job of a while starts the clock, so that an idle child does
// nothing at all.
func (p *peer) count(int64) {
	if p.handled.Add(1) == 1 {
		time.AfterFunc(tellEvery, p.flush)
	}
}

func (p *peer) flush() {
	if n := p.handled.Swap(0); n > 0 {
		p.say(childLine{Handled: int(n)})
	}
}

// say writes a line. When the parent is gone, so is soon the input.
func (p *peer) say(l childLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = json.NewEncoder(p.out).Encode(l)
}
