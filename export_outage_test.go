package rebase

import (
	"context"
	"time"
)

// Outages is an engine that is not started and is told what became of its rounds.
type Outages struct{ e *engine }

func NewOutages(w *Worker) *Outages {
	return &Outages{newEngine(context.Background(), w, false)}
}

// Round tells of a round over the connection for claims or the one for results.
func (o *Outages) Round(claims bool, began time.Time, err error) {
	of := &o.e.resultsAway
	if claims {
		of = &o.e.claimsAway
	}
	o.e.reachable(of, began, err)
}

// Claims says whether the claimer, woken, would claim now.
func (o *Outages) Claims() bool {
	o.e.wake("")
	p, _, _ := o.e.plan(time.Now())
	return p != nil
}

// Unsaved makes it look as if so many results were not recorded yet.
func (o *Outages) Unsaved(n int) { o.e.unsaved = n }

// MostUnsaved is the bound of that.
const MostUnsaved = mostUnsaved

// LostRound is what a round returns whose connection broke.
func LostRound(err error) error { return &lostError{err: err} }

// HoldsOfAnotherServer makes all that is held look as if another server had given it out.
func (w *Worker) HoldsOfAnotherServer() {
	w.peek(func(e *engine) {
		for _, c := range e.held {
			c.server = time.Time{}
		}
	})
}

// Room is how many jobs the claimer, woken, would claim of a task whose handlers take so long; more
// says that its last claim found something.
func (o *Outages) Room(mean time.Duration, more bool) int {
	o.e.tasks[0].mean, o.e.look.more = mean, more
	o.e.wake("")
	p, _, _ := o.e.plan(time.Now())
	return p.room
}
