//go:build unix

// The rules about runs: what a row says a run has come to must be what its handler noted,
// and two runs of a job are at work at once only where the first had lost its job.

package main

import (
	"slices"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
)

// results: each result in a row is that of the handler's run with that fence, which has
// noted it before, and of no other; and none is recorded twice (J7, J12, J24).
func (e *evidence) results() {
	for _, id := range e.ids {
		h := e.jobs[id]
		e.report.Runs += len(h.runs)
		e.runsAreClaims(h)
		for _, s := range h.spells {
			if s.left != nil {
				e.looked("results")
				if text := e.result(h, s); text != "" {
					e.wrong("results", id, "run %d was recorded as %s: %s", s.claim.Runs, s.how, text)
				}
			}
		}
	}
}

// runsAreClaims: a handler begins once, and only under a claim that was committed.
func (e *evidence) runsAreClaims(h *history) {
	seen := map[int64]bool{}
	for _, r := range h.runs {
		i := slices.IndexFunc(h.spells, func(s *spell) bool { return s.claim.Fence == r.begin.Fence })
		switch {
		case seen[r.begin.Fence]:
			e.wrong("results", h.id, "run %d began twice", r.begin.Run)
		case i < 0:
			e.wrong("results", h.id, "run %d began without a claim, fence %d", r.begin.Run, r.begin.Fence)
		case r.begin.At < h.spells[i].claim.At:
			e.wrong("results", h.id, "run %d began before its claim", r.begin.Run)
		case h.spells[i].how == leftReleased && r.begin.At > h.spells[i].left.At:
			e.wrong("results", h.id, "run %d was given back, and began after that", r.begin.Run)
		}
		seen[r.begin.Fence] = true
	}
}

// comes lists what a handler must have noted for what a row says.
var comes = map[string][]string{
	leftSucceeded: {cameNil, cameUnsure},
	leftFailed:    {cameFail, cameContext, cameInfra, cameCut, cameUnsure, cameUncommitted},
	leftDead:      {cameFail, camePermanent, cameContext, cameInfra, cameCut, cameUnsure, cameUncommitted},
	leftSnoozed:   {cameSnooze},
	leftSetback:   {cameInfra, cameCut, cameUnsure, cameContext},
	leftOff:       {cameCancelled, cameContext},
	leftReleased:  {cameFail, cameContext, cameInfra, cameCut, cameUnsure, cameUncommitted},
}

// result says what is wrong with how a spell ended, "" if nothing is.
func (e *evidence) result(h *history, s *spell) string {
	r := s.run
	switch {
	case s.how == leftReaped || s.how == leftCancelled:
		return "" // whatever it returned did not count any more
	case s.how == leftReleased && r == nil:
		return "" // it had not begun
	case r == nil:
		return "it never began"
	case s.timedOut():
		limit := timedOut
		if h.states[0].Task != taskTimed {
			limit = longest
		}
		return unless(s.left.At-r.begin.At >= (limit-50*time.Millisecond).Microseconds(), "after "+seconds(s.left.At-r.begin.At))
	case s.how == leftSucceeded && completes(r.begin.On):
		return "" // by CompleteTx, before it ended; see effectsOnce
	case r.end == nil:
		return "its handler has not returned"
	case r.end.At > s.left.At:
		return "its handler returned " + seconds(r.end.At-s.left.At) + " later"
	case r.end.What == cameNil && completes(r.begin.On) && (s.how == leftFailed || s.how == leftDead) && e.lostEnd(h.id, s, s.left.At):
		e.saw("commits of CompleteTx lost, and recorded as not committed")
		return "" // which is what its worker found on the new primary
	case !slices.Contains(comes[s.how], r.end.What):
		return "its handler came to " + r.end.What + " " + r.end.Text
	}
	return e.counted(h, s)
}

// counted: infrastructure costs no attempt, and nothing else comes for free.
func (e *evidence) counted(h *history, s *spell) string {
	r, last := s.run, s.last
	most := h.states[0].MaxAttempts
	switch {
	case r.end.What == cameInfra && (s.how == leftFailed || s.how == leftDead) && last.Setbacks < maxSetbacks:
		return "infrastructure trouble used an attempt: " + r.end.Text
	case s.how == leftDead && r.end.What != camePermanent && last.Attempts < most:
		return "attempts were left"
	case s.how == leftFailed && last.Attempts >= most:
		return "no attempt was left"
	case s.how == leftReleased && r.end.On == "" && e.process(s.claim.Worker).term == 0 && !e.disturbed(e.process(s.claim.Worker), last.At, s.left.At):
		return "nothing had interrupted it: " + r.end.Text
	}
	return ""
}

// attempts: the row's count is the budget, and it is never exceeded (J8). A run of which
// nobody could know when its process died (claimed ahead, just begun) comes for free; how
// many there were is in the report.
func (e *evidence) attempts() {
	for _, id := range e.ids {
		h := e.jobs[id]
		paid := 0
		for _, s := range h.spells {
			e.looked("attempts")
			if s.before.Attempts == 0 {
				paid = 0 // first, given back, or retried
			}
			if s.run != nil && !gaveBack(s) {
				paid++
			}
			if s.claim.Attempts > h.states[0].MaxAttempts || paid > h.states[0].MaxAttempts {
				e.wrong("attempts", id, "run %d is attempt %d, and %d were paid for, of %d", s.claim.Runs, s.claim.Attempts, paid, h.states[0].MaxAttempts)
			}
			if s.run != nil && s.how == leftReaped && gaveBack(s) {
				e.report.facts["begun, reaped, not paid for"]++
			}
			if s.how == leftReaped && s.left.Status == "pending" && s.last.Begun && s.last.Attempts >= h.states[0].MaxAttempts {
				e.wrong("attempts", id, "run %d was the last, and it was put back", s.claim.Runs)
			}
			if s.how != "" {
				e.report.facts["runs "+s.how]++
			}
		}
	}
}

// gaveBack says whether the attempt was given back.
func gaveBack(s *spell) bool { return s.left != nil && s.left.Attempts < s.last.Attempts }

// overlaps: two runs of a job are at work at once only if the first had lost its lease, had
// timed out or was cancelled, and that before the second began (J5, J12, J13). The first is the
// one that was claimed first: it may begin when it is lost already, in a process that was frozen.
func (e *evidence) overlaps() {
	for _, id := range e.ids {
		h := e.jobs[id]
		for i, r := range h.runs {
			for _, later := range h.runs[i+1:] {
				e.looked("overlaps")
				if !e.atWork(r, later.begin.At) {
					continue
				}
				e.report.facts["overlapping runs"]++
				s, next := e.spell(id, r.begin.Fence), e.spell(id, later.begin.Fence)
				if s == nil || next == nil || s.run == nil || next.run == nil {
					continue // wrong by another rule
				}
				if next.claim.Seq < s.claim.Seq {
					s, next = next, s
				}
				lost := s.how == leftReaped || s.how == leftCancelled || s.timedOut()
				if !lost || s.left.At > next.run.begin.At {
					e.wrong("overlaps", id, "runs %d and %d were at work at once, and the first had not lost its job (%s)", s.claim.Runs, next.claim.Runs, s.how)
				}
			}
		}
	}
}

// atWork says whether a run's handler had not returned at a time, for all that is known.
func (e *evidence) atWork(r *handlerRun, at int64) bool {
	if r.end != nil {
		return r.end.At > at
	}
	p := e.process(r.begin.Process)
	return p.gone == 0 || p.gone > at
}

// leases: a job is taken back only when its lease has run out, and the lease of one that
// lives runs out only if something was done to its process (J10, J11).
func (e *evidence) leases() {
	for _, id := range e.ids {
		h := e.jobs[id]
		for _, s := range h.spells {
			e.looked("leases")
			if s.how != leftReaped {
				e.toldForAReason(h, s)
				continue
			}
			if early := s.last.LockedUntil - s.left.At; early >= 0 {
				e.wrong("leases", id, "run %d was taken back %s before its lease was over", s.claim.Runs, seconds(early))
			}
			reason := e.reason(h, s)
			if reason == "" {
				e.wrong("leases", id, "run %d was taken from %s, to which nothing had been done since it last renewed, %s before",
					s.claim.Runs, s.claim.Worker, seconds(s.left.At-s.last.At))
			}
			e.report.facts["reaped: "+strings.ReplaceAll(reason, "-", " ")]++
		}
	}
}

// toldForAReason: a handler whose job was not taken is told that its lease is lost only if
// its process could not renew (J12). Here the server's troubles are a reason as well.
func (e *evidence) toldForAReason(h *history, s *spell) {
	if s.run == nil || s.run.end == nil || e.cut != 0 && s.run.end.At > e.cut || s.how == leftCancelled || s.run.end.On != rebase.ErrLeaseLost.Error() {
		return
	}
	if p := e.process(s.claim.Worker); !e.disturbed(p, s.run.end.At-e.Visibility.Microseconds(), s.run.end.At) {
		e.wrong("leases", h.id, "run %d of %s was told that its lease was lost, and nothing had been done to it", s.claim.Runs, s.claim.Worker)
	}
}
