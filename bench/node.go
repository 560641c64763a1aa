package main

// The queues of the Node.js world: each is a child process (node/peer.mjs, see child.go). Its
// packages are installed when they are first needed, in the versions of node/package-lock.json.
//
// They take part where the clock of this process can time them without the pipe being in the
// way: in drains and bulk inserts, not in single enqueues and wakes.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/jackc/pgx/v5"
)

var graphileSystem = &system{
	name:  "graphile",
	slots: 96,
	node:  "graphile",
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
	node:  "pgboss",
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

// A nodeClient makes its jobs, and by default works them, in one child.
type nodeClient struct {
	*child
	what nodeQueue
	url  string
}

func openNode(what nodeQueue) func(context.Context, string, int) (client, error) {
	return func(ctx context.Context, url string, _ int) (client, error) {
		c, err := startNode(ctx, what.name, url)
		return &nodeClient{child: c, what: what, url: url}, err
	}
}

func startNode(ctx context.Context, name, url string) (*child, error) {
	dir, err := nodeDir(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "node", "peer.mjs", name, url)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "NO_LOG_SUCCESS=1")
	return startChild(cmd)
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

func (c *nodeClient) migrate(ctx context.Context) error {
	_, err := c.do(ctx, map[string]any{"cmd": "migrate"})
	return err
}

func (c *nodeClient) tables() []string { return []string{c.what.table} }

func (c *nodeClient) unfinished() string { return c.what.unfinished }

func (c *nodeClient) insert(ctx context.Context, b batch) error {
	_, err := c.do(ctx, map[string]any{"cmd": "insert", "n": b.n, "keys": b.keys, "other": b.unserved, "bytes": b.bytes})
	return err
}

func (c *nodeClient) enqueue(context.Context, int64) error { return errUnsupported }

func (c *nodeClient) work(ctx context.Context, w worker, h handler) (func() error, error) {
	return crew{c, []*child{c.child}}.work(ctx, w, h)
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
