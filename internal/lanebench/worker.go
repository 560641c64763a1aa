//go:build unix

// A worker process of part limit. It runs until its standard input ends, that is also when the
// process that started it does, and then prints what it ran.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/rebasejobs/rebase"
)

// workerEnv holds a worker's configuration; that it is set makes a process a worker.
const workerEnv = "REBASE_LANEBENCH_WORKER"

type workerConfig struct {
	URL     string
	Slots   int
	Handler time.Duration
}

func isWorker() bool { return os.Getenv(workerEnv) != "" }

func workerMain() int {
	var c workerConfig
	err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &c)
	if err == nil {
		err = serve(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanebench: worker:", err)
		return 1
	}
	return 0
}

func serve(c workerConfig) error {
	ctx := context.Background()
	b := &bench{url: c.URL}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.pool.Close()
	var mu sync.Mutex
	runs := []run{}
	stop := b.work(ctx, c.Slots, func(ctx context.Context, job *rebase.Job) error {
		r := run{Lane: job.Lane, Began: time.Now()}
		err := pause(ctx, c.Handler)
		r.Ended = time.Now()
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, r)
		return err
	}, &rebase.TaskOptions{LaneConcurrency: laneLimit})
	_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that matters
	if err := stop(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(runs)
}
