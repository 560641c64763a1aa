package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rebasejobs/rebase"
)

// An effect outside the database, found again by the job's id.

// Charge is what is to be charged to a card.
type Charge struct {
	Card  string `json:"card"`
	Cents int64  `json:"cents"`
}

// ChargeCard charges a card once.
const ChargeCard rebase.Task[Charge] = "idempotent-charge"

var errNoAnswer = errors.New("the connection to the bank broke before the answer")

func charger(bank *bank, say func(string, ...any)) func(context.Context, *rebase.Job, Charge) error {
	return func(_ context.Context, job *rebase.Job, c Charge) error {
		// Run numbers wouldn't do for the reference: they are another one each time.
		reference := fmt.Sprintf("job-%d", job.ID)
		if bank.has(reference) {
			say("job %d, attempt %d: %s is at the bank already, nothing to do", job.ID, job.Attempts, reference)
			return nil
		}
		bank.charge(reference, c)
		// The worst moment: the effect is there, and we don't know.
		say("job %d, attempt %d: charged %s, and then: %v", job.ID, job.Attempts, reference, errNoAnswer)
		return errNoAnswer
	}
}

// A bank stands for a service elsewhere. It keeps a reference with each charge and can
// be asked for it. (Many take such a reference as an idempotency key and do the asking
// themselves; then send it and don't ask.)
type bank struct {
	mu      sync.Mutex
	charges map[string]Charge
	total   int
}

func newBank() *bank { return &bank{charges: map[string]Charge{}} }

func (b *bank) has(reference string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.charges[reference]
	return ok
}

func (b *bank) charge(reference string, c Charge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charges[reference] = c
	b.total++ // not len(charges): a second charge must show
}

func (b *bank) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}
