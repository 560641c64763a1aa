//go:build unix

// The checker: a list of rules, each a function over the evidence that counts what it
// looked at and says what is wrong. A rule that looked at nothing has proved nothing, so
// the counts stand in the report.

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A rule is one promise. Its name stands before each of its violations.
type rule struct {
	name  string
	judge func(*evidence)
	both  bool // after a failover the old primary's history is held against it, too
}

var rules = []rule{
	{"committed", (*evidence).committed, true},
	{"rows", (*evidence).rows, true},
	{"results", (*evidence).results, true},
	{"attempts", (*evidence).attempts, true},
	{"overlaps", (*evidence).overlaps, true},
	{"leases", (*evidence).leases, true},
	{"effects", (*evidence).effectsOnce, true},
	{"keys", (*evidence).keys, true},
	{"lanes", (*evidence).lanes, true},
	{"slots", (*evidence).slots, false},
	{"operations", (*evidence).operations, true},
	{"pauses", (*evidence).pauses, true},
	{"deletions", (*evidence).deletions, true},
	{"wakes", (*evidence).wakes, false},
	{"drains", (*evidence).drains, false},
	{"processes", (*evidence).exits, false},
	{"clock", (*evidence).clock, false},
	{failover, (*evidence).failedOver, false},
}

// check gathers the evidence of a run and judges it.
func (r *run) check(ctx context.Context) (*report, error) {
	e, err := r.gather(ctx)
	if err != nil {
		return nil, err
	}
	e.judge()
	return e.report, nil
}

// judge holds the evidence against all rules, and tells the story of what is wrong.
func (e *evidence) judge() {
	for _, r := range rules {
		r.judge(e)
		if e.loss != nil && r.both {
			r.judge(e.loss.old)
		}
	}
	if e.loss != nil {
		for _, v := range e.loss.old.report.broken {
			e.wrong(v.rule, v.job, "on the old primary: %s", v.text)
		}
	}
	e.tell()
}

// A violation is a broken promise. Job is 0 if it is none of a single job.
type violation struct {
	rule string
	job  int64
	text string
}

// A report is what a run came to.
type report struct {
	Seed   uint64
	Took   time.Duration
	Dir    string // of the record, if it is kept
	Jobs   int
	Runs   int
	counts map[string]int // of what each rule looked at
	faults map[string]int
	facts  map[string]int // what else is worth knowing
	broken []violation
	wakes  []int64 // µs that single jobs waited on a quiet queue
	drains []int64 // µs until the queue was empty after the faults
	story  string

	failover string // what it took
}

func newReport() *report {
	return &report{counts: map[string]int{}, faults: map[string]int{}, facts: map[string]int{}}
}

func (r *report) violations() int { return len(r.broken) }

// wrong notes a broken promise.
func (e *evidence) wrong(rule string, job int64, format string, args ...any) {
	e.report.broken = append(e.report.broken, violation{rule, job, fmt.Sprintf(format, args...)})
}

// looked counts what a rule has looked at.
func (e *evidence) looked(rule string) { e.report.counts[rule]++ }

func (r *report) String() string {
	var b strings.Builder
	faults := 0
	for name, n := range r.faults {
		if name != "slow server" {
			faults += n
		}
	}
	fmt.Fprintf(&b, "seed %d: jobs %d, runs %d, faults %d, violations %d, %.0f s", r.Seed, r.Jobs, r.Runs, faults, len(r.broken), r.Took.Seconds())
	if r.Dir != "" {
		fmt.Fprintf(&b, ", record in %s", r.Dir)
	}
	b.WriteString(r.failover)
	const most = 3 // of each rule
	shown := map[string]int{}
	for _, v := range r.broken {
		if shown[v.rule]++; shown[v.rule] <= most {
			fmt.Fprintf(&b, "\n  %s: job %d: %s", v.rule, v.job, v.text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		if more := shown[name] - most; more > 0 {
			fmt.Fprintf(&b, "\n  %s: %d more", name, more)
		}
	}
	b.WriteString(r.story)
	return b.String()
}

// A summary adds up reports.
type summary struct {
	seeds, jobs, runs, broken int
	counts, faults, facts     map[string]int
	wakes, drains             []int64
	found                     map[string]int
}

func (s *summary) add(r *report) {
	if s.counts == nil {
		s.counts, s.faults, s.facts, s.found = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	}
	s.seeds++
	s.jobs += r.Jobs
	s.runs += r.Runs
	s.broken += len(r.broken)
	s.wakes, s.drains = append(s.wakes, r.wakes...), append(s.drains, r.drains...)
	for _, v := range r.broken {
		s.found[v.rule]++
	}
	for into, from := range map[*map[string]int]map[string]int{&s.counts: r.counts, &s.faults: r.faults, &s.facts: r.facts} {
		for name, n := range from {
			(*into)[name] += n
		}
	}
}

func (s *summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d seeds, %d jobs, %d runs of handlers, %d violations\n", s.seeds, s.jobs, s.runs, s.broken)
	fmt.Fprintf(&b, "\n%-12s %10s %10s\n", "rule", "checked", "violations")
	for _, r := range rules {
		fmt.Fprintf(&b, "%-12s %10d %10d\n", r.name, s.counts[r.name], s.found[r.name])
	}
	fmt.Fprintf(&b, "\nfaults: %s\n", list(s.faults))
	fmt.Fprintf(&b, "seen: %s\n", list(s.facts))
	fmt.Fprintf(&b, "from the last fault to an empty queue: %s\n", spread(s.drains))
	fmt.Fprintf(&b, "wait of a single job on a quiet queue: %s\n", spread(s.wakes))
	return b.String()
}

// spread tells of times in µs.
func spread(all []int64) string {
	n := len(all)
	if n == 0 {
		return "none"
	}
	slices.Sort(all)
	ms := func(i int) float64 { return float64(all[i]) / 1000 }
	return fmt.Sprintf("%d times, median %.1f ms, 99 %% %.1f ms, longest %.1f ms", n, ms(n/2), ms(n*99/100), ms(n-1))
}

func list(m map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(all, ", ")
}
