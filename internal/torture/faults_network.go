//go:build unix

// What is done to the network between one process, or the enqueuers, and the server. A
// slot has one or two links, and all of them are struck: a process that is cut off is
// cut off.

package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rebasejobs/rebase/internal/faultnet"
)

// links draws whose links are struck: a slot's, or, one time in five, the enqueuers'.
func (a *adversary) links(r *rand.Rand) (victim string, links []*faultnet.Proxy) {
	if r.IntN(5) == 0 {
		return "app", []*faultnet.Proxy{a.app}
	}
	s := a.fleet.slots[r.IntN(len(a.fleet.slots))]
	return s.name, s.links
}

func each(links []*faultnet.Proxy, f func(*faultnet.Proxy)) {
	for _, l := range links {
		f(l)
	}
}

func (a *adversary) cut(_ context.Context, r *rand.Rand) (string, error) {
	victim, links := a.links(r)
	each(links, (*faultnet.Proxy).Cut)
	return victim, nil
}

// stall holds all bytes back, for less than a lease or for more. Those that were under way
// arrive then, also when their sender has given up: a late result among them is for the fence.
func (a *adversary) stall(ctx context.Context, r *rand.Rand) (string, error) {
	victim, links := a.links(r)
	each(links, func(l *faultnet.Proxy) { l.Stall(true) })
	await(ctx, between(r, 100*time.Millisecond, 3*a.lease))
	each(links, func(l *faultnet.Proxy) { l.Stall(false) })
	return victim, nil
}

// blackHole swallows all bytes. The connections that were in it stay deaf until they are
// cut, as those behind a firewall that has lost its state do; at times nobody cuts them.
func (a *adversary) blackHole(ctx context.Context, r *rand.Rand) (string, error) {
	victim, links := a.links(r)
	each(links, func(l *faultnet.Proxy) { l.BlackHole(true) })
	await(ctx, between(r, 300*time.Millisecond, a.lease*3/2))
	each(links, func(l *faultnet.Proxy) { l.BlackHole(false) })
	if r.IntN(2) == 0 {
		each(links, (*faultnet.Proxy).Cut)
	}
	return victim, nil
}

// refuse cuts, and lets nobody come back for a while.
func (a *adversary) refuse(ctx context.Context, r *rand.Rand) (string, error) {
	victim, links := a.links(r)
	each(links, func(l *faultnet.Proxy) { l.Refuse(true); l.Cut() })
	await(ctx, between(r, 100*time.Millisecond, a.lease*3/2))
	each(links, func(l *faultnet.Proxy) { l.Refuse(false) })
	return victim, nil
}

func (a *adversary) delay(ctx context.Context, r *rand.Rand) (string, error) {
	victim, links := a.links(r)
	oneWay := between(r, time.Millisecond, 40*time.Millisecond)
	each(links, func(l *faultnet.Proxy) { l.Delay(oneWay) })
	await(ctx, between(r, time.Second, 4*time.Second))
	each(links, func(l *faultnet.Proxy) { l.Delay(0) })
	return victim, nil
}

// loseReply cuts a connection when the server has committed something and before it can
// say so: what a batch of results, a claim or an enqueue is then, nobody knows.
func (a *adversary) loseReply(ctx context.Context, r *rand.Rand) (string, error) {
	victim, links := a.links(r)
	var lost atomic.Int64
	times, skip := int64(1+r.IntN(3)), int64(r.IntN(5))
	each(links, func(l *faultnet.Proxy) {
		l.DropReplies(func(b []byte) bool {
			n := lost.Add(1) - skip
			return n > 0 && n <= times
		})
	})
	await(ctx, between(r, 200*time.Millisecond, time.Second))
	each(links, func(l *faultnet.Proxy) { l.DropReplies(nil) })
	return victim, nil
}
