package main

// The queues of the Node.js world: each is a child process (node/peer.mjs) that does what it is
// told, a JSON object a line, and says how many handlers have run. Its packages are installed
// when they are first needed, in the versions of node/package-lock.json.
//
// They take part where the clock of this process can time them without the pipe being in the
// way: in drains and bulk inserts, not in single enqueues and wakes.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/jackc/pgx/v5"
)

var graphileSystem = &system{
	name:  "graphile",
	slots: 96,
	about: "graphile-worker 0.18.0 on Node.js; localQueue 500, completeJobBatchDelay 0; addJobs",
	open: openNode(nodeQueue{
		name:  "graphile",
		table: "graphile_worker._private_jobs",
		unfinished: `
select exists(select from graphile_worker._private_jobs j
  where j.task_id = (select id from graphile_worker._private_tasks where identifier = '` + task + `'))`,
	}),
}

var pgbossSystem = &system{
	name:  "pgboss",
	slots: 1000,
	about: "pg-boss 12.38.0 on Node.js; one worker, batches of its concurrency, pollingInterval 0.5 s, burstWhenBatchFull; insert",
	open: openNode(nodeQueue{
		name:       "pgboss",
		table:      "pgboss.job",
		unfinished: "select exists(select from pgboss.job where name = '" + task + "' and state < 'completed')",
		retain: `
insert into pgboss.job (name, data, state, started_on, completed_on)
select $1, '{"sent": 0}', 'completed', now(), now() - i * interval '10 ms'
from generate_series(1, $2::bigint) i`,
	}),
}

// nodeQueues are in the scenarios that they can be timed in.
var nodeQueues = []*system{graphileSystem, pgbossSystem}

// A nodeQueue is what has to be known of one.
type nodeQueue struct {
	name, table, unfinished string
	retain                  string // inserts $2 finished jobs of task $1; "" if it keeps none
}

type nodeClient struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	what nodeQueue
	url  string

	mu      sync.Mutex
	last    int
	answers map[int]chan error // by id; guarded by mu
	h       handler            // guarded by mu
	gone    error              // why there will be no more answers; guarded by mu
}

func openNode(what nodeQueue) func(context.Context, string, int) (client, error) {
	return func(ctx context.Context, url string, _ int) (client, error) {
		dir, err := nodeDir(ctx)
		if err != nil {
			return nil, err
		}
		c := &nodeClient{what: what, url: url, answers: map[int]chan error{}}
		c.cmd = exec.CommandContext(ctx, "node", "peer.mjs", what.name, url)
		c.cmd.Dir, c.cmd.Stderr = dir, os.Stderr
		c.cmd.Env = append(os.Environ(), "NO_LOG_SUCCESS=1")
		if c.in, err = c.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		out, err := c.cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := c.cmd.Start(); err != nil {
			return nil, err
		}
		go c.listen(out)
		return c, nil
	}
}

// nodeDir finds node/ from the repository's root or from bench, and installs the packages.
func nodeDir(ctx context.Context) (string, error) {
	for _, dir := range []string{"bench/node", "node"} {
		if _, err := os.Stat(filepath.Join(dir, "peer.mjs")); err == nil {
			return dir, install(ctx, dir)
		}
	}
	return "", fmt.Errorf("%w: node/peer.mjs is not here; run bench from the repository's root", errUnsupported)
}

var installing sync.Mutex

func install(ctx context.Context, dir string) error {
	installing.Lock()
	defer installing.Unlock()
	if _, err := exec.LookPath("node"); err != nil {
		return fmt.Errorf("%w: %w", errUnsupported, err)
	}
	// npm writes this file last.
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: its packages can't be installed: npm ci: %w\n%s", errUnsupported, err, out)
	}
	return nil
}

// A nodeLine is what the child says: an answer, or how many handlers have run.
type nodeLine struct {
	ID      int    `json:"id"`
	Error   string `json:"error"`
	Handled int    `json:"handled"`
}

func (c *nodeClient) listen(out io.Reader) {
	var err error
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var l nodeLine
		if err = json.Unmarshal(lines.Bytes(), &l); err != nil {
			err = fmt.Errorf("the child said %q: %w", lines.Text(), err)
			break
		}
		c.heard(l)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = errors.Join(errors.New("the child has ended"), err, lines.Err())
	for _, answer := range c.answers {
		answer <- c.gone
	}
	clear(c.answers)
}

func (c *nodeClient) heard(l nodeLine) {
	c.mu.Lock()
	h, answer := c.h, c.answers[l.ID]
	if l.ID > 0 {
		delete(c.answers, l.ID)
	}
	c.mu.Unlock()
	for range l.Handled {
		h(0)
	}
	switch {
	case answer == nil:
	case l.Error != "":
		answer <- errors.New(l.Error)
	default:
		answer <- nil
	}
}

// do sends a command and waits for its answer.
func (c *nodeClient) do(ctx context.Context, command map[string]any) error {
	answer := make(chan error, 1)
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return c.gone
	}
	c.last++
	command["id"] = c.last
	c.answers[c.last] = answer
	c.mu.Unlock()
	line, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *nodeClient) migrate(ctx context.Context) error {
	return c.do(ctx, map[string]any{"cmd": "migrate"})
}

func (c *nodeClient) tables() []string { return []string{c.what.table} }

func (c *nodeClient) unfinished() string { return c.what.unfinished }

func (c *nodeClient) insert(ctx context.Context, b batch) error {
	return c.do(ctx, map[string]any{"cmd": "insert", "n": b.n, "keys": b.keys, "other": b.unserved})
}

func (c *nodeClient) enqueue(context.Context, int64) error { return errUnsupported }

func (c *nodeClient) work(ctx context.Context, w worker, h handler) (func() error, error) {
	c.mu.Lock()
	c.h = h
	c.mu.Unlock()
	if err := c.do(ctx, map[string]any{"cmd": "work", "slots": w.slots}); err != nil {
		return nil, err
	}
	return func() error { return c.do(context.Background(), map[string]any{"cmd": "stop"}) }, nil
}

func (c *nodeClient) retain(ctx context.Context, n int) error {
	if c.what.retain == "" {
		return errUnsupported
	}
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, c.what.retain, task, n)
	return err
}

func (c *nodeClient) close() {
	_ = c.do(context.Background(), map[string]any{"cmd": "close"}) // it ends in any case
	_ = c.in.Close()
	_ = c.cmd.Wait()
}
