package rebase_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// M2's events: each of a job's life arrives in order, and the function that they are
// given to can't do the worker any harm.

// A recorder of events.
type diary struct {
	mu     sync.Mutex
	events []rebase.Event
}

func (d *diary) note(ev rebase.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, ev)
}

// kinds are those of one job, in order.
func (d *diary) kinds(id int64) (kinds []rebase.EventKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ev := range d.events {
		if ev.ID == id {
			kinds = append(kinds, ev.Kind)
		}
	}
	return kinds
}

// M2, J7: one event for each step; a dead letter has its own.
func TestEveryStepOfAJobsLifeIsAnEvent(t *testing.T) {
	t.Parallel()
	var d diary
	r := observed(t, d.note)
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 2, Lane: "l"})
	r.once("x", nil, func(_ context.Context, job *rebase.Job) error {
		if job.Runs == 1 {
			return rebase.Snooze(0)
		}
		return errBoom
	})
	want := []rebase.EventKind{"enqueued", "claimed", "snoozed", "claimed", "failed", "claimed", "dead"}
	r.until(func() bool { return slices.Equal(d.kinds(id), want) }, "the events are %v", want)
	last := d.events[len(d.events)-1]
	require.Equal(t, "x", last.Task)
	require.Equal(t, "l", last.Lane)
	require.Equal(t, 2, last.Attempt)
	require.True(t, errors.Is(last.Err, errBoom))
	require.NotEmpty(t, last.Worker)
}

// M2: an OnEvent that blocks, panics or ends its goroutine never blocks the worker.
func TestAnOnEventThatBlocksNeverBlocksTheWorker(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := observed(t, func(rebase.Event) { <-release })
	t.Cleanup(func() { close(release) })
	r.enqueueMany("x", 300, nil)
	require.Equal(t, 300, r.once("x", nil, succeed))
	require.Equal(t, 300, r.count("status = 'succeeded'"))
}

func TestAnOnEventThatPanicsIsLoggedAndTheNextEventsCome(t *testing.T) {
	t.Parallel()
	var d diary
	r := observed(t, func(ev rebase.Event) {
		d.note(ev)
		if ev.Kind == rebase.EventClaimed {
			panic("observer")
		}
	})
	id := r.enqueue("x", nil)
	require.Equal(t, 1, r.once("x", nil, succeed))
	r.until(func() bool { return slices.Contains(d.kinds(id), rebase.EventSucceeded) }, "the last event has come")
	require.Len(t, r.log.matching("ERROR", "OnEvent panicked", "observer"), 1)
}

func TestAnOnEventThatCallsGoexitDoesNotEndTheEvents(t *testing.T) {
	t.Parallel()
	var d diary
	r := observed(t, func(ev rebase.Event) {
		d.note(ev)
		if ev.Kind == rebase.EventClaimed {
			runtime.Goexit()
		}
	})
	id := r.enqueue("x", nil)
	require.Equal(t, 1, r.once("x", nil, succeed))
	r.until(func() bool { return slices.Contains(d.kinds(id), rebase.EventSucceeded) }, "the last event has come")
}
