package rebase

import (
	"context"
	"time"
)

// What the black-box tests of workers need of the inside: a reaper that can be stopped
// between its look and its write, and the check for tasks that nobody serves.

// A Reaper is an engine without loops.
type Reaper struct{ e *engine }

func NewReaper(w *Worker) *Reaper { return &Reaper{newEngine(context.Background(), w, true)} }

// Look lists the expired claims, as a process would that could renew for so long.
func (r *Reaper) Look(ctx context.Context, trusted time.Duration) ([]int64, error) {
	expired, _, _, err := r.e.expiredClaims(ctx, trusted)
	return expired, err
}

// Write takes back what the look has found.
func (r *Reaper) Write(ctx context.Context, tokens []int64) error {
	for len(tokens) > 0 {
		rest, err := r.e.reapClaims(ctx, tokens, false, time.Now())
		if err != nil {
			return err
		}
		tokens = rest
	}
	return nil
}

// Unserved warns of tasks that no live worker serves.
func (r *Reaper) Unserved(ctx context.Context) error { return r.e.unservedDuty(ctx, time.Now()) }

func (r *Reaper) Close() { r.e.results.drop() }

// Suspend makes the worker's clocks look as if the machine had slept for d.
func Suspend(w *Worker, d time.Duration) {
	e := w.current()
	e.mu.Lock()
	e.turnWall = e.turnWall.Add(-d)
	e.mu.Unlock()
	e.recordSignal.set()
}

// A Bound is how many jobs a round may have.
type Bound struct{ b bound }

func NewBound() *Bound                                           { return &Bound{} }
func (b *Bound) Of(n int) int                                    { return b.b.of(n) }
func (b *Bound) Shrink(n int)                                    { b.b.shrink(n) }
func (b *Bound) Grow(n int, took, limit time.Duration, most int) { b.b.grow(n, took, limit, most) }
