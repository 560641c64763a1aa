package rebase

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
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
	passes      int           // idle looks since the last that asked for everything
	passXmin    uint64        // idleLook.xmin of the first of them
	headAt      time.Time     // last look at the heads of all lanes
	headCost    time.Duration // what that took
	idle        int64         // idle looks that found nothing, counted for RunOnce
	idleSaw     int           // plan.saw of the last of them
	idleDue     time.Duration // next due job as of the last of them; negative: none

	// Sleeping, see notify.go.
	wantLock bool
	locked   bool          // the sleep locks are held
	x        uint64        // the transaction id drawn after that
	proven   bool          // nobody who asked before that is still open
	ramp     time.Duration // until the next look, while that is unknown
	fast     bool          // wakes come so fast that it pays to stay awake
	found    time.Time     // when a claim last found something
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
	idle    bool // an idle look
	head    bool // from the heads of the lanes, not from their floors
	probe   bool // ask which tasks have lanes
	room    int  // jobs in all
	free    int  // of which for free slots
	tasks   []*taskState
	wants   []int
	reaped  bool
	ids     []int64
	partial bool // not all tasks were asked for, for lack of room
	saw     int  // attempts begun when an idle look was planned; -1: some had not ended
}

// claimLoop runs until the engine claims nothing more.
func (e *engine) claimLoop() {
	var again redial
	for {
		p, wait, stop := e.plan(time.Now())
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
			e.reachable(&e.claimsAway, nil)
			again.reset()
			continue
		}
		e.mu.Lock()
		e.dropFloors()
		e.look.at = time.Time{}
		e.mu.Unlock()
		e.reachable(&e.claimsAway, err)
		if e.onceFailed(err) {
			return
		}
		e.takeTurn(&again, e.stop)
	}
}

// sleep waits for d or until done is closed.
func sleep(d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}

// plan says what to claim now; or, with a nil plan, how long to wait for something to
// change (negative: for a signal).
func (e *engine) plan(now time.Time) (p *plan, wait time.Duration, stop bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.look
	k.blocked = false
	if e.stopping {
		return nil, 0, true
	}
	idle := !k.more
	if idle && !k.woken && now.Before(k.at) {
		return nil, k.at.Sub(now), false
	}
	if next := k.last.Add(breath); k.empty && now.Before(next) {
		return nil, next.Sub(now), false
	}
	p = e.wants(idle)
	if p == nil {
		k.blocked = true
		e.listener.unlock() // whoever enqueues now need not notify
		return nil, -1, false
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
		if p.saw = e.attempts; e.running > 0 || e.buffered > 0 || e.unsaved > 0 {
			p.saw = -1 // what these become may be due again: RunOnce must look once more
		}
		p.head = !e.hasFloors() || now.Sub(k.headAt) >= max(floorGap, 20*k.headCost)
		if p.head {
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
	ahead := 0
	order := slices.Clone(e.tasks)
	slices.SortStableFunc(order, func(a, b *taskState) int { return int(min(max(a.turn-b.turn, -1), 1)) })
	for _, t := range order {
		extra := e.ahead(t)
		want := t.limit - t.running - t.buffered + extra
		t.skipped = want <= 0
		if want > 0 {
			p.tasks, p.wants = append(p.tasks, t), append(p.wants, want)
		}
		ahead += extra
	}
	p.room = min(p.free+min(ahead, e.aheadCap()), 10*aheadRows)
	if p.room <= 0 || len(p.tasks) == 0 {
		return nil
	}
	p.reaped = e.reaped == 0 && e.buffered == 0 && e.look.passes == 0 && e.running < e.w.opts.Concurrency && (idle || e.reapedDue)
	return p
}

// ahead is how many jobs of the task are to wait in the buffer: as many as its slots
// get through while the next claim is on its way. None while that is unknown or the
// jobs are long, none for tasks whose lanes are limited (what waits would count as
// running), and none while a job that was once reaped is held or due: it might be the one that
// kills the process.
func (e *engine) ahead(t *taskState) int {
	if t.mean == 0 || t.mean > longJob || t.laneLimit > 0 || e.reaped > 0 || e.reapedDue || e.once {
		return 0
	}
	flight := 2*e.look.time + pace
	n := float64(min(t.limit, e.w.opts.Concurrency)) * float64(flight) / float64(t.mean)
	if t.bytes > 0 {
		n = min(n, aheadBytes/t.bytes)
	}
	return int(min(n, float64(e.aheadCap())))
}

// aheadCap grows with the distance to the server: over a slow link fewer, larger
// claims carry the same load.
func (e *engine) aheadCap() int {
	return int(min(aheadRows/2*(1+e.look.time/(2*pace)), 4*aheadRows))
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
	if p.probe {
		statements = append(statements, look.statement(p.tasks))
	}
	if p.idle {
		for _, t := range p.tasks {
			if t.laned {
				statements = append(statements, look.lanesStatement(t.name))
			}
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

// addClaims makes the statements of a plan. Room is shared out among the tasks without
// lanes, which one statement serves, and each task that has lanes.
func (e *engine) addClaims(p *plan, add func(*batch, ...statement)) {
	room := p.room
	if p.reaped {
		b := &batch{reaped: true, wanted: 1}
		var names []string
		var limits []int32
		var locks []statement
		for _, t := range p.tasks {
			names, limits = append(names, t.name), append(limits, int32(t.laneLimit))
			if t.laneLimit > 0 {
				locks = append(locks, statement{sql: laneLockSQL, args: []any{t.name}})
			}
		}
		add(b, append(locks, e.claimStatement(b, claimReapedSQL, names, limits))...)
		room--
	}
	if n := min(len(p.ids), room); n > 0 {
		b := &batch{ids: n, wanted: n, ahead: n > p.free}
		add(b, e.claimStatement(b, claimIDsSQL, p.ids, n))
		room -= n
	}
	groups := e.groups(p)
	for i, g := range groups {
		share := min((room+len(groups)-i-1)/(len(groups)-i), g.want)
		if share <= 0 {
			p.partial = true
			continue
		}
		room -= share
		if t := g.tasks[0]; t.laned {
			e.addLanes(p, t, share, add)
		} else {
			e.addNamed(p, g, share, add)
		}
	}
}

// A group is claimed by one statement.
type group struct {
	tasks []*taskState
	wants []int
	want  int
}

// groups are in the order of their turn: tasks are, and the group of tasks without
// lanes stands where its first one does.
func (e *engine) groups(p *plan) []*group {
	var all []*group
	var plain *group
	for i, t := range p.tasks {
		g := plain
		if t.laned || g == nil {
			g = &group{}
			all = append(all, g)
		}
		if !t.laned {
			plain = g
		}
		g.tasks, g.wants, g.want = append(g.tasks, t), append(g.wants, p.wants[i]), g.want+p.wants[i]
	}
	return all
}

func (e *engine) addNamed(p *plan, g *group, room int, add func(*batch, ...statement)) {
	b := &batch{wanted: room, ahead: room > p.free}
	var tasks, lanes []string
	var ats []time.Time
	var ids []int64
	for i, t := range g.tasks {
		l := t.lane("")
		at, id := l.floor.start(p.head)
		tasks, lanes, ats, ids = append(tasks, t.name), append(lanes, ""), append(ats, at), append(ids, id)
		b.lanes, b.wants = append(b.lanes, l), append(b.wants, int32(min(g.wants[i], room)))
	}
	add(b, e.claimStatement(b, claimSQL, tasks, lanes, b.wants, ats, ids, room))
}

// addLanes scans the task's lanes from where the last scan ended.
func (e *engine) addLanes(p *plan, t *taskState, room int, add func(*batch, ...statement)) {
	b := &batch{laned: t, wanted: room, ahead: room > p.free, asked: max(min(2*room, 1000), 20)}
	if p.idle {
		b.asked = 1000
	}
	names, ats, ids := []string{}, []time.Time{}, []int64{}
	for _, l := range t.lanes {
		if at, id := l.floor.start(p.head); !at.Equal(lowest) {
			names, ats, ids = append(names, l.name), append(ats, at), append(ids, id)
		}
	}
	each := max(room/max(t.lanesSeen, 1), 1)
	st := e.claimStatement(b, claimLanesSQL, t.name, t.cursor, b.asked, each, names, ats, ids, room, t.laneLimit)
	if t.laneLimit > 0 {
		add(b, statement{sql: laneLockSQL, args: []any{t.name}}, st)
	} else {
		add(b, st)
	}
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
			more = e.scanned(b) || more
		}
		e.advanceFloors(b)
		e.takeTurns(b)
	}
	k.empty = n < p.room
	if n > 0 {
		k.found = time.Now()
	}
	if n > 0 || more {
		k.more, k.passes = true, 0
		k.wait = 0
		return
	}
	if !p.idle {
		k.more = false
		k.at = time.Time{} // an idle look, now
		return
	}
	if !p.head {
		k.by(k.headAt.Add(20 * k.headCost)) // the heads are looked at when their turn comes
		return
	}
	k.headCost = took
	// With room for fewer than all groups, idle looks follow each other, by turns, until
	// every group was looked at. The oldest open transaction is that of the first.
	switch {
	case p.partial && k.passes < len(e.groups(p)):
		if k.passes++; k.passes == 1 {
			k.passXmin = look.xmin
		}
		k.more, k.at = false, time.Time{}
		return
	case k.passes > 0:
		k.passes, look.xmin = 0, k.passXmin
	}
	k.idleSaw = p.saw
	e.foundNothing(look)
}

// scanned moves the cursor of a task's lanes, and reports whether to go on at once:
// the scan has not come to the end, or did not begin at the beginning.
func (e *engine) scanned(b *batch) bool {
	t := b.laned
	began := t.cursor
	full := len(b.claim.attempts) >= b.wanted
	if b.seen < b.asked && !full {
		t.cursor = ""
		t.prune()
		if began == "" {
			t.lanesSeen = b.seen
			t.laned = b.seen > 1 || b.seen == 1 && b.lastLane != ""
			return false
		}
		return true
	}
	last := b.lastLane
	if full { // the scan may have gone on beyond the last lane served
		last = ""
		for i := range b.claim.attempts {
			last = max(last, b.claim.attempts[i].job.Lane)
		}
		t.lanesSeen = max(b.seen, 1)
	}
	t.cursor = last + "\x01" // the least string above it, since no lane has a NUL
	return true
}

// advanceFloors notes how far each lane was taken.
func (e *engine) advanceFloors(b *batch) {
	type top struct {
		at time.Time
		id int64
		n  int
	}
	tops := map[*lane]*top{}
	var now time.Time
	for i := range b.claim.attempts {
		a := &b.claim.attempts[i]
		if a.lane == nil || a.outcome.kind == kindBroken {
			continue
		}
		now = a.job.UpdatedAt // the claim's now()
		t := tops[a.lane]
		if t == nil {
			t = &top{}
			tops[a.lane] = t
		}
		t.n++
		if keyLess(t.at, t.id, a.job.RunAt, a.job.ID) {
			t.at, t.id = a.job.RunAt, a.job.ID
		}
	}
	if b.reaped || b.ids > 0 {
		return
	}
	for l, t := range tops {
		full := len(b.claim.attempts) >= b.wanted
		if i := slices.Index(b.lanes, l); i >= 0 {
			full = full || t.n >= int(b.wants[i])
		}
		l.floor.advance(t.at, t.id, t.n, full, now)
		if when := l.floor.due(); l.floor.set && when.Before(e.duties.heads) {
			e.duties.heads = when // the recorder may have taken the lane for quiet
			e.recordSignal.set()
		}
	}
}

// takeTurns puts the tasks that were asked for behind the others. When the claim was cut
// by its total, those that brought nothing may not have been reached.
func (e *engine) takeTurns(b *batch) {
	k := &e.look
	cut := len(b.claim.attempts) >= b.wanted
	for _, l := range b.lanes {
		if !cut {
			k.turn++
			l.task.turn = k.turn
		}
	}
	if b.laned != nil {
		k.turn++
		b.laned.turn = k.turn
	}
	for i := range b.claim.attempts {
		if l := b.claim.attempts[i].lane; cut && l != nil && (l.task.turn != k.turn || k.turn == 0) { // at first all are 0
			k.turn++
			l.task.turn = k.turn
		}
	}
}

// foundNothing decides how long to sleep.
func (e *engine) foundNothing(look *idleLook) {
	k := &e.look
	k.idle++
	e.changed.set()
	k.idleDue = look.next
	k.more = false
	now := time.Now()
	e.nextLook(look, now)
	if look.next >= 0 {
		k.by(now.Add(look.next + time.Millisecond/2))
	}
	if look.blocked {
		k.blockedWait = min(max(2*k.blockedWait, 50*time.Millisecond), time.Second)
		k.by(now.Add(k.blockedWait))
	} else {
		k.blockedWait = 0
	}
}

// nextLook plans the look after one that found nothing; somebody may have brought it forward
// already.
func (e *engine) nextLook(look *idleLook, now time.Time) {
	k := &e.look
	switch {
	case k.locked && !k.proven && look.xmin > k.x:
		k.proven = true
		k.by(now.Add(listenPoll))
	case k.locked && !k.proven:
		k.by(now.Add(k.ramp))
		k.ramp = min(2*k.ramp, listenPoll)
	case k.locked:
		k.by(now.Add(listenPoll))
	case e.listening && k.fast && now.Sub(k.found) < awakeFor:
		k.by(now.Add(breath))
	default:
		k.wantLock = e.listening
		k.by(now.Add(cmp.Or(k.wait, e.w.opts.PollInterval)))
		k.wait = min(2*cmp.Or(k.wait, e.w.opts.PollInterval), listenPoll)
	}
}

// An idleLook is what the tables tell a claimer that found nothing.
type idleLook struct {
	laned   []*taskState  // tasks that have jobs in lanes
	blocked bool          // something is due, but locked by somebody, or its lane is at its limit
	next    time.Duration // until the next job is due; negative: none
	xmin    uint64        // the oldest open transaction, before the claim
}

func (k *idleLook) xminStatement() statement {
	return statement{xminSQL, nil, func(rows pgx.Rows) error {
		var text string
		_, err := pgx.ForEachRow(rows, []any{&text}, func() (err error) {
			k.xmin, err = strconv.ParseUint(text, 10, 64)
			return err
		})
		return err
	}}
}

func (k *idleLook) statement(tasks []*taskState) statement {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.name
	}
	return statement{idleSQL, []any{names}, func(rows pgx.Rows) error {
		var ord int
		var laned, due bool
		var us *int64
		_, err := pgx.ForEachRow(rows, []any{&ord, &laned, &due, &us}, func() error {
			if laned {
				k.laned = append(k.laned, tasks[ord-1])
			}
			k.blocked = k.blocked || due
			k.sooner(us)
			us = nil
			return nil
		})
		return err
	}}
}

func (k *idleLook) lanesStatement(task string) statement {
	return statement{idleLanesSQL, []any{task}, func(rows pgx.Rows) error {
		var us *int64
		var due bool
		_, err := pgx.ForEachRow(rows, []any{&us, &due}, func() error {
			k.blocked = k.blocked || due
			k.sooner(us)
			return nil
		})
		return err
	}}
}

func (k *idleLook) sooner(us *int64) {
	if us == nil {
		return
	}
	if d := max(time.Duration(*us), 0) * time.Microsecond; k.next < 0 || d < k.next {
		k.next = d
	}
}

// bookkeeping returns a context for the end of a run: Run's own has ended.
func bookkeeping(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}
