//go:build unix

// The rules about what people and processes see: operations that were answered have
// happened, a pause is a pause, single jobs start at once, a quiet queue gets empty,
// processes end only when they are told to.

package main

import (
	"strings"
	"time"
)

// operations: what was answered with success stands in the audit, within the time of the
// call; and no row was cancelled or retried without a call (J18).
func (e *evidence) operations() {
	calls := map[int64][]note{} // by job
	var redrives []note
	for _, n := range e.notes {
		switch {
		case n.Kind != noteOperate || n.What == refused:
		case n.Job != 0:
			calls[n.Job] = append(calls[n.Job], n)
		case n.Task == opRedrive:
			redrives = append(redrives, n)
		}
	}
	for _, id := range e.ids {
		h := e.jobs[id]
		for _, n := range calls[id] {
			e.looked("operations")
			if n.What == committed && !h.shows(n) && !e.lostOperation(n) {
				e.wrong("operations", id, "%s was answered with success, and the row does not show it", n.Task)
			}
		}
		for i, s := range h.states[1:] {
			before := h.states[i]
			switch {
			case before.finished() && s.Status == "pending":
				if !within(calls[id], opRetry, s.At) && !(before.Status == "failed" && within(redrives, opRedrive, s.At)) {
					e.wrong("operations", id, "nobody asked for a retry")
				}
			case s.Status == "cancelled" && before.Status != "cancelled" && s.Fence == 0:
				if !within(calls[id], opCancel, s.At) {
					e.wrong("operations", id, "nobody asked for a cancel")
				}
			}
		}
	}
}

// lostOperation says whether what a call was answered with is lost with the old primary; or, on
// that, whether it may have come too late.
func (e *evidence) lostOperation(n note) bool {
	if e.cut != 0 {
		return n.At >= e.cut
	}
	if e.loss == nil || n.From > e.loss.killed {
		return false
	}
	old := e.loss.old.jobs[n.Job]
	return old != nil && old.shows(n) && e.pardons("confirmed operations lost", n.At)
}

// within says whether there was such a call at a time. One whose outcome is unknown may
// still be carried out for a while.
func within(calls []note, what string, at int64) bool {
	for _, n := range calls {
		until := n.At
		if n.What == unknown {
			until += time.Minute.Microseconds()
		}
		if n.Task == what && n.From <= at && at <= until {
			return true
		}
	}
	return false
}

// shows says whether the audit has what a call was answered with.
func (h *history) shows(n note) bool {
	for i, s := range h.states {
		switch {
		case s.At > n.At:
		case n.Task == opCancel && s.Status == "cancelled":
			return true // by this call or before
		case n.Task == opRetry && s.At >= n.From && s.Status == "pending" && i > 0 && h.states[i-1].finished():
			return true
		}
	}
	return false
}

// pauses: of a task that was paused nothing is claimed, some seconds for claims under way
// aside (J18).
func (e *evidence) pauses() {
	const underWay = int64(1_500_000)
	paused := map[string]int64{}
	var pauses []note
	for _, n := range e.notes {
		switch {
		case n.Kind != noteOperate || n.On == "":
		case n.Task == opPause && n.What == committed:
			paused[n.On] = n.At
		case n.Task == opResume && paused[n.On] != 0:
			pauses = append(pauses, note{On: n.On, From: paused[n.On] + underWay, At: n.From})
			paused[n.On] = 0
		}
	}
	if l := e.loss; l != nil { // a pause that may be lost ends with the old primary
		for i, p := range pauses {
			if p.From-underWay >= l.kept && p.From-underWay <= l.ready {
				pauses[i].At = min(p.At, l.killed)
			}
		}
	}
	for range pauses {
		e.looked("pauses")
	}
	for _, id := range e.ids {
		h := e.jobs[id]
		for _, s := range h.spells {
			for _, p := range pauses {
				if p.On == h.states[0].Task && p.From < s.claim.At && s.claim.At < p.At {
					e.wrong("pauses", id, "claimed %s after the pause of %s", seconds(s.claim.At-p.From+underWay), p.On)
				}
			}
		}
	}
}

// wakeLimit is far above what a notification takes and far below an idle look's 30 s.
const wakeLimit = 5 * time.Second

// wakes: on a quiet queue a single job starts at once; one that was enqueued before everybody
// fell asleep and committed after that, about as long after as its transaction took (N1).
func (e *evidence) wakes() {
	for _, n := range e.notes {
		if n.Kind != noteProbe {
			continue
		}
		e.looked("wakes")
		h := e.jobs[n.Job]
		if h == nil || len(h.runs) == 0 {
			e.wrong("wakes", n.Job, "it never ran")
			continue
		}
		wait := max(h.runs[0].begin.At-n.At, 0)
		if n.From == 0 {
			e.report.wakes = append(e.report.wakes, wait)
		} else {
			e.report.facts["stragglers"]++
		}
		limit := wakeLimit.Microseconds()
		if n.From != 0 { // a straggler
			limit += n.At - n.From
		}
		if wait > limit {
			e.wrong("wakes", n.Job, "it waited for %s on an idle queue (way %s)", seconds(wait), n.Text)
		}
	}
}

// drains: when the faults are over, the queue gets empty in time (J11).
func (e *evidence) drains() {
	for _, n := range e.notes {
		switch n.Kind {
		case noteEmpty:
			e.looked("drains")
			took := n.At - n.From
			e.report.drains = append(e.report.drains, took)
			if took > (e.Visibility + patience + 2*time.Second).Microseconds() {
				e.wrong("drains", 0, "the queue was empty only after %s", seconds(took))
			}
		case noteStuck:
			e.wrong("drains", firstOf(n.Text), "%s after the last fault the queue is not empty: %s", seconds(n.At-n.From), n.Text)
		}
	}
}

// exits: a worker ends by a signal that somebody sent, or when it is told to, and then in
// time and in order (J15).
func (e *evidence) exits() {
	for _, p := range e.processes {
		e.looked("processes")
		switch {
		case p.exit == "signal: killed":
			if p.killed == 0 && !p.died {
				e.wrong("processes", 0, "%s was killed by nobody", p.name)
			}
		case p.exit == "exit status 0", p.exit == "exit status 3":
			e.shutdown(p)
		default:
			e.wrong("processes", 0, "%s ended by itself: %q", p.name, p.exit)
		}
	}
	for _, id := range e.ids {
		for _, s := range e.jobs[id].spells {
			p := e.process(s.claim.Worker)
			if p.exit == "exit status 0" && s.run != nil && (s.left == nil || s.left.At > p.gone) && !e.lostEnd(id, s, p.gone) {
				e.wrong("processes", id, "%s ended in order, and still had run %d", p.name, s.claim.Runs)
			}
		}
	}
}

// shutdown looks at one that was told to end.
func (e *evidence) shutdown(p *process) {
	took := p.gone - p.term
	switch {
	case p.term == 0:
		e.wrong("processes", 0, "%s ended by itself: %q", p.name, p.exit)
	case took > (shutdownTime+3*time.Second).Microseconds() && !e.disturbed(p, p.term, p.gone):
		e.wrong("processes", 0, "%s took %s to end", p.name, seconds(took))
	}
}

// clock: all times here are of one clock, which must not have been set meanwhile.
func (e *evidence) clock() {
	first := map[string]int64{}
	for _, n := range e.notes {
		if n.Kind != noteBegin && n.Kind != noteEnd && n.Kind != noteStart {
			continue
		}
		e.looked("clock")
		drift := n.At - n.Mono
		if _, known := first[n.Process]; !known {
			first[n.Process] = drift
		}
		if d := drift - first[n.Process]; max(d, -d) > time.Second.Microseconds() {
			e.wrong("clock", 0, "the machine's clock was set by %s during the run: nothing here can be trusted", seconds(d))
			return
		}
	}
}

// firstOf is the first id in a text like "2 claims; unfinished: 7 8".
func firstOf(text string) (id int64) {
	_, ids, _ := strings.Cut(text, ": ")
	for _, c := range ids {
		if c < '0' || c > '9' {
			break
		}
		id = 10*id + int64(c-'0')
	}
	return id
}
