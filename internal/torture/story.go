//go:build unix

// The story of a job: all that the audit and the record say about it, in the order of
// time, and what was done meanwhile to the processes that had it. It is what one reads
// first when a promise was broken, and it is meant to be enough.

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	stories   = 4                // of different jobs, at most
	slowDrain = 15 * time.Second // is within the limit, and worth a look with -keep
)

// tell writes the stories of the first jobs with violations.
func (e *evidence) tell() {
	var b strings.Builder
	told := map[int64]bool{}
	for _, v := range e.report.broken {
		h := e.jobs[v.job]
		if h == nil && e.loss != nil {
			h = e.loss.old.jobs[v.job]
		}
		if h == nil || told[v.job] || len(told) == stories {
			continue
		}
		told[v.job] = true
		fmt.Fprintf(&b, "\n  the story of job %d (%s: %s)", v.job, v.rule, v.text)
		e.write(&b, h)
	}
	for _, n := range e.notes {
		if h := e.jobs[firstOf(n.Text)]; e.Keep && n.Kind == noteEmpty && h != nil && n.At-n.From > slowDrain.Microseconds() {
			fmt.Fprintf(&b, "\n  the story of job %d (among the last of a drain of %s)", h.id, seconds(n.At-n.From))
			e.write(&b, h)
		}
	}
	e.report.story = b.String()
}

func (e *evidence) write(b *strings.Builder, h *history) {
	for _, l := range e.lines(h) {
		fmt.Fprintf(b, "\n    %s  %s", time.UnixMicro(l.at).UTC().Format("15:04:05.000"), l.text)
	}
}

type storyLine struct {
	at   int64
	text string
}

func (e *evidence) lines(h *history) (all []storyLine) {
	add := func(at int64, format string, args ...any) {
		all = append(all, storyLine{at, fmt.Sprintf(format, args...)})
	}
	who := map[string]bool{}
	for _, s := range h.states {
		add(s.At, "row: %s", s)
		if s.Worker != "" {
			who[e.process(s.Worker).name] = true
		}
	}
	if e.loss != nil && e.loss.old.jobs[h.id] != nil {
		for _, s := range e.loss.old.jobs[h.id].states {
			if e.loss.isLost[*s] {
				add(s.At, "lost with the old primary: row: %s", s)
			}
		}
	}
	from, to := h.states[0].At, h.states[len(h.states)-1].At+time.Second.Microseconds()
	for _, n := range e.notes {
		switch {
		case n.Kind == noteBegin && n.Job == h.id:
			add(n.At, "%s: run %d begins, fence %d, does %s", n.Process, n.Run, n.Fence, n.On)
		case n.Kind == noteEnd && n.Job == h.id:
			add(n.At, "%s: fence %d returns %s %s (cause %q)", n.Process, n.Fence, n.What, n.Text, n.On)
		case n.Job == h.id:
			add(n.At, "%s: %s %s %s, since %s %s", n.Process, n.Kind, n.Task, n.What, clockTime(n.From), n.Text)
		case n.Kind == noteFault && n.What == failover:
			add(n.From, "fault: failover until %s: %s", clockTime(n.At), n.Text)
		case n.At < from || n.From > to:
		case n.Kind == noteFault && n.What == "row locks":
			if slices.Contains(strings.Fields(n.On), fmt.Sprint(h.id)) {
				add(n.From, "fault: its row is locked until %s", clockTime(n.At))
			}
		case n.Kind == noteFault && e.concerns(n.On, who):
			add(n.From, "fault: %s of %s until %s %s", n.What, n.On, clockTime(n.At), n.Text)
		case n.Kind == noteStall && (who[n.Process] || n.Process == "harness"):
			add(n.From, "%s did not get to run until %s", n.Process, clockTime(n.At))
		case (n.Kind == noteStart || n.Kind == noteExit) && who[n.On]:
			add(n.At, "%s: %s %s", n.On, n.Kind, n.What)
		}
	}
	slices.SortStableFunc(all, func(a, b storyLine) int { return cmp.Compare(a.at, b.at) })
	return all
}

func (s *state) String() string {
	switch s.Op {
	case "I":
		return fmt.Sprintf("made, n %d, task %s, lane %q, key %q, does %q, max attempts %d", s.N, s.Task, s.Lane, s.Key, s.Does, s.MaxAttempts)
	case "D":
		return "deleted"
	}
	text := fmt.Sprintf("%s, fence %d, attempts %d, run %d, crashes %d, setbacks %d, begun %t, worker %s", s.Status, s.Fence, s.Attempts, s.Runs, s.Crashes, s.Setbacks, s.Begun, s.Worker)
	if s.LockedUntil != 0 {
		text += ", until " + time.UnixMicro(s.LockedUntil).UTC().Format("15:04:05.000")
	}
	if s.Error != "" && s.Status != "running" {
		text += ", error: " + s.Error
	}
	return text
}

// concerns says whether a fault struck one of the processes, or all.
func (e *evidence) concerns(victim string, who map[string]bool) bool {
	if victim == "server" || victim == "tables" || who[victim] {
		return true
	}
	for name := range who {
		if e.process(name).slot == victim {
			return true
		}
	}
	return false
}

func clockTime(at int64) string {
	if at == 0 {
		return "then"
	}
	return time.UnixMicro(at).UTC().Format("15:04:05.000")
}
