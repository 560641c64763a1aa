//go:build unix

package main

// The pardon for what a failover has lost goes as far as the evidence, and no further.

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// The failover of all stories: what was committed after lastKept is lost.
const (
	lastKept   = 15 * second
	killedAt   = 20 * second
	promotedAt = 21 * second
)

// commits says that each change was committed when it was made.
func (t *tale) commits() map[int64]int64 {
	all := map[int64]int64{}
	for _, s := range t.states {
		all[s.XID] = s.At
	}
	return all
}

// replaced is plain, and after it a failover. Job 2 was made, claimed and run by p3, and all of
// that is lost. Of job 3 a run is lost, with its result; p4 runs it again, with the same count of
// runs. Of job 4 only the result is lost, so it is taken back when its lease is over.
func replaced() *tale {
	t := plain()
	claim := func(id, at, fence int64, worker string) state {
		return state{Op: "U", ID: id, Status: "running", At: at, RunAt: at - second, Fence: fence, Attempts: 1, Runs: 1, Begun: true, Worker: worker, LockedUntil: at + 3*second}
	}
	end := func(s state, at int64) state {
		s.Status, s.Fence, s.At, s.LockedUntil, s.FinishedAt = "succeeded", -s.Fence, at, 0, at
		return s
	}
	make := func(id, at int64) state {
		return state{Op: "I", ID: id, Status: "pending", At: at, RunAt: at, Task: taskShort, MaxAttempts: 3, N: id + 6}
	}
	t.rows(make(3, 13*second), make(4, 13*second), claim(4, 14*second, 41, "p3-c"))
	t.old = &tale{states: slices.Clone(t.states)}
	two, three, four := claim(2, 17*second, 21, "p3-c"), claim(3, 14*second, 31, "p3-c"), claim(4, 14*second, 41, "p3-c")
	three.At = 16 * second
	t.old.rows(make(2, 16*second), three, end(three, 17*second), end(four, 16*second), two)
	again := claim(3, 14*second, 32, "p4-d")
	again.At, again.LockedUntil = 22*second, 25*second
	back := state{Op: "U", ID: 4, Status: "pending", At: 24 * second, RunAt: 25 * second, Attempts: 1, Runs: 1, Crashes: 1, Begun: true, Worker: "p3-c"}
	last := state{Op: "U", ID: 4, Status: "running", At: 26 * second, RunAt: 25 * second, Fence: 42, Attempts: 2, Runs: 2, Crashes: 1, Begun: true, Worker: "p4-d", LockedUntil: 29 * second}
	t.rows(again, end(again, 23*second), back, last, end(last, 27*second))

	t.note(note{Kind: noteFault, At: promotedAt, From: killedAt, What: failover, On: "server", N: start + lastKept})
	for _, p := range []string{"p3", "p4"} {
		t.note(note{Kind: noteStart, At: 1, On: p, What: "slot" + p})
		t.note(note{Kind: noteFault, At: 39 * second, From: 39 * second, What: "term", On: p})
		t.note(note{Kind: noteExit, At: 40 * second, On: p, What: "exit status 0"})
	}
	for id, at := range map[int64]int64{2: 16*second + 1, 3: 13*second + 1, 4: 13*second + 1} {
		t.note(note{Kind: noteEnqueue, At: at, N: id + 6, Job: id, Task: taskShort, What: committed})
	}
	run := func(id, fence int64, process string, from, to int64, what, cause string) {
		t.note(note{Kind: noteBegin, At: from, Job: id, Fence: fence, Run: 1, Process: process, On: doesOK})
		t.note(note{Kind: noteEnd, At: to, Job: id, Fence: fence, Process: process, What: what, On: cause})
	}
	run(2, 21, "p3", 17*second+1, 22*second, cameContext, rebase.ErrLeaseLost.Error())
	run(3, 31, "p3", 16*second+1, 17*second-1, cameNil, "")
	run(4, 41, "p3", 14*second+1, 16*second-1, cameNil, "")
	run(3, 32, "p4", 22*second+1, 23*second-1, cameNil, "")
	run(4, 42, "p4", 26*second+1, 27*second-1, cameNil, "")
	return t
}

// of returns the notes of a run, or that of a job's enqueue.
func (t *tale) of(kind string, job, fence int64) *note {
	i := slices.IndexFunc(t.notes, func(n note) bool { return n.Kind == kind && n.Job == job && n.Fence == fence })
	return &t.notes[i]
}

// forget drops the states with a fence.
func (t *tale) forget(fence int64) {
	t.states = slices.DeleteFunc(t.states, func(s *state) bool { return s.Fence == fence })
}

// failover is the note of it.
func (t *tale) failover() *note {
	i := slices.IndexFunc(t.notes, func(n note) bool { return n.What == failover })
	return &t.notes[i]
}

// state is the one of a job with a status and a fence.
func (t *tale) state(id int64, status string, fence int64) *state {
	i := slices.IndexFunc(t.states, func(s *state) bool { return s.ID == id && s.Status == status && s.Fence == fence })
	return t.states[i]
}

// What was committed after the last that was replayed may be gone, and may happen again.
func TestRulesPardonWhatAFailoverLost(t *testing.T) {
	t.Parallel()
	require.Empty(t, replaced().judge())
	given := replaced() // the id of job 2, to another that p4 runs
	given.another(22*second, state{Task: taskShort})
	given.state(2, "pending", 0).N = 99
	given.notes[len(given.notes)-3].N = 99
	for _, s := range given.states {
		if s.ID == 2 && s.Worker != "" {
			s.Worker = "p4-d"
			s.Fence = map[int64]int64{21: 22, -21: -22}[s.Fence]
		}
	}
	for i := range given.notes[len(given.notes)-2:] {
		n := &given.notes[len(given.notes)-2+i]
		n.Fence, n.Process = 22, "p4"
	}
	require.Empty(t, given.judge())
	ended := replaced() // an effect that was committed with its job's end, and is lost with it
	ended.of(noteBegin, 3, 31).On = doesComplete
	ended.old.effects = []effect{{Job: 3, Fence: 31, XID: ended.old.state(3, "succeeded", -31).XID}}
	require.Empty(t, ended.judge())
	require.Empty(t, uncommitted().judge())
}

// uncommitted is replaced, and the worker of job 4 has committed its end by CompleteTx, asked the
// new primary, and recorded that it was not committed.
func uncommitted() *tale {
	t := replaced()
	t.of(noteBegin, 4, 41).On = doesComplete
	t.old.effects = []effect{{Job: 4, Fence: 41, XID: t.old.state(4, "succeeded", -41).XID}}
	for _, s := range t.states {
		if s.ID == 4 && s.At > start+killedAt {
			s.Crashes = 0
			if s.Status == "pending" {
				s.Fence = -41
			}
		}
	}
	return t
}

// What was confirmed before may not; and what is lost must not come back.
func TestRulesFindWhatAFailoverMustNotLose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		rules  []string
		change func(*tale)
	}{
		{"a job that was confirmed before the last commit that is kept", []string{"committed"}, func(t *tale) {
			n := t.of(noteEnqueue, 2, 0)
			n.At, n.Mono = start+14*second, start+14*second
		}},
		{"a job that the old primary had not either", []string{"committed"}, func(t *tale) {
			t.note(note{Kind: noteEnqueue, At: 16 * second, N: 9999, Job: 9, What: committed})
		}},
		{"a rolled back job that the old primary had", []string{"committed"}, func(t *tale) { t.of(noteEnqueue, 2, 0).What = rolledBack }},
		{"a change that was committed before the last that is kept", []string{failover}, func(t *tale) {
			t.old.state(3, "running", 31).At = start + 13*second + 2
		}},
		{"a change that is lost, and the next is not", []string{failover, "rows"}, func(t *tale) {
			t.states = slices.Insert(t.states, 9, t.old.state(3, "succeeded", -31))
			t.states = t.states[:10:10]
			t.states = append(t.states, replaced().states[11:]...)
			t.notes = slices.DeleteFunc(t.notes, func(n note) bool { return n.Fence == 32 })
		}},
		{"a result under a claim that is lost", []string{failover, "results", "rows"}, func(t *tale) { t.state(3, "succeeded", -32).Fence = -31 }},
		{"a claim that is lost, and comes back", []string{failover, "results"}, func(t *tale) {
			t.state(3, "running", 32).Fence = 31
			t.state(3, "succeeded", -32).Fence = -31
		}},
		{"an effect under a claim that is lost", []string{"effects", failover}, func(t *tale) { t.effects = append(t.effects, effect{Job: 2, Fence: 21, XID: 1}) }},
		{"an effect that was committed, and the old primary had not either", []string{"effects"}, func(t *tale) { t.of(noteBegin, 4, 41).On = doesComplete }},
		{"a run that was not told", []string{failover}, func(t *tale) {
			n := t.of(noteEnd, 2, 21)
			n.On, n.What, n.At, n.Mono = "", cameNil, start+27*second, start+27*second
		}},
		{"a standby of which it is not known what it had", []string{failover}, func(t *tale) { t.failover().N = 0 }},
		{"a failure in place of a commit that the old primary had not either", []string{"effects", "results"}, func(t *tale) {
			*t = *uncommitted()
			t.old.effects = nil
			t.old.forget(-41)
		}},
		{"a result of the old primary's that no handler noted", []string{"results"}, func(t *tale) { t.of(noteEnd, 3, 31).What = cameFail }},
		{"a job that was taken from the living, and had not ended", []string{"leases"}, func(t *tale) { t.old.forget(-41) }},
		{"a cancel that was confirmed before the last commit that is kept", []string{"operations"}, func(t *tale) {
			t.note(note{Kind: noteOperate, At: 14 * second, From: 14 * second, Task: opCancel, Job: 3, What: committed})
		}},
		{"a pause that was confirmed before it", []string{"pauses"}, func(t *tale) {
			t.note(note{Kind: noteOperate, At: 14*second + 1, From: 14 * second, Task: opPause, On: taskShort, What: committed})
			t.note(note{Kind: noteOperate, At: 22*second + 2, From: 22*second + 2, Task: opResume, On: taskShort, What: committed})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			told := replaced()
			c.change(told)
			require.Equal(t, c.rules, told.judge())
		})
	}
}
