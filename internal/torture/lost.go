//go:build unix

// What a failover may take with it, and what not. The old primary's audit tells exactly which
// changes it had committed and the new one has not: they are lost, and nothing else may be
// missing. All of them were committed after the last that the standby had replayed, so what
// was confirmed to anybody before that time is never pardoned.
//
// The old primary's history is judged by the rules too, up to its end. So a claim or a result
// that was lost must have been right, and the new primary's history must be right without it:
// nothing of an attempt whose claim is lost may come into it.

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// failover is the fault's name; its note says when the primary was killed (From), when all were
// led to the new one (At), and when the last transaction that was replayed had ended (N).
const failover = "failover"

// A loss compares the old primary with the new one.
type loss struct {
	old     *evidence
	killed  int64            // µs
	text    string           // what the note says
	ready   int64            // µs; the new one's time begins
	kept    int64            // µs; the last transaction that was replayed
	made    map[int64]*state // the jobs of the old one, by n
	effects map[[2]int64]bool
	lost    []*state        // in the old one's order
	isLost  map[state]bool  // the same
	commits map[int64]int64 // of the old one's transactions, µs
	runs    []*handlerRun   // under claims that are lost
}

// compare finds what is lost. It comes before the notes are sorted.
func (e *evidence) compare(old *evidence, states, oldStates []*state, commits map[int64]int64) {
	l := &loss{old: old, made: map[int64]*state{}, effects: map[[2]int64]bool{}, isLost: map[state]bool{}, commits: commits}
	e.loss = l
	for _, n := range e.notes {
		if n.Kind == noteFault && n.What == failover {
			l.killed, l.ready, l.kept, l.text = n.From, n.At, n.N, n.Text
		}
	}
	old.notes, old.cut = e.notes, l.killed
	old.sortStates(oldStates)
	kept := map[state]bool{}
	for _, s := range states {
		kept[*s] = true
	}
	for _, s := range oldStates {
		if s.Op == "I" && s.N != 0 {
			l.made[s.N] = s
		}
		if !kept[*s] {
			l.lost, l.isLost[*s] = append(l.lost, s), true
		}
	}
	for _, f := range old.effects {
		l.effects[[2]int64{f.Job, f.Fence}] = true
	}
}

// takes gives a run to the old primary's history if its claim is there, and says whether it is
// there only.
func (l *loss) takes(r *handlerRun) bool {
	if l == nil {
		return false
	}
	s := l.old.spell(r.begin.Job, r.begin.Fence)
	if s == nil {
		return false
	}
	h := l.old.jobs[r.begin.Job]
	h.runs = append(h.runs, r)
	if !l.isLost[*s.claim] {
		return false
	}
	l.runs = append(l.runs, r)
	return true
}

// pardons says whether something that was confirmed at a time may be lost, and counts it. What
// was confirmed before the end of the last transaction that was replayed may not be.
func (e *evidence) pardons(what string, at int64) bool {
	if e.loss == nil || at < e.loss.kept {
		return false
	}
	e.saw(what)
	return true
}

// lostJob says whether the job of a note that it was committed was there, and is lost.
func (e *evidence) lostJob(n note) bool {
	if e.loss == nil {
		return false
	}
	s := e.loss.made[n.N]
	return s != nil && s.ID == n.Job && e.loss.isLost[*s] && e.pardons("confirmed jobs lost", n.At)
}

// lostEnd says whether a spell had ended on the old primary until a time, and that is lost.
func (e *evidence) lostEnd(job int64, s *spell, until int64) bool {
	if e.loss == nil {
		return false
	}
	old := e.loss.old.spell(job, s.claim.Fence)
	return old != nil && old.left != nil && old.left.At <= until && e.loss.isLost[*old.left]
}

// failedOver: what is lost was committed after what is not; nothing of a claim that is lost is on
// the new primary; and whoever had one was told.
func (e *evidence) failedOver() {
	l := e.loss
	if l == nil {
		return
	}
	if l.kept == 0 {
		e.wrong(failover, 0, "nobody noted what the standby had: every loss would be pardoned")
	}
	e.isSuffix()
	e.noneIsKnown()
	for _, r := range l.runs {
		e.toldOfLoss(r)
	}
	e.countLost()
}

// isSuffix: of each job the last changes are lost, not some between; they are among the last
// commits; and before its end the old primary's was the only history.
func (e *evidence) isSuffix() {
	const unordered = int64(1_000_000) // a commit's time is drawn a little before its place in the log
	l := e.loss
	known := map[state]bool{}
	for _, id := range l.old.ids {
		from := false
		for _, s := range l.old.jobs[id].states {
			known[*s] = true
			switch at := l.commits[s.XID]; {
			case !l.isLost[*s] && from:
				e.wrong(failover, id, "a change is lost, and one after it is not")
			case !l.isLost[*s]:
				continue
			case at+unordered < l.kept:
				e.wrong(failover, id, "a change is lost that was committed %s before the last that was replayed", seconds(l.kept-at))
			}
			e.looked(failover)
			from = true
		}
	}
	for _, id := range e.ids {
		for _, s := range e.jobs[id].states {
			if s.At < l.killed && !known[*s] {
				e.wrong(failover, id, "a change from before the failover of which the old primary knows nothing")
			}
		}
	}
}

// noneIsKnown: a claim that is lost has no result, no renewal and no effect on the new primary (J12, J16).
func (e *evidence) noneIsKnown() {
	lost := map[int64]bool{} // by fence; a claim of several jobs is lost as a whole
	for _, h := range e.loss.old.jobs {
		for _, s := range h.spells {
			if e.loss.isLost[*s.claim] {
				lost[s.claim.Fence] = true
			}
		}
	}
	for _, id := range e.ids {
		for _, s := range e.jobs[id].states {
			if s.Fence != 0 && lost[max(s.Fence, -s.Fence)] {
				e.wrong(failover, id, "it is %s by a claim that is lost, fence %d", s.Status, s.Fence)
			}
		}
	}
	for _, f := range e.effects {
		if lost[f.Fence] {
			e.wrong(failover, f.Job, "an effect by a claim that is lost, fence %d", f.Fence)
		}
	}
}

// toldOfLoss: a handler whose claim is lost is told, at the next renewal or when its lease ends
// by the local clock (J12), unless its process could not run. That it was cut off is no excuse.
func (e *evidence) toldOfLoss(r *handlerRun) {
	l := e.loss
	if r.end == nil || r.end.At <= l.ready {
		return
	}
	e.saw("handlers of lost claims that returned after it")
	limit := l.ready + (e.Visibility + time.Second).Microseconds()
	if r.end.On != "" {
		e.saw("handlers of lost claims that were told")
		return
	}
	p := e.process(r.begin.Process)
	stopped := slices.ContainsFunc(p.harm, func(w window) bool {
		return slices.Contains([]string{"freeze", "blink", "stall", "busy machine"}, w.what) && w.from <= r.end.At && w.to >= l.killed
	})
	if r.end.At > limit && !stopped {
		e.wrong(failover, r.begin.Job, "run %d of %s, fence %d, had lost its claim by the failover, and was not told within %s",
			r.begin.Run, r.begin.Process, r.begin.Fence, seconds(r.end.At-l.ready))
	}
}

// saw counts what the failover brought about.
func (e *evidence) saw(what string) { e.report.facts[failover+": "+what]++ }

// countLost counts what is lost, and how often the worst was met: an id that the new primary has
// given to another job, and a job that ran beside the run whose claim is lost.
func (e *evidence) countLost() {
	l := e.loss
	for _, s := range l.lost {
		e.saw(l.kind(s) + " lost")
		if s.Op == "I" && e.jobs[s.ID] != nil {
			e.saw("ids given again")
		}
	}
	now := map[[2]int64]bool{}
	for _, f := range e.effects {
		now[[2]int64{f.Job, f.Fence}] = true
	}
	for f := range l.effects {
		if !now[f] {
			e.saw("effects lost")
		}
	}
	for _, r := range l.runs {
		if h := e.jobs[r.begin.Job]; h != nil {
			e.countBeside(r, h.runs)
		}
	}
	some := map[string]int{}
	for name, n := range e.report.facts {
		if what, ok := strings.CutPrefix(name, failover+": "); ok {
			some[what] = n
		}
	}
	e.report.failover = fmt.Sprintf("\n  failover: no server for %s; %s; seen: %s", seconds(l.ready-l.killed), l.text, cmp.Or(list(some), "nothing lost"))
}

// kind names a change.
func (l *loss) kind(s *state) string {
	states := l.old.jobs[s.ID].states
	switch i := slices.Index(states, s); {
	case s.Op == "I":
		return "jobs"
	case s.Op == "D":
		return "deletions"
	case s.Status == "running" && states[i-1].Status != "running":
		return "claims"
	case s.Status == "running":
		return "renewals"
	case s.Fence < 0:
		return "results"
	}
	return "other changes"
}

// countBeside counts the runs of a job that began while one was at work whose claim is lost.
func (e *evidence) countBeside(lost *handlerRun, runs []*handlerRun) {
	for _, r := range runs {
		if r.begin.N != lost.begin.N || r.begin.At < lost.begin.At || !e.atWork(lost, r.begin.At) {
			continue
		}
		e.saw("runs beside one of a lost claim")
		if r.begin.Process == lost.begin.Process {
			e.saw("runs beside one of a lost claim, in its process")
		}
	}
}
