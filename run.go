package rebase

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The life of one Run: wait for the database and check it, set the engine in motion, wait for
// the end, and stop in an order that leaves nothing unsaid (shutdown.go). No SQL here.

// newEngine prepares a run; it starts nothing.
func newEngine(ctx context.Context, w *Worker, once bool) *engine {
	host, _ := os.Hostname() // a label; "" will do
	// Behind a pooler a stranger's LISTEN may have stayed on the server's connection: what it
	// brings is dropped, where pgx would keep it for ever.
	connect := poolConnect(w.q.pool, func(*pgconn.PgConn, *pgconn.Notification) {})
	e := &engine{
		w: w, q: w.q, once: once, log: w.opts.Logger, events: w.q.events,
		id:     fmt.Sprintf("%s-%08x", cmp.Or(w.opts.Name, host, "worker"), rand.Uint32()),
		claims: &session{connect: connect}, results: &session{connect: connect},
		claimSignal: newSignal(), recordSignal: newSignal(), watchSignal: newSignal(), changed: newSignal(),
		byName: map[string]*taskState{}, held: map[int64]*claim{}, intern: map[string]string{"": "", "running": "running"},
		names: []string{}, sweep: sweep{from: lowest}, stop: make(chan struct{}), quit: make(chan struct{}),
		returned: make(chan struct{}),
	}
	e.base, e.hardEnd = context.WithCancel(context.WithoutCancel(ctx))
	e.handlers = context.WithoutCancel(ctx)
	e.scheduleIDs = slices.AppendSeq([]string{}, maps.Keys(w.schedules))
	slices.Sort(e.scheduleIDs)
	e.intern[e.id] = e.id
	for _, t := range w.tasks {
		s := &taskState{taskConfig: t, lanes: map[string]*lane{}}
		e.tasks, e.names = append(e.tasks, s), append(e.names, t.name)
		e.byName[t.name], e.intern[t.name] = s, t.name
	}
	if !once && !w.opts.PollOnly && len(w.tasks) > 0 {
		e.listener = &listener{e: e, connect: w.listenConnect()}
	}
	e.duties.tokens, e.duties.owed, e.duties.unserved = never, never, time.Now().Add(5*time.Second)
	e.duties.orphans = time.Now().Add(10 * time.Second)
	return e
}

// work is the life of a run.
func (e *engine) work(ctx context.Context) error {
	defer e.hardEnd()
	if err := e.connect(ctx); err != nil || e.results.conn == nil {
		e.results.drop()
		return err
	}
	e.log.Info("rebase: worker started", "worker", e.id, "tasks", e.names, "concurrency", e.w.opts.Concurrency,
		"visibility_timeout", e.w.opts.VisibilityTimeout, "attempt_timeout", e.w.opts.Timeout)
	e.q.addEngine(e)
	var claimer, others sync.WaitGroup
	claimer.Go(e.claimLoop)
	others.Go(e.recordLoop)
	others.Go(e.watchLoop)
	if e.listener != nil {
		others.Go(e.listenLoop)
	}
	e.untilStop(ctx)
	hard := time.Now().Add(e.w.opts.ShutdownTimeout)
	err := e.shutDown(&claimer, hard)
	e.q.removeEngine(e)
	close(e.quit)
	if e.listener != nil {
		e.listener.poke()
	}
	timer := time.AfterFunc(time.Until(hard), e.hardEnd) // a round under way ends by itself, or now
	others.Wait()
	claimer.Wait() // it may have a claim on the wire still
	timer.Stop()
	e.goodbye(ctx)
	if e.onceErr != nil {
		return errors.Join(fmt.Errorf("rebase: RunOnce: %w", e.onceErr), err)
	}
	return err
}

// connect waits for the database and checks it. It returns nil without a connection
// when ctx ended first.
func (e *engine) connect(ctx context.Context) error {
	var again redial
	for ctx.Err() == nil {
		began := time.Now()
		err := e.results.transaction(ctx, max(e.roundLimit(), 5*time.Second), func(ctx context.Context, tx pgx.Tx) error { return check(ctx, tx) })
		if err == nil {
			err = checkSession(e.results.conn)
		}
		if err == nil {
			e.reachable(&e.resultsAway, began, nil)
			if e.once {
				return e.firstLook()
			}
			return nil
		}
		if _, ok := errors.AsType[*SchemaError](err); ok || e.once {
			return err
		}
		if ctx.Err() == nil {
			e.reachable(&e.resultsAway, began, err)
			e.takeTurn(&again, ctx.Done())
		}
	}
	return nil
}

// untilStop waits for Run's context, or for RunOnce's work to be done.
func (e *engine) untilStop(ctx context.Context) {
	if !e.once {
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil && !e.drained() {
		e.changed.wait(-1, ctx.Done())
	}
}

// limits are those of tasks that differ from the worker's, for rebase.workers.
func (w *Worker) limits() string {
	type limit struct {
		Slots int `json:"slots"`
		Lane  int `json:"lane"`
	}
	all := map[string]limit{}
	for _, t := range w.tasks {
		if t.limit != w.opts.Concurrency || t.laneLimit > 0 {
			all[t.name] = limit{t.limit, t.laneLimit}
		}
	}
	raw, _ := json.Marshal(all) // strings and integers
	return string(raw)
}

// countersJSON is what the worker's row says. The engine's lock is held.
func (e *engine) countersJSON() string {
	raw, _ := json.Marshal(struct {
		counters
		Abandoned int `json:"abandoned"`
	}{e.counts, e.abandoned}) // integers
	return string(raw)
}

// roundLimit bounds a round trip: well below the time between two renewals.
func (e *engine) roundLimit() time.Duration {
	return min(e.w.opts.VisibilityTimeout/3, 10*time.Second)
}

// leaseLocal is how long a claim counts as held after the request for it was sent: a
// tenth less than the lease, so that a handler is told before the lease can have ended.
func (e *engine) leaseLocal() time.Duration { return e.w.opts.VisibilityTimeout * 9 / 10 }
