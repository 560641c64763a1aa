package main

// A worker in a process of its own, and what this process knows of it. All children speak one
// protocol, whatever they are written in: a command a line on standard input, as JSON, answered
// by one line with its id; and lines {"handled": n} that say how many handlers have run since
// the last. They are gathered for 2 ms, so that telling costs the worker little.
//
// A child ends when its input does, so none outlives this process.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	last    int
	answers map[int]chan answer // by id; guarded by mu
	h       handler             // guarded by mu
	gone    error               // why there will be no more answers; guarded by mu
}

// A childLine is what a child says: an answer, or how many handlers have run.
type childLine struct {
	ID      int    `json:"id"`
	Error   string `json:"error,omitempty"`
	Handled int    `json:"handled,omitempty"`
	// Mallocs are the allocations between a Go child's work and its stop.
	Mallocs uint64 `json:"mallocs,omitempty"`
}

type answer struct {
	line childLine
	err  error
}

func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, answers: map[int]chan answer{}}
	cmd.Stderr = os.Stderr
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go c.listen(out)
	return c, nil
}

// startChild starts a process that works for the system.
func (s *system) startChild(ctx context.Context, url string) (*child, error) {
	if s.node != "" {
		return startNode(ctx, s.node, url)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startChild(exec.CommandContext(ctx, program, peerArg, s.name, url))
}

func (c *child) listen(out io.Reader) {
	var err error
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var l childLine
		if err = json.Unmarshal(lines.Bytes(), &l); err != nil {
			err = fmt.Errorf("the child said %q: %w", lines.Text(), err)
			break
		}
		c.heard(l)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = errors.Join(errors.New("the child has ended"), err, lines.Err())
	for _, a := range c.answers {
		a <- answer{err: c.gone}
	}
	clear(c.answers)
}

func (c *child) heard(l childLine) {
	c.mu.Lock()
	h, waiting := c.h, c.answers[l.ID]
	if l.ID > 0 {
		delete(c.answers, l.ID)
	}
	c.mu.Unlock()
	for range l.Handled {
		h(0)
	}
	switch {
	case waiting == nil:
	case l.Error != "":
		waiting <- answer{err: errors.New(l.Error)}
	default:
		waiting <- answer{line: l}
	}
}

// do sends a command and waits for its answer.
func (c *child) do(ctx context.Context, command map[string]any) (childLine, error) {
	waiting := make(chan answer, 1)
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return childLine{}, c.gone
	}
	c.last++
	command["id"] = c.last
	c.answers[c.last] = waiting
	c.mu.Unlock()
	line, err := json.Marshal(command)
	if err != nil {
		return childLine{}, err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return childLine{}, err
	}
	select {
	case a := <-waiting:
		return a.line, a.err
	case <-ctx.Done():
		return childLine{}, context.Cause(ctx)
	}
}

func (c *child) work(ctx context.Context, w worker, h handler) error {
	c.mu.Lock()
	c.h = h
	c.mu.Unlock()
	_, err := c.do(ctx, map[string]any{"cmd": "work", "slots": w.slots, "workers": max(w.workers, 1), "idle": w.idle})
	return err
}

// stop ends the workers and tells what they allocated, if the child knows.
func (c *child) stop() (mallocs uint64, err error) {
	l, err := c.do(context.Background(), map[string]any{"cmd": "stop"})
	return l.Mallocs, err
}

func (c *child) close() {
	_, _ = c.do(context.Background(), map[string]any{"cmd": "close"}) // it ends in any case
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// A crew is a client whose workers are children.
type crew struct {
	client
	children []*child
}

func (c crew) work(ctx context.Context, w worker, h handler) (func() error, error) {
	if err := c.each(func(child *child) error { return child.work(ctx, w, h) }); err != nil {
		return nil, err
	}
	return func() error {
		return c.each(func(child *child) error { _, err := child.stop(); return err })
	}, nil
}

// each asks all children at once.
func (c crew) each(f func(*child) error) error {
	errs := make([]error, len(c.children))
	var all sync.WaitGroup
	for i, child := range c.children {
		all.Go(func() { errs[i] = f(child) })
	}
	all.Wait()
	return errors.Join(errs...)
}
