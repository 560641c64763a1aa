//go:build unix

// The rules about what jobs share: keys, lanes, schedules, effects.

package main

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// effectsOnce: an effect that was to be committed with a job's end by CompleteTx is there
// exactly if the job has succeeded so, and by the same transaction (J16).
func (e *evidence) effectsOnce() {
	at := map[[2]int64]effect{}
	for _, f := range e.effects {
		e.looked("effects")
		key := [2]int64{f.Job, f.Fence}
		if _, twice := at[key]; twice {
			e.wrong("effects", f.Job, "two effects of one run")
		}
		at[key] = f
	}
	for _, id := range e.ids {
		for _, s := range e.jobs[id].spells {
			f, ok := at[[2]int64{id, s.claim.Fence}]
			delete(at, [2]int64{id, s.claim.Fence})
			switch {
			case ok && (s.how != leftSucceeded || s.left.XID != f.XID):
				e.wrong("effects", id, "run %d had its effect, and was %s", s.claim.Runs, s.how)
			case !ok && s.run != nil && completes(s.run.begin.On) && s.how == leftSucceeded && !(s.run.end != nil && s.run.end.What == cameNil && s.run.begin.On != doesComplete):
				e.wrong("effects", id, "run %d succeeded without its effect", s.claim.Runs)
			case !ok && s.run != nil && s.run.begin.On == doesComplete && s.run.end != nil && s.run.end.What == cameNil:
				if !e.lostEffect(id, s) {
					e.wrong("effects", id, "run %d committed its effect, and it is gone", s.claim.Runs)
				}
			}
		}
	}
	for key := range at {
		e.wrong("effects", key[0], "an effect of no claim: fence %d", key[1])
	}
}

// lostEffect says whether an effect that was committed is lost with the old primary; or, on that,
// whether it may have come too late.
func (e *evidence) lostEffect(id int64, s *spell) bool {
	if e.cut != 0 {
		return s.run.end.At >= e.cut
	}
	return e.loss != nil && e.loss.effects[[2]int64{id, s.claim.Fence}] && e.pardons("confirmed effects lost", s.run.end.At)
}

// A turn is when a job began or ceased to take a place.
type turn struct {
	at, seq int64
	id      int64
	enters  bool
}

// together returns the most that had a place at once, and who came last to make it so
// many. What leaves makes room for what comes at the same time.
func together(turns []turn) (most int, last turn) {
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	inside := map[int64]bool{}
	for _, t := range turns {
		if !t.enters {
			delete(inside, t.id)
			continue
		}
		inside[t.id] = true
		if len(inside) > most {
			most, last = len(inside), t
		}
	}
	return most, last
}

// keys: of one task and key at most one job is unfinished (J4).
func (e *evidence) keys() {
	turns := map[string][]turn{}
	for _, id := range e.ids {
		first := e.jobs[id].states[0]
		if first.Key == "" {
			continue
		}
		unfinished := false
		name := first.Task + " " + first.Key
		for _, s := range e.jobs[id].states {
			if now := s.Op != "D" && !s.finished(); now != unfinished {
				unfinished = now
				turns[name] = append(turns[name], turn{s.At, s.Seq, id, now})
				e.looked("keys")
			}
		}
	}
	for name, all := range turns {
		if most, last := together(all); most > 1 {
			e.wrong("keys", last.id, "%d jobs at once were unfinished with the key %s", most, name)
		}
	}
}

// lanes: of one lane no more jobs are held than its limit, over all processes (J26).
func (e *evidence) lanes() {
	turns := map[string][]turn{}
	for _, id := range e.ids {
		first := e.jobs[id].states[0]
		if first.Task != taskLaned || first.Lane == "" {
			continue
		}
		for _, s := range e.jobs[id].spells {
			e.looked("lanes")
			turns[first.Lane] = append(turns[first.Lane], turn{s.claim.At, s.claim.Seq, id, true})
			if s.left != nil {
				turns[first.Lane] = append(turns[first.Lane], turn{s.left.At, s.left.Seq, id, false})
			}
		}
	}
	for lane, all := range turns {
		most, last := together(all)
		if most > laneLimit {
			e.wrong("lanes", last.id, "%d jobs of the lane %s were held at once", most, lane)
		}
		if most == laneLimit {
			e.report.facts["lanes that were full"]++
		}
	}
}

// slots: each slot of a schedule has made one job, and none was left out (S1, S2).
func (e *evidence) slots() {
	made := map[string]int{}
	for _, id := range e.ids {
		s := e.jobs[id].states[0]
		if s.Slot == 0 {
			continue
		}
		e.looked("slots")
		made[s.Key]++
		if at := time.UnixMicro(s.Slot).UTC().Format(time.RFC3339); !strings.HasSuffix(s.Key, "@"+at) {
			e.wrong("slots", id, "the slot %s has the key %s", at, s.Key)
		}
		if made[s.Key] > 1 {
			e.wrong("slots", id, "the slot %s has made %d jobs", s.Key, made[s.Key])
		}
		if e.fired[s.Key] == 0 {
			e.wrong("slots", id, "the slot %s has a job, and is not known to have fired", s.Key)
		}
	}
	for key := range e.fired {
		if made[key] == 0 {
			e.wrong("slots", 0, "the slot %s has fired, and made no job", key)
		}
	}
	for _, s := range e.schedules {
		minute := time.Minute.Microseconds()
		for at := (s.Created/minute + 1) * minute; at < s.Next; at += minute {
			if key := s.ID + "@" + time.UnixMicro(at).UTC().Format(time.RFC3339); made[key] == 0 {
				e.wrong("slots", 0, "the slot %s did not fire", key)
			}
		}
		if late := s.Now - s.Next; late > (e.Visibility + patience).Microseconds() {
			e.wrong("slots", 0, "the schedule %s should have fired %s ago", s.ID, seconds(late))
		}
		if s.Missed > 0 {
			e.wrong("slots", 0, "the schedule %s counts %d slots as missed", s.ID, s.Missed)
		}
	}
}
