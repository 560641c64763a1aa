package rebase

import (
	"slices"
	"time"
)

// Turns: how the room of a claim is shared out. Tasks without lanes are served by one
// statement, the longest unserved first; each task with lanes has one of its own, which goes
// through its lanes from where the last one ended. So neither a task nor a lane with many jobs
// keeps another out.

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

// A scan goes through the lanes of a task, a part with each claim.
type scan struct {
	cursor    string // where it goes on
	reach     int    // how many lanes the next claim visits at least
	lanesSeen int    // by the last claim that told
	barren    bool   // it has found nothing since it began at the first lane
	whole     bool   // it began there in this series of idle looks
	looked    bool   // it is over in this series; of a task without lanes: it was asked for
}

// addLanes scans the task's lanes from where the last scan ended.
func (e *engine) addLanes(p *plan, t *taskState, room int, add func(*batch, ...statement)) {
	b := &batch{laned: t, wanted: room, ahead: room > p.free, from: t.cursor, asked: max(min(2*room, 1000), 100, t.reach)}
	if p.idle {
		b.asked = lanesALook
	}
	names, ats, ids := []string{}, []time.Time{}, []int64{}
	for _, l := range t.lanes {
		if at, id := l.floor.start(p.head); !at.Equal(lowest) {
			names, ats, ids = append(names, l.name), append(ats, at), append(ids, id)
		}
	}
	each := max(room/max(t.lanesSeen, 1), 1)
	if t.lanesSeen == 0 { // nobody has counted them yet: the first must not take all that is claimed ahead
		each = max(min(room, p.free), 1)
	}
	st := e.claimStatement(b, claimLanesSQL, t.name, b.from, b.asked, each, names, ats, ids, room, t.laneLimit)
	if t.laneLimit > 0 {
		add(b, statement{sql: laneLockSQL, args: []any{t.name}}, st)
	} else {
		add(b, st)
	}
}

// lanesALook bounds the statement of an idle look, which takes 10 to 20 µs for a lane of which
// nothing can be claimed.
const lanesALook = 10_000

// scanned moves the cursor of a task's lanes, and reports whether claims are to go on: the scan has
// not come to the end, or something was found since it began. After an idle look the next of the
// series goes on, until a scan of that series was whole.
func (e *engine) scanned(b *batch, idle bool) bool {
	t := b.laned
	t.barren = len(b.claim.attempts) == 0 && (t.barren || b.from == "")
	t.whole = t.whole || b.from == ""
	full := len(b.claim.attempts) >= b.wanted
	if b.seen < b.asked && !full {
		t.cursor = ""
		t.prune()
		if b.from == "" {
			t.lanesSeen = b.seen
			t.laned = b.seen > 1 || b.seen == 1 && b.lastLane != ""
		}
		t.looked = idle && t.barren && t.whole
		return !idle && !t.barren
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
	return !idle
}

// reach says how far the next scans go: each four times as far as the last while no claim brings
// anything, so that many lanes of which nothing can be claimed are soon passed by; no further than
// for what there is room while claims bring something, since whatever they bring waits for them.
func (e *engine) reach(batches []*batch, found int) {
	for _, b := range batches {
		switch {
		case b.laned == nil:
		case found > 0:
			b.laned.reach = 0
		default:
			b.laned.reach = min(4*b.asked, lanesALook)
		}
	}
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
		if when := l.floor.due(); !when.IsZero() && when.Before(e.duties.heads) {
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
