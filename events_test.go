package rebase_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
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
	r.until(func() bool { return len(d.kinds(id)) == len(want) }, "as many events as %v", want)
	require.Equal(t, want, d.kinds(id))
	last := d.events[len(d.events)-1]
	require.Equal(t, "x", last.Task)
	require.Equal(t, "l", last.Lane)
	require.Equal(t, 2, last.Attempt)
	require.True(t, errors.Is(last.Err, errBoom))
	require.NotEmpty(t, last.Worker)
}

// M2: a job that is due again at once may be claimed again before the reply to its result is there,
// or before it is known that none will come: it is told after it.
func TestAClaimThatOvertakesTheReplyToAResultIsToldAfterIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unheard bool
		want    []rebase.EventKind
	}{
		"the reply comes late":   {false, []rebase.EventKind{"claimed", "snoozed", "claimed", "succeeded"}},
		"the reply doesn't come": {true, []rebase.EventKind{"claimed", "claimed", "lease_lost", "succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d diary
			pool := pgtest.New(t)
			w := rebase.NewWorker(rebase.New(pool, &rebase.Options{Logger: quiet(), OnEvent: d.note}), nil)
			w.Register("count", nothing, nil)
			s := rebase.NewStepper(t.Context(), w)
			t.Cleanup(s.Close)
			id := enqueueMany(t, pool, "count", 1, nil)[0]
			first, err := s.Claim("count", 1, true, false)
			require.NoError(t, err)
			s.Begin(first[0])
			s.Finish(first[0], rebase.Snooze(0))
			var second []rebase.Hold
			require.NoError(t, s.RecordLate(func() { second = claimNow(t, pool, s) }, c.unheard))
			s.Begin(second[0])
			s.Finish(second[0], nil)
			require.NoError(t, s.Record())
			require.Eventually(t, func() bool { return len(d.kinds(id)) == len(c.want) }, soonEnough, 10*time.Millisecond)
			require.Equal(t, c.want, d.kinds(id))
		})
	}
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

// M2: the kinds that trouble makes, and the flag of an enqueue that may roll back.
func TestM2TroubleHasItsEventsToo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h    rebase.Handler
		opts rebase.WorkerOptions
		also func(r *rig, id int64) // while the handler runs
		want []rebase.EventKind
		err  error
	}{
		"cancelled by its handler": {h: returns(rebase.ErrCancelled), want: []rebase.EventKind{"cancelled"}, err: rebase.ErrCancelled},
		"dead at once":             {h: returns(rebase.Permanent(errBoom)), want: []rebase.EventKind{"dead"}, err: errBoom},
		"infrastructure":           {h: returns(&pgconn.ConnectError{}), want: []rebase.EventKind{"setback"}},
		"a timeout": {h: func(ctx context.Context, _ *rebase.Job) error { <-ctx.Done(); return nil },
			opts: rebase.WorkerOptions{Timeout: 20 * time.Millisecond}, want: []rebase.EventKind{"abandoned", "failed"}, err: rebase.ErrTimeout},
		"cancelled from outside": {h: untilDone, want: []rebase.EventKind{"cancelled"},
			also: func(r *rig, id int64) { require.NoError(r.t, r.q.Cancel(r.t.Context(), id, "")) }},
		"a lost lease": {h: succeed, want: []rebase.EventKind{"lease_lost"}, err: rebase.ErrLeaseLost,
			also: func(r *rig, id int64) {
				r.exec(`update rebase.jobs set run_at = now() + interval '1 hour'`)
				r.lose(id)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d diary
			r := observed(t, d.note)
			id := r.enqueue("x", nil)
			c.opts.Backoff = at(time.Hour)
			r.once("x", &c.opts, func(ctx context.Context, job *rebase.Job) error {
				if c.also != nil {
					c.also(r, id)
				}
				return c.h(ctx, job)
			})
			want := append([]rebase.EventKind{"enqueued", "claimed"}, c.want...)
			r.until(func() bool { return slices.Equal(d.kinds(id), want) }, "the events are %v, not %v", want, deferred(func() any { return d.kinds(id) }))
			if c.err != nil {
				require.ErrorIs(t, d.events[len(d.events)-1].Err, c.err)
			}
		})
	}
}

// deferred is formatted when it is printed.
type deferred func() any

func (f deferred) String() string { return fmt.Sprint(f()) }

func returns(err error) rebase.Handler {
	return func(context.Context, *rebase.Job) error { return err }
}

func untilDone(ctx context.Context, _ *rebase.Job) error { <-ctx.Done(); return ctx.Err() }

// M2: an enqueue in a transaction says that it may roll back; a duplicate is no event.
func TestM2AnEnqueuesEventSaysWhetherItIsCommitted(t *testing.T) {
	t.Parallel()
	var d diary
	r := observed(t, d.note)
	first := r.enqueue("x", keyed("k"))
	_, err := r.q.Enqueue(t.Context(), "x", nil, keyed("k"))
	require.NoError(t, err)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	second, err := r.q.EnqueueTx(t.Context(), tx, "y", nil, &rebase.EnqueueOptions{Lane: "l"})
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	r.until(func() bool { return len(d.kinds(second.ID)) > 0 }, "the last one is told")
	require.Equal(t, []rebase.Event{
		{Kind: rebase.EventEnqueued, ID: first, Task: "x"},
		{Kind: rebase.EventEnqueued, ID: second.ID, Task: "y", Lane: "l", Uncommitted: true},
	}, d.events)
}

// M2: a worker that died gives its job's last attempt up: the reaper's event.
func TestM2ADeadLetterOfTheReaperIsAnEvent(t *testing.T) {
	t.Parallel()
	var d diary
	r := observed(t, d.note)
	desk := deskOn(t, r.pool, nil)
	id := r.enqueue("x", &rebase.EnqueueOptions{MaxAttempts: 1})
	desk.claimed(id)
	r.expire()
	r.exec(`update rebase.claims set lease = '1 s'`)
	r.once("other", nil, succeed)
	r.until(func() bool { return slices.Contains(d.kinds(id), rebase.EventDead) }, "the dead letter is told")
	last := d.events[len(d.events)-1]
	require.Equal(t, []any{"x", "w", 1}, []any{last.Task, last.Worker, last.Attempt})
	require.ErrorIs(t, last.Err, rebase.ErrLeaseLost)
}

// M2: what a slow function has no room for is counted, said and dropped; the order stays.
func TestM2ASlowOnEventLosesEventsAndTheLogSaysHowMany(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{}, 1)
	var d diary
	r := observed(t, func(ev rebase.Event) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-release
		d.note(ev)
	})
	r.enqueue("first", nil)
	await(t, entered) // from here on the buffer fills
	for range 3 {
		r.enqueueMany("x", 5_000, nil)
	}
	close(release)
	r.until(func() bool { return len(r.log.matching("WARN", "events were dropped", "count=5000")) == 1 }, "it is said")
	last := r.enqueue("x", nil)
	r.until(func() bool { return len(d.kinds(last)) == 1 }, "later ones come")
	require.Len(t, d.events, 1+10_000+1)
	require.True(t, slices.IsSortedFunc(d.events, func(a, b rebase.Event) int { return int(a.ID - b.ID) }))
}

// M2: what ends well carries no error, also if CompleteTx ended it or it was snoozed.
func TestM2EventsOfWhatIsNoFailureHaveNoError(t *testing.T) {
	t.Parallel()
	events := make(chan rebase.Event, 100)
	r := observed(t, func(ev rebase.Event) { events <- ev })
	r.effects()
	r.enqueue("x", nil)
	r.once("x", nil, func(ctx context.Context, job *rebase.Job) error {
		if job.Runs == 1 {
			return rebase.Snooze(time.Millisecond)
		}
		return complete(ctx, r, job, true)
	})
	for {
		ev := await(t, events)
		require.NoError(t, ev.Err, "%s", ev.Kind)
		if ev.Kind == rebase.EventSucceeded {
			return
		}
	}
}
