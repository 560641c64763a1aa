//go:build unix

// The rules about rows: which jobs exist, how a row may change, when it may go. They need
// the audit and what enqueuers and operators have noted, and no handler.

package main

import (
	"fmt"
	"time"
)

// committed: what was committed is there, what was rolled back never was, and nobody made
// anything else (J2). A duplicate's job is one of the same task and key (J4).
func (e *evidence) committed() {
	made := map[int64]*state{} // by n
	for _, id := range e.ids {
		s := e.jobs[id].states[0]
		switch {
		case s.Op != "I":
			e.wrong("committed", id, "its story begins with %q", s.Op)
		case s.N == 0 && s.Slot == 0:
			e.wrong("committed", id, "nobody made it")
		case s.N != 0 && made[s.N] != nil:
			e.wrong("committed", id, "it was made twice: n %d is job %d too", s.N, made[s.N].ID)
		case s.N != 0:
			made[s.N] = s
		}
	}
	for _, f := range e.effects {
		if f.Child {
			e.child(f, made)
		}
	}
	for _, n := range e.notes {
		if n.Kind == noteEnqueue {
			e.enqueued(n, made)
		}
	}
	for n, s := range made {
		e.wrong("committed", s.ID, "nobody made it: n %d", n)
	}
	e.report.Jobs = len(e.ids)
}

// enqueued holds one note against the rows, and takes its job from those that are left.
func (e *evidence) enqueued(n note, made map[int64]*state) {
	e.looked("committed")
	s := made[n.N]
	delete(made, n.N)
	switch n.What {
	case committed:
		if s == nil && (e.cut != 0 || e.lostJob(n)) {
			return // the old primary is not asked about what it may not have lived to see
		}
		if s == nil || s.ID != n.Job {
			e.wrong("committed", n.Job, "n %d was committed and is not there", n.N)
		} else if s.Task != n.Task || s.Key != n.Key {
			e.wrong("committed", n.Job, "it is another job: task %q, key %q instead of %q, %q", s.Task, s.Key, n.Task, n.Key)
		}
	case rolledBack, "duplicate":
		if s != nil {
			e.wrong("committed", s.ID, "n %d was %s, and is there", n.N, n.What)
		}
		if n.What == "duplicate" && n.Job != 0 && e.cut == 0 { // it may be of the new primary's
			e.duplicate(n)
		}
	}
}

func (e *evidence) duplicate(n note) {
	h := e.jobs[n.Job]
	if e.loss != nil && (h == nil || h.states[0].Task != n.Task || h.states[0].Key != n.Key) {
		h = e.loss.old.jobs[n.Job] // lost, and the id is perhaps another's
	}
	if h == nil || h.states[0].Task != n.Task || h.states[0].Key != n.Key {
		e.wrong("committed", n.Job, "n %d was called its duplicate: task %q, key %q", n.N, n.Task, n.Key)
	}
}

// child: a job that a handler made together with an effect is there exactly if that is.
func (e *evidence) child(f effect, made map[int64]*state) {
	e.looked("committed")
	n := childOf(f.Job, f.Fence)
	s := made[n]
	delete(made, n)
	if s == nil || s.XID != f.XID {
		e.wrong("committed", f.Job, "the job that was made with its effect is not there")
	}
}

// rows: a row changes as the queue's states allow, and in no other way (J1, J8, J12, J18).
func (e *evidence) rows() {
	fences := map[int64]string{} // whose a token is
	for _, id := range e.ids {
		h := e.jobs[id]
		for i, s := range h.states[1:] {
			e.looked("rows")
			if text := e.change(h.states[i], s, h.states[0].MaxAttempts); text != "" {
				e.wrong("rows", id, "%s: %s, fence %d, attempts %d → %s, fence %d, attempts %d", text,
					h.states[i].Status, h.states[i].Fence, h.states[i].Attempts, s.Status, s.Fence, s.Attempts)
			}
		}
		seen := map[int64]bool{}
		for _, s := range h.spells {
			f := s.claim.Fence
			if owner := fences[f]; seen[f] || owner != "" && owner != s.claim.Worker {
				e.wrong("rows", id, "the token %d was used before", f)
			}
			seen[f], fences[f] = true, s.claim.Worker
		}
		if last := h.states[len(h.states)-1]; e.cut == 0 && last.Op != "D" && !last.finished() {
			e.wrong("rows", id, "it is %s at the end", last.Status)
		}
	}
	if e.claims > 0 && e.cut == 0 {
		e.wrong("rows", 0, "%d claims are left in the ledger", e.claims)
	}
}

// change says what is wrong with a step, "" if nothing is.
func (e *evidence) change(a, b *state, most int) string {
	switch {
	case a.Op == "D":
		return "after its deletion"
	case b.Op == "D" && !a.finished():
		return "deleted before its end"
	case b.Op == "D":
		return ""
	case b.Op != "U":
		return "made again"
	case b.finished() != (b.FinishedAt != 0), b.Attempts < 0, b.Attempts > most:
		return "a row that should not be"
	case a.finished() && b.Status == "pending":
		return unless(b.Attempts == 0 && b.Crashes == 0 && b.Fence == 0, "a retry that is none")
	case a.finished():
		return "changed after its end"
	case a.Status == "pending" && b.Status == "running":
		return claimed(a, b)
	case a.Status == "pending" && b.Status == "cancelled":
		return unless(b.Fence == 0 && b.Attempts == a.Attempts, "a cancel that is none")
	case a.Status == "pending":
		return "changed while it was pending"
	case b.Status == "running":
		return unless(b.Fence == a.Fence && b.Attempts == a.Attempts && b.Runs == a.Runs && b.Worker == a.Worker && b.LockedUntil >= a.LockedUntil, "a renewal that is none")
	}
	return left(a, b)
}

func claimed(a, b *state) string {
	switch {
	case b.Fence <= 0 || b.Worker == "" || b.LockedUntil <= b.At-time.Minute.Microseconds():
		return "a claim that is none"
	case b.Attempts != a.Attempts+1 || b.Runs != a.Runs+1:
		return "a claim that was not counted"
	case a.RunAt > b.At:
		return fmt.Sprintf("claimed %s before it was due", seconds(a.RunAt-b.At))
	}
	return ""
}

// left looks at how a job left running; whether that was right is for other rules.
func left(a, b *state) string {
	how := leaving(a, b)
	kept, given := b.Attempts == a.Attempts, b.Attempts == a.Attempts-1
	switch how {
	case "":
		return "taken out of running in no way that there is"
	case leftSnoozed, leftSetback, leftReleased:
		return unless(given && b.Status == "pending", how+", and the attempt was not given back")
	case leftReaped:
		if !a.Begun {
			return unless(given && b.Status == "pending", "reaped before it began, and the attempt was not given back")
		}
	}
	return unless(kept, how+", and the attempts changed")
}

func unless(ok bool, text string) string {
	if ok {
		return ""
	}
	return text
}

// deletions: only retention deletes, only what has ended long enough ago, and it hands over
// what it deletes (J17).
func (e *evidence) deletions() {
	for _, id := range e.ids {
		h := e.jobs[id]
		last := h.states[len(h.states)-1]
		if last.Op != "D" {
			continue
		}
		e.looked("deletions")
		before := h.states[len(h.states)-2]
		keep := keepFor
		if before.Status == "failed" {
			keep = keepDeadFor
		}
		if early := before.FinishedAt + keep.Microseconds() - last.At; early > 0 {
			e.wrong("deletions", id, "deleted %s too early", seconds(early))
		}
		key := [2]int64{id, last.XID}
		if e.archived[key] != 1 {
			e.wrong("deletions", id, "deleted, and archived %d times", e.archived[key])
		}
		delete(e.archived, key)
	}
	for key := range e.archived {
		e.wrong("deletions", key[0], "archived, and not deleted")
	}
}
