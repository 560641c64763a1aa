//go:build unix

// The fleet is all worker processes of a part. A process that ends before it is told to is an
// error of whatever waits meanwhile: a rate with fewer workers than it says would be a lie.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A fleet belongs to one goroutine.
type fleet struct {
	bench *bench
	procs []*process
	began chan time.Time // of probes, from all processes
}

// A process is this program again, as a worker.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan *report
	done    chan struct{} // closed when it has ended
	err     error         // how; to be read after done
}

// fleet starts n workers and waits until all of them are asleep. What they would claim must be
// paused, so that they begin at one moment.
func (b *bench) fleet(ctx context.Context, n int, c workerConfig) (_ *fleet, err error) {
	f := &fleet{bench: b, began: make(chan time.Time, 16)}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	c.URL = b.url
	for range n {
		if err := f.start(c); err != nil {
			return nil, err
		}
	}
	return f, f.await(ctx, "all workers to be asleep", asleepSQL, n)
}

// asleepSQL: as many workers as $1 hold a sleep lock.
const asleepSQL = `
select count(distinct l.pid) = $1
from pg_locks l
join pg_database d on d.oid = l.database
where d.datname = current_database()
and l.locktype = 'advisory' and l.classid = 7236 and l.mode = 'ShareLock' and l.granted`

func (f *fleet) start(c workerConfig) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	p := &process{cmd: exec.Command(program), reports: make(chan *report, 2), done: make(chan struct{})}
	// The race detector would make each process wait for a second before it ends.
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	f.procs = append(f.procs, p)
	go func() {
		defer close(p.done)
		err := f.read(p, out)
		p.err = errors.Join(p.cmd.Wait(), err)
	}()
	return nil
}

// read takes what a process prints. Nobody need be there to receive it: what doesn't fit is an
// error, as a process could not go on otherwise.
func (f *fleet) read(p *process, out io.Reader) error {
	for lines := json.NewDecoder(out); ; {
		var m message
		if err := lines.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("a worker's output: %w", err)
		}
		if m.Report != nil {
			select {
			case p.reports <- m.Report:
			default:
				return errors.New("a worker's output: a report that nobody asked for")
			}
			continue
		}
		select {
		case f.began <- m.Began:
		default:
			return errors.New("a worker's output: a probe began that nobody waits for")
		}
	}
}

// alive is an error if a process has ended.
func (f *fleet) alive() error {
	for _, p := range f.procs {
		select {
		case <-p.done:
			return errors.Join(errors.New("a worker has ended too early"), p.err)
		default:
		}
	}
	return nil
}

// await asks a question until its answer is true.
func (f *fleet) await(ctx context.Context, what, sql string, args ...any) error {
	for {
		if err := f.alive(); err != nil {
			return err
		}
		var yes bool
		err := f.bench.pool.QueryRow(ctx, sql, args...).Scan(&yes)
		if yes {
			return nil
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("waiting for %s: %w (last error: %v)", what, context.Cause(ctx), err)
		}
	}
}

// reports asks every process for a report.
func (f *fleet) reports(ctx context.Context) ([]report, error) {
	for _, p := range f.procs {
		if _, err := io.WriteString(p.in, "report\n"); err != nil {
			return nil, errors.Join(err, f.alive())
		}
	}
	return f.collect(ctx)
}

// collect takes a report of each process.
func (f *fleet) collect(ctx context.Context) (all []report, err error) {
	for _, p := range f.procs {
		select {
		case r := <-p.reports:
			all = append(all, *r)
			continue
		default:
		}
		select {
		case r := <-p.reports:
			all = append(all, *r)
		case <-p.done:
			select {
			case r := <-p.reports: // its last words
				all = append(all, *r)
			default:
				return nil, errors.Join(errors.New("a worker has ended without a report"), p.err)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a worker's report: %w", context.Cause(ctx))
		}
	}
	return all, nil
}

// end lets all processes shut down, each of which must go cleanly, and returns their last reports.
func (f *fleet) end(ctx context.Context) ([]report, error) {
	for _, p := range f.procs {
		if err := p.in.Close(); err != nil {
			return nil, err
		}
	}
	for _, p := range f.procs {
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("a worker does not end: %w", context.Cause(ctx))
		}
		if p.err != nil {
			return nil, p.err
		}
	}
	return f.collect(ctx)
}

// close ends what is left, in whatever state it is.
func (f *fleet) close() {
	for _, p := range f.procs {
		select {
		case <-p.done:
		default:
			_ = p.cmd.Process.Kill() // it may end by itself meanwhile
		}
		<-p.done
	}
}

// total adds reports up.
func total(all []report) (sum report) {
	for _, r := range all {
		sum.Runs += r.Runs
		sum.Looks += r.Looks
		sum.Rounds += r.Rounds
		sum.CPU += r.CPU
	}
	return sum
}
