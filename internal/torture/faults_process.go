//go:build unix

// What is done to worker processes. A process is dead for the checker from the moment when
// the signal is sent, and gone from the moment when it was waited for.

package main

import (
	"context"
	"math/rand/v2"
	"syscall"
	"time"
)

// victim draws a process, nil if the slot is empty just now.
func (a *adversary) victim(r *rand.Rand) *proc {
	return a.fleet.in(a.fleet.slots[r.IntN(len(a.fleet.slots))])
}

func (a *adversary) kill(_ context.Context, r *rand.Rand) (string, error) {
	p := a.victim(r)
	if p == nil {
		return "", nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return "", err
	}
	<-p.done
	return p.name, nil
}

// freeze stops a process for longer than its lease, then lets it go on.
func (a *adversary) freeze(ctx context.Context, r *rand.Rand) (string, error) {
	return a.stop(ctx, r, between(r, a.lease, 2*a.lease))
}

// blink stops a process for a time in which it loses nothing.
func (a *adversary) blink(ctx context.Context, r *rand.Rand) (string, error) {
	return a.stop(ctx, r, between(r, 50*time.Millisecond, a.lease/2))
}

func (a *adversary) stop(ctx context.Context, r *rand.Rand, d time.Duration) (string, error) {
	p := a.victim(r)
	if p == nil {
		return "", nil
	}
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return "", err
	}
	await(ctx, d)
	return p.name, p.signal(syscall.SIGCONT)
}

// term asks a process to shut down, as a deploy does.
func (a *adversary) term(ctx context.Context, r *rand.Rand) (string, error) {
	p := a.victim(r)
	if p == nil {
		return "", nil
	}
	if err := p.listens(ctx); err != nil {
		return "", err
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-time.After(30 * time.Second): // the checker sees how long it took
	}
	return p.name, nil
}
