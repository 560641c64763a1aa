package rebase

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// The engine is what one call of Worker.Run sets in motion; everything in it ends
// with that call. This file holds its state and the one lock over it: which jobs
// are held, which wait in the buffer, whose turn it is.
//
// Three goroutines work on that state: the claimer (claimer.go) brings jobs in over
// one connection, the recorder (recorder.go) writes results, renews and reaps over
// another, so that neither ever waits for the other; the watch (watch.go) ends
// attempts whose time is up. Handlers run on goroutines of their own that take the
// next job from the buffer themselves (attempt.go).

const (
	// pace is how often a worker with a full buffer claims: the batches grow with
	// the load instead of the number of claims.
	pace = 5 * time.Millisecond
	// longJob is the mean handler time from which nothing is claimed ahead.
	longJob = 200 * time.Millisecond
	// aheadRows and aheadBytes bound what is claimed ahead.
	aheadRows  = 1000
	aheadBytes = 8 << 20
	// maxWait is how long a job may wait in the buffer before it is given back.
	maxWait = time.Second
)

type engine struct {
	w        *Worker
	q        *Queue
	id       string
	names    []string // of the tasks
	log      *slog.Logger
	events   *events
	once     bool               // RunOnce: stop when nothing is due
	handlers context.Context    // parent of the jobs' contexts: Run's values, never cancelled
	base     context.Context    // of bookkeeping: ends when the last result is written
	hardEnd  context.CancelFunc // ends base
	stop     chan struct{}      // closed when stopping is set
	quit     chan struct{}      // closed when there is nothing more to record
	intern   map[string]string  // names that come with every row; not written after the start

	claims, results *session // the claimer's and the recorder's

	claimSignal, recordSignal, watchSignal signal // wake the three
	changed                                signal // something that a shutdown waits for

	listener *listener // nil when polling only

	// The recorder's own.
	reaping     reaping
	sweep       sweep
	tended      time.Time // when the code's schedules were last written
	since       time.Time // when this worker came, by the database's clock
	scheduleIDs []string  // that the code declares
	refusalSaid time.Time // when it was last said that the database refuses one
	tokensSaid  bool      // that a claim can't be given back
	beatSaid    bool      // that a heartbeat was refused
	unserved    map[string]bool
	orphans     orphanKey

	mu      sync.Mutex // guards all that follows
	tasks   []*taskState
	byName  map[string]*taskState
	ready   fifo[*taskState] // tasks with buffered jobs, in turn
	held    map[int64]*claim // by token, until the last job of each is recorded
	running int              // slots taken
	// buffered jobs are claimed and not begun; at most one held job is on probation: it was
	// once reaped, see prove.
	buffered, reaped int
	abandoned        int         // handlers that run on although their outcome is decided
	attempts         int         // begun in all
	outbox           []*attempt  // finished, to be recorded
	unsaved          int         // finished and not known to be recorded, wherever they are
	late             int         // timed out; their slots are free, and their failures not saved yet
	later            []deferred  // finished, to be recorded later: locked, refused, or see doubt
	doubtful         []*attempt  // finished, but the result found no row to write
	died             []*attempt  // dead letters, to be logged
	overtaking       []Event     // claims that the events of results on the wire go before
	alone            int         // this many results go one by one
	most             bound       // of results in a round
	suspected        bool        // the last round of results was answered as if in an outage
	over             []*claim    // whose row in rebase.claims can go
	ledger           postponed   // until those are tried again
	stopping         bool        // claim nothing more
	cause            error       // of the end of all handlers' contexts; nil until a shutdown's last third
	onceErr          error       // ended RunOnce
	look             lookout     // the claimer's state
	stragglers       []int64     // found by head looks, to be claimed by id
	reapedDue        bool        // a job that was reaped is due
	lostTokens       []lostToken // claims that may have been committed
	duties           duties      // the recorder's next times
	owed             owing       // by RunOnce
	trusted          time.Time   // renewals have gone through without a break since; zero: they have not
	split            splitting   // of renewals that were refused
	turn, turnWall   time.Time   // the last turn of the recorder's loop, by the monotonic and the wall clock
	renewedAt        time.Time   // when the last renewal that went through began
	earliest         time.Time   // the watch's next deadline; zero: none
	counts           counters
	beat             time.Time // when the recorder's loop last went round; zero: not yet
	started          time.Time // when an attempt last began
	firedAt          time.Time // when the schedules were last looked at

	claimsAway, resultsAway outage
	reached                 time.Time     // when either of them last had an answer
	nextTry                 time.Time     // when the next of the loops may try the database again
	returned                chan struct{} // closed and made anew when the database is back
	cutAt                   time.Time     // when either of the two connections was last found broken

	// See notify.go.
	listening bool // notifications arrive
	hearings  int  // how often that began
	deafSaid  bool // that they don't has been logged
	deafSince time.Time
	ping      ping
	peers     int // live workers, this one included
}

// counters are what this engine has done; see rebase.workers.
type counters struct {
	Claims    int64 `json:"claims"` // statements
	Claimed   int64 `json:"claimed"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"` // attempts that will be tried again
	Dead      int64 `json:"dead"`
	Snoozed   int64 `json:"snoozed"`
	Cancelled int64 `json:"cancelled"`
	Setbacks  int64 `json:"setbacks"`
	Released  int64 `json:"released"`
	Lost      int64 `json:"lost"`
	Reaped    int64 `json:"reaped"`
}

// A taskState is a task in the engine, whose lock guards it.
type taskState struct {
	*taskConfig
	running  int
	buffered int
	queued   bool        // stands in engine.ready
	ready    fifo[*lane] // lanes with buffered jobs, in turn
	lanes    map[string]*lane
	mean     time.Duration // smoothed handler time; 0 while unknown
	bytes    float64       // smoothed payload size
	turn     int64         // when a claim last brought jobs; the smallest goes first
	laned    bool          // has jobs with lanes: they are discovered by a loose scan
	scan                   // of its lanes
	skipped  bool          // the last claim left it out: all its slots were taken
}

// A lane is one queue of jobs: a task's, or a task's and lane's.
type lane struct {
	task   *taskState
	name   string
	buffer fifo[*attempt]
	queued bool // stands in task.ready
	floor  floor
}

// A claim is what one claim statement brought: the rows that carry its token.
type claim struct {
	token    int64
	server   time.Time // when the server started that it was made on
	deadline time.Time // on the local clock, before the lease can have ended
	attempts []attempt
	left     int // not yet recorded
}

func (t *taskState) lane(name string) *lane {
	l := t.lanes[name]
	if l == nil {
		l = &lane{task: t, name: name}
		t.lanes[name] = l
	}
	return l
}

// enbuffer puts a claimed job into its lane's buffer.
func (e *engine) enbuffer(a *attempt) {
	l := a.lane
	l.buffer.push(a)
	l.task.buffered++
	e.buffered++
	if !l.queued {
		l.queued = true
		l.task.ready.push(l)
	}
	e.enqueueTask(l.task)
}

func (e *engine) enqueueTask(t *taskState) {
	if !t.queued && t.ready.len() > 0 {
		t.queued = true
		e.ready.push(t)
	}
}

// pick takes the next job that may start: of the task whose turn it is, of the lane
// whose turn it is in that task. It takes the slot, too; nil if there is no job or no
// slot.
func (e *engine) pick(now time.Time) *attempt {
	if e.running >= e.w.opts.Concurrency {
		return nil
	}
	for range e.ready.len() {
		t := e.ready.pop()
		t.queued = false
		if t.running >= t.limit {
			continue // comes back when one of its jobs ends
		}
		a := t.take(e)
		e.enqueueTask(t)
		if a != nil {
			e.begin(a, now)
			return a
		}
	}
	return nil
}

// take removes the next buffered job of the task; nil if those left were lost.
func (t *taskState) take(e *engine) *attempt {
	for t.ready.len() > 0 {
		l := t.ready.pop()
		l.queued = false
		var a *attempt
		for a == nil && l.buffer.len() > 0 {
			a = l.buffer.pop()
			if a.state == stateBuffered {
				e.unbuffer(a)
			} else {
				a = nil // lost or given back while it waited
			}
		}
		if l.buffer.len() > 0 {
			l.queued = true
			t.ready.push(l)
		}
		if a != nil {
			return a
		}
	}
	return nil
}

// unbuffer takes a job out of the counts; its entry in the fifo is skipped later.
func (e *engine) unbuffer(a *attempt) {
	a.lane.task.buffered--
	e.buffered--
	e.roomier()
}

// roomier wakes a claimer that waits for room. Whatever makes room must call it: nothing else
// ends that wait for half a minute.
func (e *engine) roomier() {
	if e.look.blocked {
		e.claimSignal.set()
	}
}

// begin takes a slot for the job.
func (e *engine) begin(a *attempt, now time.Time) {
	a.state, a.began, e.started = stateRunning, now, now
	a.lane.task.running++
	e.running++
	e.attempts++
	if a.timeout > 0 {
		a.deadline = now.Add(a.timeout)
	}
	e.arm(a.deadline)
	e.arm(a.claim.deadline)
	if a.job.crashes != 0 {
		e.arm(now.Add(e.probation()))
	}
}

// end frees the job's slot.
func (e *engine) end(a *attempt) {
	t := a.lane.task
	t.running--
	e.running--
	e.roomier()
	e.enqueueTask(t)
	if t.skipped {
		t.skipped, e.look.woken = false, true
		e.claimSignal.set()
	}
}

// startSlots starts a goroutine for each job that may begin now.
func (e *engine) startSlots(now time.Time) {
	for a := e.pick(now); a != nil; a = e.pick(now) {
		go e.slot(a)
	}
}

// learn folds a handler's time into the task's mean.
func (t *taskState) learn(d time.Duration) {
	d = max(d, time.Microsecond)
	if t.mean == 0 {
		t.mean = d
		return
	}
	t.mean += (d - t.mean) / 5
}

// release gives back what waits in the buffer and matches.
func (e *engine) release(match func(*attempt) bool) {
	for _, c := range e.held {
		for i := range c.attempts {
			if a := &c.attempts[i]; a.state == stateBuffered && match(a) {
				e.unbuffer(a)
				e.save(a, outcome{kind: kindReleased})
			}
		}
	}
}

// save hands a job to the recorder.
func (e *engine) save(a *attempt, o outcome) {
	a.state, a.outcome = stateFinished, o
	if e.reconsider(a); a.outcome.cut {
		e.later = append(e.later, deferred{a, time.Now().Add(e.doubt())})
	} else {
		e.outbox = append(e.outbox, a)
	}
	e.unsaved++
	e.recordSignal.set()
	e.changed.set()
}

// settle forgets a job: its row no longer carries this claim's token.
func (e *engine) settle(a *attempt) {
	if a.state == stateFinished {
		e.unsaved--
		e.roomier()
	}
	a.state = stateSettled
	e.prove(a)
	if a.lane.task.laneLimit > 0 && a.lane.name != "" {
		e.look.woken = true // the lane has room again, which only the row could tell
		e.claimSignal.set()
	}
	c := a.claim
	if c.left--; c.left == 0 {
		delete(e.held, c.token)
		e.over = append(e.over, c)
		e.recordSignal.set()
	}
	e.changed.set()
}

// wake makes the claimer look now, if this engine serves the task ("" for any). It
// reports whether it does.
func (e *engine) wake(task string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if task != "" && e.byName[task] == nil {
		return false
	}
	e.look.woken = true
	e.claimSignal.set()
	return true
}

// expect is wake for a job that is about to be committed, perhaps: a series of
// quick looks begins.
func (e *engine) expect(task string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byName[task] == nil {
		return false
	}
	e.look.soon(time.Now())
	e.claimSignal.set()
	return true
}

// heldIDs are the ids of jobs that are in one of the states.
func (e *engine) heldIDs(states ...attemptState) []int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []int64
	for _, c := range e.held {
		for i := range c.attempts {
			if slices.Contains(states, c.attempts[i].state) {
				ids = append(ids, c.attempts[i].job.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}
