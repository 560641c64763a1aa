//go:build unix

// Two real processes under a limit of 2 jobs a lane. Each notes when every handler began and
// ended and prints that when it ends; both use the machine's one clock, so how many jobs of
// a lane ran at once can be told from the two lists together.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// laneLimit is the limit of part limit.
const laneLimit = 2

func (b *bench) limit(ctx context.Context) error {
	fmt.Printf("limit: two processes of %d slots, %d lanes of %d jobs of %v, at most %d of a lane at once\n",
		b.slots, b.limited, b.jobs, b.handler, laneLimit)
	r, err := b.limitedRun(ctx)
	if err != nil {
		return err
	}
	// No lane can be faster than its limit allows.
	ideal := float64(laneLimit*b.limited) / b.handler.Seconds()
	fmt.Printf("    %d jobs, most of one lane at once %d, both processes ran some: %v\n", r.jobs, r.most, r.shared)
	fmt.Printf("    %d claim statements, %.2f a job (wanted: 1.2 or less); %.0f jobs/s of %.0f that the limit allows\n",
		r.claims, float64(r.claims)/float64(r.jobs), r.rate, min(ideal, float64(2*b.slots)/b.handler.Seconds()))
	if r.most > laneLimit {
		return fmt.Errorf("%d jobs of a lane ran at once", r.most)
	}
	return nil
}

// A limited is what a run came to.
type limited struct {
	jobs, most int
	shared     bool // both processes ran some
	claims     int64
	rate       float64
}

// limitedRun starts two processes on a full table and ends them when it is empty.
func (b *bench) limitedRun(ctx context.Context) (*limited, error) {
	err := b.fill(ctx, b.limited*b.jobs, func(i int) string { return fmt.Sprintf("tenant %d", i%b.limited) })
	if err != nil {
		return nil, err
	}
	before, _, err := b.claims(ctx)
	if err != nil {
		return nil, err
	}
	var procs []*process
	for range 2 {
		p, err := startProcess(ctx, workerConfig{URL: b.url, Slots: b.slots, Handler: b.handler})
		if err != nil {
			return nil, err
		}
		defer p.kill()
		procs = append(procs, p)
	}
	if err := b.drained(ctx); err != nil {
		return nil, err
	}
	r := &limited{shared: true}
	var all []run
	for _, p := range procs {
		runs, err := p.finish()
		if err != nil {
			return nil, err
		}
		r.shared = r.shared && len(runs) > 0
		all = append(all, runs...)
	}
	after, _, err := b.claims(ctx)
	r.claims, r.jobs, r.most = after-before, len(all), atOnce(all)
	if r.jobs != b.limited*b.jobs {
		return nil, fmt.Errorf("%d runs of %d jobs", r.jobs, b.limited*b.jobs)
	}
	r.rate = rate(all)
	return r, err
}

// A run is one run of a handler.
type run struct {
	Lane         string
	Began, Ended time.Time
}

// atOnce is how many runs of one lane there were at once, at most. A run that begins when
// another ends comes after it.
func atOnce(runs []run) (most int) {
	type edge struct {
		at   time.Time
		step int
	}
	lanes := map[string][]edge{}
	for _, r := range runs {
		lanes[r.Lane] = append(lanes[r.Lane], edge{r.Began, 1}, edge{r.Ended, -1})
	}
	for _, edges := range lanes {
		slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), a.step-b.step) })
		n := 0
		for _, e := range edges {
			n += e.step
			most = max(most, n)
		}
	}
	return most
}

func rate(runs []run) float64 {
	first := slices.MinFunc(runs, func(a, b run) int { return a.Began.Compare(b.Began) })
	last := slices.MaxFunc(runs, func(a, b run) int { return a.Ended.Compare(b.Ended) })
	return float64(len(runs)) / last.Ended.Sub(first.Began).Seconds()
}

// A process is this program again, as a worker.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	end    func() error // closes its input
}

func startProcess(ctx context.Context, c workerConfig) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.output, os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.end = in.Close
	return p, p.cmd.Start()
}

// finish ends the process in order and returns what it ran.
func (p *process) finish() (runs []run, err error) {
	if err := errors.Join(p.end(), p.cmd.Wait()); err != nil {
		return nil, err
	}
	return runs, json.Unmarshal(p.output.Bytes(), &runs)
}

// kill ends a process that has not finished.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill() // it may end by itself meanwhile
		_ = p.cmd.Wait()
	}
}
