//go:build unix

package main

// Every rule is shown a story that it must accept, and then the same story with one thing
// wrong, which it must not. No database: the stories are written here.

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

const second = int64(1_000_000)

// start is the time of all stories.
var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// A tale is evidence before it is sorted.
type tale struct {
	states   []*state
	notes    []note
	effects  []effect
	archived map[[2]int64]int
	fired    map[string]int
	ends     []scheduleEnd
	claims   int
	old      *tale // the primary that was killed, nil without
}

// rows appends the states of a job, with numbers in their order.
func (t *tale) rows(states ...state) {
	for _, s := range states {
		s.Seq, s.XID = int64(len(t.states)+1), int64(len(t.states)+100)
		s.At += start
		for _, at := range []*int64{&s.LockedUntil, &s.FinishedAt, &s.RunAt} {
			if *at != 0 {
				*at += start
			}
		}
		t.states = append(t.states, &s)
	}
}

func (t *tale) note(n note) {
	n.At += start
	n.Mono = n.At
	if n.From != 0 {
		n.From += start
	}
	t.notes = append(t.notes, n)
}

// plain is a job that succeeded at its second run, after its first had been reaped because
// its process was killed. The second process ended in order.
func plain() *tale {
	t := &tale{archived: map[[2]int64]int{}, fired: map[string]int{}}
	t.rows(
		state{Op: "I", ID: 1, Status: "pending", At: 1, RunAt: 1, Task: taskShort, MaxAttempts: 3, N: 7},
		state{Op: "U", ID: 1, Status: "running", At: 2, RunAt: 1, Fence: 11, Attempts: 1, Runs: 1, Begun: true, Worker: "p1-a", LockedUntil: 3*second + 2},
		state{Op: "U", ID: 1, Status: "running", At: second, RunAt: 1, Fence: 11, Attempts: 1, Runs: 1, Begun: true, Worker: "p1-a", LockedUntil: 4 * second},
		state{Op: "U", ID: 1, Status: "pending", At: 5 * second, RunAt: 6 * second, Attempts: 1, Runs: 1, Crashes: 1, Begun: true, Worker: "p1-a"},
		state{Op: "U", ID: 1, Status: "running", At: 7 * second, RunAt: 6 * second, Fence: 12, Attempts: 2, Runs: 2, Crashes: 1, Begun: true, Worker: "p2-b", LockedUntil: 10 * second},
		state{Op: "U", ID: 1, Status: "succeeded", At: 8 * second, RunAt: 6 * second, Fence: -12, Attempts: 2, Runs: 2, Begun: true, Worker: "p2-b", FinishedAt: 8 * second},
	)
	t.note(note{Kind: noteStart, At: -2, On: "p1", What: "slot1"})
	t.note(note{Kind: noteStart, At: -1, On: "p2", What: "slot2"})
	t.note(note{Kind: noteEnqueue, At: 2, N: 7, Job: 1, Task: taskShort, What: committed})
	t.note(note{Kind: noteBegin, At: 3, Job: 1, Fence: 11, Run: 1, Process: "p1", On: doesOK})
	t.note(note{Kind: noteFault, At: 2 * second, From: 2*second - 1, What: "kill", On: "p1"})
	t.note(note{Kind: noteExit, At: 2 * second, On: "p1", What: "signal: killed"})
	t.note(note{Kind: noteBegin, At: 7*second + 1, Job: 1, Fence: 12, Run: 2, Process: "p2", On: doesOK})
	t.note(note{Kind: noteEnd, At: 8*second - 1, Job: 1, Fence: 12, Process: "p2", What: cameNil})
	t.note(note{Kind: noteFault, At: 9*second + 1, From: 9 * second, What: "term", On: "p2"})
	t.note(note{Kind: noteExit, At: 10 * second, On: "p2", What: "exit status 0"})
	return t
}

// judge returns the rules that were broken.
func (t *tale) judge() (broken []string) {
	e := &evidence{
		plan: plan{Visibility: 3 * time.Second}, report: newReport(), jobs: map[int64]*history{}, processes: map[string]*process{},
		notes: t.notes, effects: t.effects, archived: t.archived, fired: t.fired, schedules: t.ends, claims: t.claims,
	}
	slices.SortStableFunc(e.notes, func(a, b note) int { return int(a.At - b.At) })
	if t.old != nil {
		old := newEvidence(e.plan)
		old.effects = t.old.effects
		e.compare(old, t.states, t.old.states, t.old.commits())
	}
	e.sort(t.states)
	e.judge()
	for _, v := range e.report.broken {
		broken = append(broken, v.rule)
	}
	slices.Sort(broken)
	return slices.Compact(broken)
}

// find returns the note of a kind, the last of them.
func (t *tale) find(kind string) *note {
	for i := len(t.notes) - 1; i >= 0; i-- {
		if t.notes[i].Kind == kind {
			return &t.notes[i]
		}
	}
	panic(kind)
}

// drop removes the notes of a kind and, if it is not "", of that text in What.
func (t *tale) drop(kind, what string) {
	t.notes = slices.DeleteFunc(t.notes, func(n note) bool { return n.Kind == kind && (what == "" || n.What == what) })
}

// another appends a second job that has succeeded at its first run, made at a time.
func (t *tale) another(at int64, make state) {
	make.Op, make.ID, make.Status, make.At, make.RunAt, make.N, make.MaxAttempts = "I", 2, "pending", at, at, 8, 3
	t.rows(make,
		state{Op: "U", ID: 2, Status: "running", At: at + 1, RunAt: at, Fence: 21, Attempts: 1, Runs: 1, Begun: true, Worker: "p2-b", LockedUntil: at + 3*second},
		state{Op: "U", ID: 2, Status: "succeeded", At: at + second, RunAt: at, Fence: -21, Attempts: 1, Runs: 1, Begun: true, Worker: "p2-b", FinishedAt: at + second})
	t.note(note{Kind: noteEnqueue, At: at + 1, N: 8, Job: 2, Task: make.Task, Key: make.Key, What: committed})
	t.note(note{Kind: noteBegin, At: at + 2, Job: 2, Fence: 21, Run: 1, Process: "p2", On: doesOK})
	t.note(note{Kind: noteEnd, At: at + second - 1, Job: 2, Fence: 21, Process: "p2", What: cameNil})
}

// A sound run breaks no rule, whatever stands beside it.
func TestRulesAcceptWhatIsRight(t *testing.T) {
	t.Parallel()
	require.Empty(t, plain().judge())
	beside := plain()
	beside.another(3*second, state{Task: taskKeyed, Key: "k"})
	require.Empty(t, beside.judge())
	deleted := plain()
	deleted.rows(state{Op: "D", ID: 1, At: 13 * second})
	deleted.archived[[2]int64{1, deleted.states[6].XID}] = 1
	require.Empty(t, deleted.judge())
	thawed := plain() // its first run begins when it is lost, and the second at work
	for _, s := range thawed.states[1:4] {
		s.Begun = false
	}
	for _, s := range thawed.states[3:6] {
		s.Attempts--
	}
	thawed.notes[3].At, thawed.notes[3].Mono = start+7*second+2, start+7*second+2
	thawed.notes[4] = note{Kind: noteFault, At: start + 7*second, From: start + second, What: "freeze", On: "p1"}
	thawed.notes[5] = note{Kind: noteExit, At: start + 11*second, On: "p1", What: "exit status 0"}
	thawed.note(note{Kind: noteFault, At: 11*second - 1, From: 11*second - 2, What: "term", On: "p1"})
	thawed.note(note{Kind: noteEnd, At: 7*second + 3, Job: 1, Fence: 11, Process: "p1", What: cameContext, On: rebase.ErrLeaseLost.Error()})
	require.Empty(t, thawed.judge())
	probed := plain()
	probed.note(note{Kind: noteProbe, At: 1, N: 7, Job: 1})
	require.Empty(t, probed.judge())
}

// Each rule notices when one thing is wrong.
func TestRulesFindWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		rules  []string
		change func(*tale)
	}{
		{"a committed job that is gone", []string{"committed"}, func(t *tale) {
			t.note(note{Kind: noteEnqueue, At: 3, N: 9, Job: 9, What: committed})
		}},
		{"a job that was rolled back", []string{"committed"}, func(t *tale) { t.find(noteEnqueue).What = rolledBack }},
		{"a job that nobody made", []string{"committed"}, func(t *tale) { t.drop(noteEnqueue, "") }},
		{"a duplicate of another key", []string{"committed"}, func(t *tale) {
			t.note(note{Kind: noteEnqueue, At: 3, N: 9, Job: 1, Task: taskShort, Key: "k", What: "duplicate"})
		}},
		{"a child without its effect's transaction", []string{"committed", "effects"}, func(t *tale) {
			t.effects = append(t.effects, effect{Job: 1, Fence: 12, Child: true, XID: 1})
		}},
		{"a job that is not finished", []string{"rows"}, func(t *tale) {
			t.states = t.states[:4]
			t.drop(noteEnd, "")
			t.drop(noteBegin, "")
			t.states = t.states[:1]
		}},
		{"a change after the end", []string{"rows"}, func(t *tale) {
			t.rows(*t.states[5])
			t.states[6].At = t.states[5].At + 1
			t.states[6].FinishedAt = t.states[5].FinishedAt
		}},
		{"a claim before it is due", []string{"rows"}, func(t *tale) { t.states[3].RunAt += 5 * second }},
		{"a claim that is not counted", []string{"rows"}, func(t *tale) { t.states[4].Attempts, t.states[5].Attempts = 1, 1 }},
		{"a renewal of another's lease", []string{"rows"}, func(t *tale) { t.states[2].Fence = 5 }},
		{"a release that costs an attempt", []string{"rows"}, func(t *tale) {
			t.states[3].Crashes, t.states[4].Crashes, t.notes[3].Kind = 0, 0, noteOperate
			t.notes[3].Job = 0
		}},
		{"a ledger that is not empty", []string{"rows"}, func(t *tale) { t.claims = 1 }},
		{"a result before the handler's end", []string{"results"}, func(t *tale) { t.find(noteEnd).At += 3 * second; t.find(noteEnd).Mono += 3 * second }},
		{"a success that was a failure", []string{"results"}, func(t *tale) { t.find(noteEnd).What = cameFail }},
		{"a result without a run", []string{"results"}, func(t *tale) {
			t.drop(noteEnd, "")
			t.notes = slices.DeleteFunc(t.notes, func(n note) bool { return n.Fence == 12 })
		}},
		{"a run without a claim", []string{"results"}, func(t *tale) {
			t.note(note{Kind: noteBegin, At: 7 * second, Job: 1, Fence: 99, Run: 3, Process: "p1"})
		}},
		{"an attempt too many", []string{"attempts", "rows"}, func(t *tale) { t.states[0].MaxAttempts = 1 }},
		{"two at work at once", []string{"overlaps", "results"}, func(t *tale) {
			t.states[3].Crashes, t.states[4].Crashes, t.states[3].Attempts = 0, 0, 0
			t.states[4].Attempts, t.states[5].Attempts = 1, 1
			t.drop(noteFault, "kill")
			for i := range t.notes {
				if t.notes[i].Kind == noteExit && t.notes[i].On == "p1" {
					t.notes[i].At, t.notes[i].What = start+11*second, "exit status 0"
				}
			}
			t.note(note{Kind: noteFault, At: 10 * second, From: 10 * second, What: "term", On: "p1"})
		}},
		{"taken before the lease is over", []string{"leases"}, func(t *tale) { t.states[2].LockedUntil += 2 * second }},
		{"taken from the living", []string{"leases"}, func(t *tale) {
			t.drop(noteFault, "kill")
			for i := range t.notes {
				if t.notes[i].Kind == noteExit && t.notes[i].On == "p1" {
					t.notes[i].At, t.notes[i].What = start+11*second, "exit status 0"
				}
			}
			t.note(note{Kind: noteFault, At: 10 * second, From: 10 * second, What: "term", On: "p1"})
			t.states[3].Begun = true
		}},
		{"a lease that is said to be lost for no reason", []string{"leases"}, func(t *tale) {
			t.find(noteEnd).What, t.find(noteEnd).On = cameContext, rebase.ErrLeaseLost.Error()
			t.states[5].Status, t.states[5].Attempts, t.states[5].Setbacks, t.states[5].FinishedAt = "pending", 1, 1, 0
			t.rows(state{Op: "U", ID: 1, Status: "cancelled", At: 9 * second, FinishedAt: 9 * second, Attempts: 1, Runs: 2, Setbacks: 1})
			t.note(note{Kind: noteOperate, At: 9*second + 1, From: 8 * second, Task: opCancel, Job: 1, What: committed})
		}},
		{"an effect of a run that did not end the job", []string{"effects"}, func(t *tale) { t.effects = append(t.effects, effect{Job: 1, Fence: 11, XID: 1}) }},
		{"an effect in another transaction", []string{"effects"}, func(t *tale) { t.effects = append(t.effects, effect{Job: 1, Fence: 12, XID: 1}) }},
		{"a success without its effect", []string{"effects"}, func(t *tale) {
			for i := range t.notes {
				if t.notes[i].Kind == noteBegin {
					t.notes[i].On = doesComplete
				}
			}
		}},
		{"two unfinished jobs with one key", []string{"keys"}, func(t *tale) {
			t.states[0].Task, t.states[0].Key = taskKeyed, "k"
			t.notes[2].Task, t.notes[2].Key = taskKeyed, "k"
			t.another(3*second, state{Task: taskKeyed, Key: "k"})
		}},
		{"a slot that made no job", []string{"slots"}, func(t *tale) { t.fired["s1@2030-01-01T00:00:00Z"] = 1 }},
		{"a slot that did not fire", []string{"slots"}, func(t *tale) {
			t.ends = append(t.ends, scheduleEnd{ID: "s1", Created: start - 1, Next: start + 60*second, Now: start})
		}},
		{"a schedule that is late", []string{"slots"}, func(t *tale) {
			t.ends = append(t.ends, scheduleEnd{ID: "s1", Created: start - 1, Next: start, Now: start + 60*second})
		}},
		{"a cancel that nobody asked for", []string{"operations"}, func(t *tale) {
			t.states[5].Status, t.states[5].Fence = "cancelled", 0
		}},
		{"a retry that left no trace", []string{"operations"}, func(t *tale) {
			t.note(note{Kind: noteOperate, At: 9 * second, From: 8 * second, Task: opRetry, Job: 1, What: committed})
		}},
		{"a claim of a paused task", []string{"pauses"}, func(t *tale) {
			t.note(note{Kind: noteOperate, At: 5 * second, From: 5 * second, Task: opPause, On: taskShort, What: committed})
			t.note(note{Kind: noteOperate, At: 9 * second, From: 9 * second, Task: opResume, On: taskShort, What: committed})
		}},
		{"a deletion that came too early", []string{"deletions"}, func(t *tale) {
			t.rows(state{Op: "D", ID: 1, At: 9 * second})
			t.archived[[2]int64{1, t.states[6].XID}] = 1
		}},
		{"a deletion that was not handed over", []string{"deletions"}, func(t *tale) { t.rows(state{Op: "D", ID: 1, At: 13 * second}) }},
		{"a job that waits on an idle queue", []string{"wakes"}, func(t *tale) {
			t.find(noteEnqueue).Kind = noteEnqueue
			t.note(note{Kind: noteProbe, At: -6 * second, Job: 1})
		}},
		{"a queue that does not get empty", []string{"drains"}, func(t *tale) {
			t.note(note{Kind: noteStuck, At: 40 * second, From: second, Text: "1 claims; unfinished: 1"})
		}},
		{"a process that crashes", []string{"processes"}, func(t *tale) { t.find(noteExit).What = "exit status 2" }},
		{"a process that a SIGTERM ends out of order", []string{"processes"}, func(t *tale) { t.find(noteExit).What = "signal: terminated" }},
		{"a process that does not end in time", []string{"processes"}, func(t *tale) { t.find(noteExit).At += 20 * second }},
		{"a process that leaves a job behind and says nothing", []string{"processes"}, func(t *tale) {
			t.find(noteExit).At = start + 8*second - 1
			t.notes[8].From, t.notes[8].At = start+7*second, start+7*second
		}},
		{"a clock that was set", []string{"clock"}, func(t *tale) { t.find(noteEnd).Mono += 2 * second }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			told := plain()
			c.change(told)
			require.Equal(t, c.rules, told.judge())
		})
	}
}

// The rule about lanes counts jobs that are held at once, not runs.
func TestRulesFindAFullLane(t *testing.T) {
	t.Parallel()
	of := func(id, from, to int64) []turn {
		return []turn{{at: from, seq: 2 * id, id: id, enters: true}, {at: to, seq: 2*id + 1, id: id}}
	}
	most, _ := together(slices.Concat(of(1, 1, 5), of(2, 2, 6), of(3, 6, 7)))
	require.Equal(t, 2, most, "the third came when the second had left")
	most, last := together(slices.Concat(of(1, 1, 5), of(2, 2, 7), of(3, 4, 7)))
	require.Equal(t, 3, most)
	require.EqualValues(t, 3, last.id)
}
