//go:build unix

// The fleet is all worker processes of a run, and what can be done to one.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A fleet starts processes that share a configuration. It belongs to one goroutine.
type fleet struct {
	config workerConfig
	dir    string  // of the processes' logs
	procs  []*proc // all that were ever started
}

// A proc is one worker process.
type proc struct {
	name string
	log  string // file
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func newFleet(dir string, config workerConfig) *fleet { return &fleet{config: config, dir: dir} }

// start starts one more process.
func (f *fleet) start() error {
	c := f.config
	c.Name = fmt.Sprintf("p%d", len(f.procs)+1)
	p := &proc{name: c.Name, log: filepath.Join(f.dir, c.Name+".log"), done: make(chan struct{})}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	p.cmd = exec.Command(program)
	// The race detector would make each process wait for a second before it ends.
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if _, err := p.cmd.StdinPipe(); err != nil { // see worker.go
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	f.procs = append(f.procs, p)
	return nil
}

func (p *proc) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill sends SIGKILL and waits for the end.
func (p *proc) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

func (p *proc) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

func (p *proc) thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// living are the processes that have not ended.
func (f *fleet) living() []*proc {
	var all []*proc
	for _, p := range f.procs {
		if p.alive() {
			all = append(all, p)
		}
	}
	return all
}

// end terminates all processes, each of which must go cleanly.
func (f *fleet) end(ctx context.Context) error {
	living := f.living()
	for _, p := range living {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	for _, p := range living {
		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("%s does not end: %w", p.name, context.Cause(ctx))
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("%s ended with code %d; its log is %s", p.name, code, p.log)
		}
	}
	return nil
}

// close ends what is left, whatever state it is in.
func (f *fleet) close() {
	for _, p := range f.living() {
		_ = p.kill() // it may end by itself meanwhile
	}
}

// await asks a question until its answer is true.
func await(ctx context.Context, pool *pgxpool.Pool, what, sql string, args ...any) error {
	for {
		var yes bool
		err := pool.QueryRow(ctx, sql, args...).Scan(&yes)
		if yes {
			return nil
		}
		if pause(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("waiting for %s: %w (last error: %v)", what, context.Cause(ctx), err)
		}
	}
}

// pause waits, and says why it was cut short.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
