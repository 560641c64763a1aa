//go:build unix

// The fleet is all worker processes of a run, and what is done to them. Every signal
// that takes a process from its jobs is noted before it is sent, so that the checker can
// tell a lease that was lost for a reason from one that was taken from the living.

package main

import (
	"cmp"
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

	"github.com/jackc/pgx/v5/pgxpool"
)

// A Fleet starts processes that share a configuration.
type Fleet struct {
	config WorkerConfig
	dir    string // of the processes' logs
	pool   *pgxpool.Pool
	record record

	mu    sync.Mutex // guards what follows
	procs []*Proc    // all that were ever started
}

// A Proc is one worker process.
type Proc struct {
	Name   string
	log    string // file
	buried bool   // its end by its own hand has been noted
	fleet  *Fleet
	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended
}

// NewFleet prepares a fleet on a database whose tables are there. pool is for the
// fleet's own notes and questions.
func NewFleet(pool *pgxpool.Pool, dir string, config WorkerConfig) *Fleet {
	return &Fleet{config: config, dir: dir, pool: pool, record: record{pool: pool}}
}

// Start starts one more process, with a name of its own.
func (f *Fleet) Start() (*Proc, error) { return f.StartAs("") }

// StartAs starts a process with a name that another may have had.
func (f *Fleet) StartAs(name string) (*Proc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.config
	c.Name = cmp.Or(name, fmt.Sprintf("p%d", len(f.procs)+1))
	p := &Proc{Name: c.Name, fleet: f, done: make(chan struct{})}
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
	p.log = filepath.Join(f.dir, fmt.Sprintf("%s.%d.log", c.Name, len(f.procs)+1))
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if _, err := p.cmd.StdinPipe(); err != nil { // see worker.go
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	f.procs = append(f.procs, p)
	return p, nil
}

// StartAll starts n processes and waits until each has renewed once.
func (f *Fleet) StartAll(ctx context.Context, n int) ([]*Proc, error) {
	var all []*Proc
	for range n {
		p, err := f.Start()
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.AwaitUp(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// AwaitUp waits for the worker's row.
func (p *Proc) AwaitUp(ctx context.Context) error {
	return p.fleet.Await(ctx, p.Name+" to be up", "select exists (select from rebase.workers where id like $1)", p.Name+"-%")
}

// Await asks a question until its answer is true. A server that is away has no answer.
func (f *Fleet) Await(ctx context.Context, what, sql string, args ...any) error {
	for {
		var yes bool
		err := f.pool.QueryRow(ctx, sql, args...).Scan(&yes)
		if yes {
			return nil
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("waiting for %s: %w (last error: %v)", what, context.Cause(ctx), err)
		}
	}
}

// Alive says whether the process has not ended.
func (p *Proc) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill sends SIGKILL and waits for the end.
func (p *Proc) Kill() error {
	p.fleet.record.note(noteSignalSQL, p.Name, "KILL")
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Freeze stops the process where it stands; Thaw lets it go on.
func (p *Proc) Freeze() error {
	p.fleet.record.note(noteSignalSQL, p.Name, "STOP")
	return p.cmd.Process.Signal(syscall.SIGSTOP)
}

// Thaw lets a frozen process go on.
func (p *Proc) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Terminate sends SIGTERM, waits for the end and returns the exit code.
func (p *Proc) Terminate(ctx context.Context) (code int, err error) {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s does not end: %w", p.Name, context.Cause(ctx))
	}
}

// Living are the processes that have not ended.
func (f *Fleet) Living() []*Proc {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*Proc
	for _, p := range f.procs {
		if p.Alive() {
			all = append(all, p)
		}
	}
	return all
}

// Drain waits until nothing is unfinished and no claim is left, then ends all processes,
// each of which must go cleanly.
func (f *Fleet) Drain(ctx context.Context) error {
	err := f.Await(ctx, "an empty queue", `
select not exists (select from rebase.jobs where finished_at is null) and not exists (select from rebase.claims)`)
	if err != nil {
		return err
	}
	for _, p := range f.Living() {
		code, err := p.Terminate(ctx)
		if err != nil {
			return err
		}
		if code != 0 {
			return fmt.Errorf("%s ended with code %d after all work was done", p.Name, code)
		}
	}
	return nil
}

// Close ends what is left, whatever state it is in.
func (f *Fleet) Close() {
	for _, p := range f.Living() {
		_ = p.cmd.Process.Kill() // it may end by itself meanwhile
		<-p.done
	}
}
