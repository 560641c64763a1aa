//go:build unix

// The fleet is the worker processes: a fixed number of slots, each with a link of its own
// to the server and a supervisor that starts a new process when one has ended, as a
// service manager would. Every process has a name of its own, so the record and the rows
// (locked_by) tell them apart.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rebasejobs/rebase/internal/faultnet"
)

// A fleet supervises its slots until it is ended.
type fleet struct {
	record *record
	dir    string
	slots  []*slot

	stop        chan struct{}  // closed when processes are not replaced any more
	supervisors sync.WaitGroup // one for each slot

	mu    sync.Mutex // guards what follows, and each slot's proc
	count int        // of processes so far
	ended bool       // stop is closed
}

// A slot is the place of one process at a time.
type slot struct {
	name   string
	config workerConfig
	links  []*faultnet.Proxy // all of its ways to the server
	proc   *proc             // nil between two
}

// A proc is one worker process.
type proc struct {
	name string
	log  string // file
	// record is its file; once it is there the process listens to SIGTERM, which would end it out of order before.
	record string
	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended and that is noted
}

// startFleet starts a process in each slot.
func startFleet(r *record, dir string, slots []*slot) *fleet {
	f := &fleet{record: r, dir: dir, slots: slots, stop: make(chan struct{})}
	for _, s := range slots {
		f.supervisors.Go(func() { f.supervise(s) })
	}
	return f
}

// supervise keeps a process in the slot.
func (f *fleet) supervise(s *slot) {
	for {
		p, err := f.start(s)
		if err != nil {
			f.record.note(note{Kind: noteExit, On: s.name, What: "can't be started: " + err.Error()})
		}
		if p == nil {
			return
		}
		<-p.done
		select {
		case <-f.stop:
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// start starts a process; nil if the fleet ends.
func (f *fleet) start(s *slot) (*proc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil, nil
	}
	f.count++
	c := s.config
	c.Name = fmt.Sprintf("p%d", f.count)
	p := &proc{name: c.Name, log: filepath.Join(f.dir, c.Name+".log"), record: filepath.Join(c.Dir, c.Name+recordSuffix), done: make(chan struct{})}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(program)
	// The race detector would make each process wait for a second before it ends.
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw), "GORACE=atexit_sleep_ms=0")
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if _, err := p.cmd.StdinPipe(); err != nil { // see worker.go
		return nil, err
	}
	f.record.note(note{Kind: noteStart, On: c.Name, What: s.name})
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	s.proc = p
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		f.record.note(note{Kind: noteExit, On: p.name, What: p.cmd.ProcessState.String()})
		f.mu.Lock()
		s.proc = nil
		f.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

// in returns the process in the slot, nil between two.
func (f *fleet) in(s *slot) *proc {
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.proc
}

// complete says whether each slot has a process.
func (f *fleet) complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.slots {
		if s.proc == nil {
			return false
		}
	}
	return true
}

func (p *proc) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// listens waits until the process listens to SIGTERM, or has ended.
func (p *proc) listens(ctx context.Context) error {
	for {
		if _, err := os.Stat(p.record); err == nil {
			return nil
		}
		select {
		case <-p.done:
			return nil
		default:
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// end terminates all processes and waits for them.
func (f *fleet) end(ctx context.Context) error {
	f.replaceNone()
	var errs []error
	for _, s := range f.slots {
		p := f.in(s)
		if p == nil {
			continue
		}
		errs = append(errs, p.listens(ctx))
		f.record.note(note{Kind: noteFault, What: "term", On: p.name, From: time.Now().UnixMicro()})
		errs = append(errs, p.signal(syscall.SIGTERM))
	}
	ended := make(chan struct{})
	go func() {
		f.supervisors.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("the workers do not end: %w", context.Cause(ctx)))
		f.kill()
		<-ended
	}
	return errors.Join(errs...)
}

// replaceNone makes the end of a process the end of its slot.
func (f *fleet) replaceNone() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.ended = true
		close(f.stop)
	}
}

// abort ends all that is left, when a run has failed or is over.
func (f *fleet) abort() {
	f.replaceNone()
	f.kill()
	f.supervisors.Wait()
}

// kill ends the processes, whatever state they are in.
func (f *fleet) kill() {
	for _, s := range f.slots {
		if p := f.in(s); p != nil {
			_ = p.cmd.Process.Kill() // it may end by itself meanwhile
		}
	}
}
