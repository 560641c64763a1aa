//go:build unix

// The promises, one function each. All are judged from the outside: from what was
// enqueued, what was seen to run and when, and what stands in the rows at the end.

package main

import (
	"slices"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
)

func (c *checker) judge() {
	c.nothingInvented()
	for _, id := range sortedKeys(c.made) {
		j := c.jobs[id]
		if j == nil {
			c.wrong("job %d was committed and is gone", id)
			continue
		}
		if j.N != c.made[id] {
			c.wrong("job %d has the payload of another: n %d, enqueued with %d", id, j.N, c.made[id])
		}
	}
	for _, id := range sortedKeys(c.jobs) {
		j, runs := c.jobs[id], c.runs[id]
		c.ended(j, runs)
		c.recordedOnce(j, runs)
		c.explained(j, runs)
		c.reapedForAReason(j)
		c.counted(j, runs)
	}
	if c.claims > 0 {
		c.wrong("the ledger still has %d claims", c.claims)
	}
	for _, outcome := range c.enqueued {
		switch outcome {
		case "committed":
			c.report.Jobs++
		case "rolled back":
			c.report.RolledBack++
		}
	}
}

// nothingInvented: what runs was enqueued and not rolled back (J2).
func (c *checker) nothingInvented() {
	for _, j := range c.jobs {
		if o := c.enqueued[j.N]; o != "committed" && o != "unknown" {
			c.wrong("job %d stands in the table, but its enqueue is noted as %q", j.ID, o)
		}
	}
	for id, runs := range c.runs {
		for _, r := range runs {
			if o := c.enqueued[r.N]; o != "committed" && o != "unknown" {
				c.wrong("job %d ran, but its enqueue is noted as %q", id, o)
			}
			if c.jobs[id] == nil {
				c.wrong("job %d ran and has no row", id)
			}
		}
	}
}

// ended: every job is finished, and only those failed that should (J8, J9, Q54).
func (c *checker) ended(j *jobRow, runs []*runRow) {
	mustFail := slices.Contains(c.expect.Fails, j.ID)
	switch {
	case j.Status == "failed" && !mustFail:
		c.wrong("job %d failed: %s; attempts %d of %d, history %s", j.ID, j.LastError, j.Attempts, j.MaxAttempts, story(j))
	case mustFail && j.Status != "failed":
		c.wrong("job %d should have failed and is %s", j.ID, j.Status)
	case mustFail && j.LastError == "":
		c.wrong("job %d failed without a reason", j.ID)
	case !mustFail && j.Status != "failed" && j.Status != "succeeded":
		c.wrong("job %d is %s at the end", j.ID, j.Status)
	}
	if len(runs) == 0 && j.Status == "succeeded" {
		c.wrong("job %d succeeded and never ran", j.ID)
	}
}

// recordedOnce: of a job that succeeded exactly one run is the one whose result stands,
// it is the last, and it did return nil (J12, J24). An effect of CompleteTx is there
// exactly if that run made it (J16).
func (c *checker) recordedOnce(j *jobRow, runs []*runRow) {
	wins := 0
	for i, r := range runs {
		if r.Fence != -j.Fence {
			continue
		}
		if wins++; j.Status == "succeeded" && i != len(runs)-1 {
			c.wrong("job %d: run %d recorded success, and it ran again after that", j.ID, r.Run)
		}
		committed := slices.Contains(c.effects[j.ID], r.Fence)
		if j.Status == "succeeded" && !committed && (r.Ended == nil || r.Error != nil) {
			c.wrong("job %d succeeded by run %d, which is not known to have returned nil", j.ID, r.Run)
		}
	}
	if j.Status == "succeeded" && wins != 1 {
		c.wrong("job %d succeeded by %d of its runs; fence %d", j.ID, wins, j.Fence)
	}
	successes := 0
	for _, h := range j.History {
		if h.Outcome == "succeeded" {
			successes++
		}
	}
	if successes > 1 {
		c.wrong("job %d: success stands %d times in its history", j.ID, successes)
	}
	effects := c.effects[j.ID]
	if j.Does == doesComplete && j.Status == "succeeded" && (len(effects) != 1 || effects[0] != -j.Fence) {
		c.wrong("job %d has effects of %v; it succeeded by %d", j.ID, effects, -j.Fence)
	}
}

// explained: every run but the last was ended before the next began, by something that
// the history tells and that fits what the handler did. Two runs at once are possible
// only where the first had lost its lease or had timed out (J5, J12, J13).
func (c *checker) explained(j *jobRow, runs []*runRow) {
	c.report.Runs += len(runs)
	c.report.MaxRuns = max(c.report.MaxRuns, len(runs))
	if len(runs) > 1 {
		c.report.Reruns += len(runs) - 1
		if c.expect.Once {
			c.wrong("job %d ran %d times: %s", j.ID, len(runs), story(j))
		}
	}
	for i, r := range runs[:max(len(runs)-1, 0)] {
		next := runs[i+1]
		h := j.entry(r.Run)
		if h == nil {
			if len(j.History) < 20 {
				c.wrong("job %d: run %d is followed by run %d, and nothing says how it ended: %s", j.ID, r.Run, next.Run, story(j))
			}
			continue
		}
		if !fits(h, r) {
			c.wrong("job %d: run %d ended as %q by the history; the handler returned %s, cause %s", j.ID, r.Run, h.Outcome, text(r.Error), text(r.Cause))
		}
		if next.Started.Before(h.EndedAt) {
			c.wrong("job %d: run %d began %v before run %d was over", j.ID, next.Run, h.EndedAt.Sub(next.Started), r.Run)
		}
		overlap := r.Ended == nil || r.Ended.After(next.Started)
		if overlap && h.Outcome != "crashed" && !strings.Contains(h.Error, "timed out") {
			c.wrong("job %d: runs %d and %d overlapped, and the first had not lost its lease: %q", j.ID, r.Run, next.Run, h.Outcome)
		}
	}
}

// fits says whether a run that was not the last may have ended like this.
func fits(h *rebase.Attempt, r *runRow) bool {
	switch h.Outcome {
	case "crashed":
		return true // whatever it returned did not count any more
	case "failed":
		return r.Error != nil || strings.Contains(h.Error, "timed out") || strings.Contains(h.Error, "CompleteTx")
	case "setback", "released":
		return r.Error != nil
	}
	return false
}

// reapedForAReason: a lease is lost only by a process that was killed or frozen, and
// only after that (J10, J11).
func (c *checker) reapedForAReason(j *jobRow) {
	for _, h := range j.History {
		if h.Outcome != "crashed" {
			continue
		}
		c.report.Reaped++
		at, ok := c.taken[process(h.Worker)]
		switch {
		case !ok:
			c.wrong("job %d was taken from %s, which was alive", j.ID, h.Worker)
		case h.EndedAt.Before(at):
			c.wrong("job %d was taken from %s %v before that was hurt", j.ID, h.Worker, at.Sub(h.EndedAt))
		}
		if c.expect.Innocent {
			c.wrong("job %d lost its lease: %s", j.ID, story(j))
		}
	}
}

// counted: attempts are at most the maximum, and no run is left out (J8).
func (c *checker) counted(j *jobRow, runs []*runRow) {
	c.report.Attempts = max(c.report.Attempts, j.Attempts)
	if j.Attempts > j.MaxAttempts {
		c.wrong("job %d used %d attempts of %d", j.ID, j.Attempts, j.MaxAttempts)
	}
	if j.Runs < len(runs) {
		c.wrong("job %d ran %d times, its row says %d", j.ID, len(runs), j.Runs)
	}
	for i, r := range runs {
		if i > 0 && r.Run <= runs[i-1].Run {
			c.wrong("job %d: two runs with the number %d", j.ID, r.Run)
		}
		if r.Attempt > j.MaxAttempts {
			c.wrong("job %d: run %d was attempt %d of %d", j.ID, r.Run, r.Attempt, j.MaxAttempts)
		}
	}
}

// story is a job's history in short.
func story(j *jobRow) string {
	var b strings.Builder
	for i, h := range j.History {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(h.EndedAt.Format(time.TimeOnly) + " " + h.Worker + " " + h.Outcome + " " + h.Error)
	}
	return b.String()
}

func text(s *string) string {
	if s == nil {
		return "nothing"
	}
	return *s
}

func sortedKeys[V any](m map[int64]V) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
