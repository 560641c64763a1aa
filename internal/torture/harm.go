//go:build unix

// Harm is what excuses a lost lease. What strikes one process (a signal, its link, a
// machine that doesn't let it run) excuses it; what strikes the server, and so everybody
// alike, does not: after an outage nobody's jobs may be taken before everybody could renew.

package main

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// after is how long harm goes on when its cause is gone: until a connection is made anew
// and the leases are renewed.
var after = (2500 * time.Millisecond).Microseconds()

// sortHarm takes a note of a fault or a stall in.
func (e *evidence) sortHarm(n note) {
	w := window{n.From, n.At, n.What}
	switch {
	case n.Kind == noteStall && n.Process == "harness":
		e.machine(window{n.From, n.At + after, "busy machine"})
	case n.Kind == noteStall:
		p := e.process(n.Process)
		p.harm = append(p.harm, window{n.From, n.At + after, "stall"})
	case n.Kind != noteFault:
	case n.What == "kill":
		e.process(n.On).killed = n.From
	case n.What == "term":
		e.process(n.On).term = n.From
	case n.What == "freeze", n.What == "blink":
		w.to += after
		p := e.process(n.On)
		p.harm = append(p.harm, w)
	case n.What == "slow server" && e.serverFault(w):
	case n.What == "slow server", n.What == "connections":
		w.to += after
		e.machine(w)
	case strings.HasPrefix(n.On, "slot"):
		w.to += after
		for _, p := range e.processes {
			if p.slot == n.On {
				p.harm = append(p.harm, w)
			}
		}
	}
}

// machine harms all processes.
func (e *evidence) machine(w window) {
	for _, p := range e.processes {
		p.harm = append(p.harm, w)
	}
}

// serverFault says whether the server was harmed on purpose in a window.
func (e *evidence) serverFault(w window) bool {
	return slices.ContainsFunc(e.faults, func(n note) bool {
		return n.What != "slow server" && (n.On == "server" || n.On == "tables" || isList(n.On)) && n.From <= w.to && w.from <= n.At+1_000_000
	})
}

// reason says why the lease of a spell could run out, "" if it should not have.
func (e *evidence) reason(h *history, s *spell) string {
	p := e.process(s.claim.Worker)
	until := s.left.At
	if p.killed != 0 && p.killed <= until {
		return "killed"
	}
	if p.gone != 0 && p.gone <= until {
		return "gone"
	}
	for _, w := range p.harm {
		if w.from <= until && s.last.At <= w.to {
			return w.what
		}
	}
	if s.run != nil && locksItself(s.run) {
		return "its own transaction"
	}
	id := strconv.FormatInt(h.id, 10)
	for _, n := range e.faults {
		if n.What == "row locks" && n.From <= until && s.last.At <= n.At+after && slices.Contains(strings.Fields(n.On), id) {
			return "row lock"
		}
	}
	if e.lostEnd(h.id, s, until) {
		return "its end is lost"
	}
	return ""
}

// locksItself: from CompleteTx to the end of its transaction a job's row is locked, and so
// neither renewed nor taken; if it is rolled back after the lease has run out, both may
// come first.
func locksItself(r *handlerRun) bool {
	return completes(r.begin.On) && (r.end == nil || r.end.At-r.begin.At > time.Second.Microseconds())
}

func completes(does string) bool {
	return does == doesComplete || does == doesUndo || does == doesForget
}

func isList(s string) bool {
	_, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(s, " ", 2)[0]), 10, 64)
	return err == nil
}

// disturbed says whether a process was harmed, or the server was, at a time.
func (e *evidence) disturbed(p *process, from, to int64) bool {
	for _, w := range p.harm {
		if w.from <= to && from <= w.to {
			return true
		}
	}
	return e.serverFault(window{from: from, to: to + after})
}
