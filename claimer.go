package rebase

import (
	"cmp"
	"slices"
	"time"
)

// The claimer decides when to claim, how much and of what. While claims find jobs it
// goes on as fast as slots and buffer take them; the first that finds none is followed
// by one idle look: from the heads of all lanes, and asking when the next job is due.
// Only when that finds nothing either does the claimer sleep, until a wake, the next
// due job, or the next look.

// A lookout is the claimer's own state; the engine's lock guards it.
type lookout struct {
	more        bool          // the last claim found something: look again
	woken       bool          // somebody says that there is something
	blocked     bool          // wants to claim, but there is no room
	last        time.Time     // when the last claim was sent
	low         int           // the buffer at which to claim again
	empty       bool          // the last claim brought little: not again at once
	probed      time.Time     // when it was last asked which tasks have lanes
	at          time.Time     // next idle look
	wait        time.Duration // until the one after that, doubling
	blockedWait time.Duration // for jobs that are due but locked by others
	time        time.Duration // smoothed time of a claim
	turn        int64
	headAt      time.Time     // last look at the heads of all lanes
	headCost    time.Duration // what that took
	series      series        // of idle looks, see idle.go
	idle        int64         // idle looks that found nothing, counted for RunOnce
	idleSaw     int           // plan.saw of the last of them
	idleDue     time.Duration // next due job as of the last of them; negative: none

	// Sleeping, see notify.go.
	wantLock bool
	locked   bool      // the sleep locks are held
	x        uint64    // the transaction id drawn after that
	proven   bool      // nobody who asked before that is still open
	slept    time.Time // when they were taken
	fast     bool      // wakes come so fast that it pays to stay awake
	found    time.Time // when a claim last found something
	most     bound     // of jobs in a claim
}

// soon begins a series of quick looks.
func (k *lookout) soon(now time.Time) {
	k.wait = quickLook
	if t := now.Add(quickLook); k.at.After(t) {
		k.at = t
	}
}

// by makes the next idle look happen at t at the latest.
func (k *lookout) by(t time.Time) {
	if k.series.looks > 0 {
		k.series.at = earlier(k.series.at, t)
	}
	if k.at.After(t) {
		k.at = t
	}
}

const (
	quickLook = 20 * time.Millisecond
	// listenPoll is the longest time between looks.
	listenPoll = 30 * time.Second
	// probeGap is how often a busy claimer asks for tasks with lanes.
	probeGap = 100 * time.Millisecond
	// breath separates claims that bring little.
	breath = 2 * time.Millisecond
)

// A plan is what the next claim is to be.
type plan struct {
	idle   bool // an idle look
	head   bool // from the heads of the lanes, not from their floors
	probe  bool // ask which tasks have lanes
	room   int  // jobs in all
	free   int  // of which for free slots
	tasks  []*taskState
	wants  []int
	reaped bool
	ids    []int64
	saw    int // attempts begun when an idle look was planned; -1: some had not ended
}

// claimLoop runs until the engine claims nothing more.
func (e *engine) claimLoop() {
	var again redial
	locked := 0 // claims in a row that met a lock
	for {
		began := time.Now()
		p, wait, stop := e.plan(began)
		if stop {
			return
		}
		if p == nil {
			e.claimSignal.wait(wait, e.stop)
			continue
		}
		err := e.claim(p)
		if err == nil {
			e.fallAsleep()
			e.reachable(&e.claimsAway, began, nil)
			again.reset()
			locked = 0
			continue
		}
		e.mu.Lock()
		if e.tookTooLong(began, err) {
			e.look.most.shrink(max(p.room, 4)) // two at least: one may be for a job that was once reaped
		}
		e.dropFloors()
		e.look.at, e.look.series.looks = time.Time{}, 0
		e.mu.Unlock()
		if locked++; isLockTimeout(err) && locked <= lockPatience {
			continue
		}
		e.reachable(&e.claimsAway, began, err)
		if e.onceFailed(err) {
			return
		}
		e.takeTurn(&again, e.stop)
	}
}

// lockPatience is how many claims in a row may end by lock_timeout (200 ms) before that counts as
// trouble. Even "skip locked" waits where a row's holder commits between the look at the row and
// its lock, which hundreds of workers bring about; and somebody may have the table for a moment.
const lockPatience = 10

// mostUnsaved is how many results may wait: a worker whose results can't be written must not go
// through the whole queue. Nor does one claim while its connection for results can't be had, over
// which leases are renewed: what it began then would be taken from it.
const mostUnsaved = 10_000

// plan says what to claim now; or, with a nil plan, how long to wait for something to
// change.
func (e *engine) plan(now time.Time) (p *plan, wait time.Duration, stop bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.look
	k.blocked = false
	if e.stopping {
		return nil, 0, true
	}
	if e.resultsAway.away || e.unsaved >= mostUnsaved {
		k.blocked = true
		return nil, listenPoll, false
	}
	idle := !k.more
	if idle && !k.woken && now.Before(k.at) {
		return nil, k.at.Sub(now), false
	}
	if next := k.last.Add(breath); k.empty && now.Before(next) {
		return nil, next.Sub(now), false
	}
	if idle && (k.woken || k.series.looks == 0) {
		e.newSeries() // what it was woken for may be where it has been
	}
	p = e.wants(idle)
	if p == nil {
		k.blocked = true
		e.listener.unlock() // whoever enqueues now need not notify
		return nil, listenPoll, false
	}
	k.low = (p.room + e.buffered) / 2
	if full := k.last.Add(pace); p.free <= 0 && now.Before(full) && e.buffered > k.low {
		return nil, full.Sub(now), false
	}
	k.woken, k.last, k.low, p.idle = false, now, 0, idle
	p.probe = idle || now.Sub(k.probed) > probeGap
	if p.probe {
		k.probed = now
	}
	if idle {
		k.at = never // who brings it forward while the look is under way means the one after it
		if p.saw = e.attempts; e.busy() || e.buffered > 0 {
			p.saw = -1 // what these become may be due again: RunOnce must look once more
		}
		if k.series.looks == 0 {
			k.series.head = !e.hasFloors() || now.Sub(k.headAt) >= max(floorGap, 20*k.headCost)
		}
		if p.head = k.series.head; p.head {
			k.headAt = now
		}
	}
	if n := min(len(e.stragglers), p.room); n > 0 && !idle {
		p.ids = slices.Clone(e.stragglers[:n])
		e.stragglers = slices.Delete(e.stragglers, 0, n)
	}
	return p, 0, false
}

// wants adds up what there is room for; nil for none.
func (e *engine) wants(idle bool) *plan {
	p := &plan{free: e.w.opts.Concurrency - e.running - e.buffered}
	p.reaped = e.reaped == 0 && e.buffered == 0 && e.look.series.looks == 0 && p.free > 0 && (idle || e.reapedDue)
	ahead, gone := 0, 0
	order := slices.Clone(e.tasks)
	slices.SortStableFunc(order, func(a, b *taskState) int { return int(min(max(a.turn-b.turn, -1), 1)) })
	for _, t := range order {
		if idle && t.looked {
			continue
		}
		extra := 0
		if !p.reaped { // a job that was once reaped runs with nothing claimed ahead beside it
			extra = e.ahead(t)
		}
		if extra > 0 {
			left := e.leaving(t)
			extra, gone = extra+left, gone+left
		}
		want := t.limit - t.running - t.buffered + extra
		t.skipped = want <= 0
		if want > 0 {
			p.tasks, p.wants = append(p.tasks, t), append(p.wants, want)
		}
		ahead += extra
	}
	p.room = min(p.free+min(ahead, e.aheadCap()+gone), e.look.most.of(10*aheadRows))
	if p.reaped && !e.reapedDue && p.free == 1 {
		p.room++ // else that one would be all that is asked for, and each job need a second look
	}
	if p.room <= 0 || len(p.tasks) == 0 {
		return nil
	}
	return p
}

// ahead is how many jobs of the task are to wait in the buffer: as many as its slots
// get through while the next claim is on its way. None while that is unknown or the
// jobs are long, none for tasks whose lanes are limited (what waits would count as
// running), and none while a job that was once reaped is held or due: it might be the one that
// kills the process.
func (e *engine) ahead(t *taskState) int {
	if t.mean == 0 || t.mean > longJob || t.laneLimit > 0 || e.reaped > 0 || e.reapedDue {
		return 0
	}
	flight := 2*e.look.time + pace
	n := float64(min(t.limit, e.w.opts.Concurrency)) * float64(flight) / float64(t.mean)
	if t.bytes > 0 {
		n = min(n, aheadBytes/t.bytes)
	}
	return int(min(n, float64(e.aheadCap())))
}

// leaving is how many of the task's buffered jobs will have begun when a claim that is sent
// now arrives. Over a slow link that is most of them, and a claim that took them for waiting
// would bring half of what there is room for.
func (e *engine) leaving(t *taskState) int {
	if e.claims.rtt <= pace {
		return 0
	}
	return int(min(float64(t.buffered), float64(min(t.limit, e.w.opts.Concurrency))*float64(e.claims.rtt)/float64(t.mean)))
}

// aheadCap grows with the distance to the server: over a slow link fewer, larger
// claims carry the same load.
func (e *engine) aheadCap() int {
	far := e.look.time / (2 * pace)
	if e.claims.rtt > pace {
		far = e.look.time / pace
	}
	return int(min(aheadRows/2*(1+far), 4*aheadRows))
}

// claim sends a plan as one round.
func (e *engine) claim(p *plan) error {
	var batches []*batch
	var statements []statement
	add := func(b *batch, st ...statement) {
		batches, statements = append(batches, b), append(statements, st...)
	}
	e.mu.Lock()
	e.addClaims(p, add)
	look := idleLook{next: -1}
	if p.idle && e.look.locked {
		statements = append([]statement{look.xminStatement()}, statements...)
	}
	switch {
	case p.head:
		statements = append(statements, look.statement(p.tasks))
	case p.probe: // idleSQL walks the lanes from their heads
		statements = append(statements, look.lanedStatement(p.tasks))
	}
	for _, b := range batches {
		if p.head && b.laned != nil {
			statements = append(statements, look.lanesStatement(b))
		}
	}
	e.mu.Unlock()
	start := time.Now()
	if err := e.claimRound(e.base, batches, statements); err != nil {
		return err
	}
	e.claimed(p, batches, &look, time.Since(start))
	return nil
}

// claimed takes in what a round has told beyond its jobs.
func (e *engine) claimed(p *plan, batches []*batch, look *idleLook, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.look
	k.time += (took - k.time) / 5
	n, more := 0, false
	for _, t := range look.laned {
		if !t.laned {
			t.laned, more = true, true
		}
	}
	for _, b := range batches {
		got := len(b.claim.attempts)
		n += got
		if b.reaped {
			e.reapedDue = got > 0
		}
		if b.laned != nil {
			more = e.scanned(b, p.idle) || more
		}
		e.advanceFloors(b)
		e.takeTurns(b)
	}
	e.reach(batches, n)
	k.empty = n < p.room
	if n > 0 {
		k.found = time.Now()
		k.most.grow(n, took, e.roundLimit(), 10*aheadRows)
	}
	if n > 0 || more {
		k.more, k.series.looks = true, 0
		k.wait = 0
		return
	}
	k.more = false
	switch {
	case !p.idle, !e.seriesDone(p, batches, look, took):
		if p.idle {
			k.series.at = earlier(k.series.at, k.at) // who brought it forward may mean what was looked at before
		}
		k.at = time.Time{} // an idle look, now
	case !p.head:
		k.by(k.headAt.Add(20 * k.headCost)) // the heads are looked at when their turn comes
		k.by(cmp.Or(k.series.at, never))
	default:
		k.by(cmp.Or(k.series.at, never))
		k.headCost, k.idleSaw = k.series.took, k.series.saw
		e.foundNothing(&k.series.idleLook)
	}
}
