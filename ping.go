package rebase

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Pings: notifications to oneself, sent over the recorder's connection along with heartbeats, that
// prove that the LISTEN connection works, at its start and for as long as it is used.

// A ping is a notification to oneself. The engine's lock guards it.
type ping struct {
	nonce string    // the last that was asked for
	sent  time.Time // when it was committed; zero: not yet
	seen  string    // the last of ours that came
	other time.Time // when one of another worker last came
	again time.Time // not before: the server has refused it
}

// ownPing is how long others' pings may stand for one's own at most.
const ownPing = 10 * time.Minute

// askPing makes the recorder send a ping soon.
func (e *engine) askPing() (nonce string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ping = ping{nonce: fmt.Sprintf("%016x", rand.Uint64())}
	e.duties.renew = time.Time{}
	e.recordSignal.set()
	return e.ping.nonce
}

func (e *engine) pingState() (sent time.Time, seen string, open bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.ping
	return p.sent, p.seen, !p.sent.IsZero() && p.seen != p.nonce
}

// pinged takes note of a ping that came. Every worker of a database hears everybody's. Only
// one's own is an answer, but while another's come there is no need to ask: they prove the same,
// and if everybody who hears a ping sent one too, a fleet's work would grow with its square.
func (e *engine) pinged(nonce string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if nonce == e.ping.nonce {
		e.ping.seen = nonce
	} else {
		e.ping.other = time.Now()
	}
}

const pingSQL = `select pg_notify('` + channel + `', 'p:' || $1::text)`

// pingStatement is sent along with every heartbeat while there is a LISTEN connection, unless
// another worker's ping has come since the last renewal. held: it waits, since it was refused.
func (e *engine) pingStatement() (st []statement, nonce string, held bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	open := !e.ping.sent.IsZero() && e.ping.seen != e.ping.nonce // its patience must not begin anew
	if e.ping.nonce == "" || open || !e.listening && !e.ping.sent.IsZero() {
		return nil, "", false
	}
	if !e.ping.sent.IsZero() && now.Sub(e.ping.other) < e.renewPeriod() && now.Sub(e.ping.sent) < ownPing {
		return nil, "", false
	}
	if now.Before(e.ping.again) {
		return nil, "", true
	}
	if !e.ping.sent.IsZero() {
		e.ping.nonce = fmt.Sprintf("%016x", rand.Uint64())
		e.ping.sent = time.Time{}
	}
	return []statement{{sql: pingSQL, args: []any{e.ping.nonce}}}, e.ping.nonce, false
}

// pingSent starts the patience for the ping's arrival.
func (e *engine) pingSent(nonce string) {
	if nonce == "" {
		return
	}
	e.mu.Lock()
	if e.ping.nonce == nonce {
		e.ping.sent = time.Now()
	}
	e.mu.Unlock()
	e.listener.poke()
}

// pingRefused leaves the ping to the next renewal that the clock asks for: each try may take as long
// as a lock_timeout. While a connection waits for it to prove itself, that one comes sooner.
func (e *engine) pingRefused(nonce string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if nonce == "" || e.ping.nonce != nonce {
		return
	}
	now, wait := time.Now(), e.renewPeriod()
	if !e.listening {
		wait = min(wait, proofTime)
		if at := now.Add(wait); at.Before(e.duties.renew) {
			e.duties.renew = at
		}
	}
	e.ping.again = now.Add(wait / 2)
}
