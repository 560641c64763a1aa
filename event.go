package rebase

import (
	"log/slog"
	"sync"
)

// Events tell the user's code what happens to jobs. A worker must never wait for
// that code: events go into a bounded buffer that one goroutine per queue empties
// while it has something to do; what doesn't fit is counted and dropped.

// An Event is something that happened to a job.
type Event struct {
	Kind    EventKind
	ID      int64
	Task    string
	Lane    string
	Worker  string // "" for EventEnqueued
	Attempt int    // 0 for EventEnqueued
	Err     error  // of a failure, nil otherwise
	// Uncommitted: the job was enqueued in the caller's transaction, which may
	// still roll back. Only with EventEnqueued.
	Uncommitted bool
}

// EventKind is the kind of an Event.
type EventKind string

const (
	EventEnqueued  EventKind = "enqueued" // by this Queue's enqueues; a schedule's slot, a job from SQL or a Retry has none
	EventClaimed   EventKind = "claimed"
	EventSucceeded EventKind = "succeeded"
	EventFailed    EventKind = "failed" // and it will be tried again
	EventDead      EventKind = "dead"   // and it will not: a dead letter
	EventSnoozed   EventKind = "snoozed"
	EventCancelled EventKind = "cancelled"
	EventSetback   EventKind = "setback"    // infrastructure trouble, no attempt used
	EventLeaseLost EventKind = "lease_lost" // the result was dropped
	EventAbandoned EventKind = "abandoned"  // the handler runs on after its timeout
)

// eventBuffer is how many events may wait for the user's function.
const eventBuffer = 10_000

// events is the buffer of one queue.
type events struct {
	call func(Event)
	log  *slog.Logger

	mu      sync.Mutex
	waiting []Event
	running bool // a goroutine empties waiting
	dropped int
}

// add takes events for delivery, in order, and never blocks.
func (v *events) add(batch ...Event) {
	if v == nil || len(batch) == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	room := max(eventBuffer-len(v.waiting), 0)
	if len(batch) > room {
		v.dropped += len(batch) - room
		batch = batch[:room]
	}
	v.waiting = append(v.waiting, batch...)
	if !v.running && len(v.waiting) > 0 {
		v.running = true
		go v.deliver()
	}
}

// deliver calls the user's function until nothing waits. If that function calls
// runtime.Goexit (a test's FailNow does), the rest goes on in another goroutine.
func (v *events) deliver() {
	var batch []Event
	ended := false
	defer func() {
		if !ended {
			v.mu.Lock()
			v.waiting = append(batch, v.waiting...)
			v.mu.Unlock()
			go v.deliver()
		}
	}()
	for {
		v.mu.Lock()
		dropped := v.dropped
		batch, v.waiting, v.dropped = v.waiting, nil, 0
		if len(batch) == 0 {
			v.running, ended = false, true
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		if dropped > 0 {
			v.log.Warn("rebase: OnEvent is too slow, events were dropped", "count", dropped)
		}
		for len(batch) > 0 {
			ev := batch[0]
			batch = batch[1:]
			v.callOne(ev)
		}
	}
}

// callOne keeps a panic of the user's function from ending the process.
func (v *events) callOne(ev Event) {
	defer func() {
		if r := recover(); r != nil {
			v.log.Error("rebase: OnEvent panicked", "panic", panicText(r), "job_id", ev.ID, "event", string(ev.Kind))
		}
	}()
	v.call(ev)
}

// emitEnqueued tells of jobs that this queue made.
func (q *Queue) emitEnqueued(rows []jobRow, done []Enqueued, uncommitted bool) {
	if q.events == nil {
		return
	}
	batch := make([]Event, 0, len(done))
	for i, d := range done {
		if !d.Duplicate {
			batch = append(batch, Event{Kind: EventEnqueued, ID: d.ID, Task: rows[i].task, Lane: rows[i].lane, Uncommitted: uncommitted})
		}
	}
	q.events.add(batch...)
}
