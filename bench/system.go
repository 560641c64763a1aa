package main

// What the benchmark asks of a job queue. Each system has a file of its own that ties it to
// these; the scenarios know nothing else of it.
//
// A client is one system on one database. Work is the same for all: the payload is a small
// JSON object, it is decoded by the system's own means, and then the handler is called.

import (
	"context"
	crand "crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// args is every job's payload.
type args struct {
	Sent int64  `json:"sent"`           // when it was enqueued, in nanoseconds; 0 if nobody asks
	Data string `json:"data,omitempty"` // ballast
}

// Kind is what River wants of a payload.
func (args) Kind() string { return "bench" }

// task is the name of every job's task, kind or type, unless something else is asked for.
const (
	task         = "bench"
	secondTask   = "bench-second"
	unservedTask = "bench-unserved"
)

// A handler gets the payload's Sent.
type handler func(sent int64)

// A client is a system on a database.
type client interface {
	migrate(ctx context.Context) error
	// tables are emptied and vacuumed before a measurement.
	tables() []string
	// unfinished is a query for whether any job has not ended.
	unfinished() string
	// insert makes jobs with one call, the quickest that the system has.
	insert(ctx context.Context, b batch) error
	// enqueue makes one job in a transaction of its own.
	enqueue(ctx context.Context, sent int64) error
	// work starts a worker. stop returns when it has ended.
	work(ctx context.Context, w worker, h handler) (stop func() error, err error)
	close()
}

// A batch is what one call inserts.
type batch struct {
	n        int
	keys     bool // each job with a key that makes it unique
	unserved bool // of a task (or in a queue) that no worker serves
	bytes    int  // mean size of the payload's ballast; 0 for none
}

// ballast is what a job's payload carries: random, or the server would compress it, and of
// random length, from half the mean to one and a half of it.
func (b batch) ballast() string {
	if b.bytes == 0 {
		return ""
	}
	raw := make([]byte, (b.bytes/2+rand.IntN(b.bytes+1))*3/4)
	_, _ = crand.Read(raw) // never fails
	return base64.StdEncoding.EncodeToString(raw)
}

// A worker is what is asked of one.
type worker struct {
	slots   int
	second  bool // serve the second task too
	workers int  // that many of them, where a child can be asked for it
	idle    bool // there will be no job: few connections, and the polling of the system's defaults
}

// idleConns is the pool of an idle worker.
const idleConns = 3

// A seconder can make a job of a second task, which a worker may serve beside the first. Where
// tasks stand in one line, whatever they are, the user's means is a second queue, and so it is
// here.
type seconder interface {
	enqueueSecond(ctx context.Context, sent int64) error
}

// A retainer can make a table with n finished jobs. Systems that delete them have none.
type retainer interface {
	retain(ctx context.Context, n int) error
}

// errUnsupported says that a system has no such thing; the measurement is left out, aloud.
var errUnsupported = errors.New("not supported by this system")

// A system is what the command line can name.
type system struct {
	name  string
	slots int // its best concurrency with quick handlers; 0 if it has no choice
	about string
	node  string // its name in node/peer.mjs, if that is where its workers run
	open  func(ctx context.Context, url string, conns int) (client, error)
}

// allSystems in the order of the tables. conns is the size of the pool for enqueues.
var allSystems = slices.Concat(
	[]*system{rebaseSystem, riverSystem, gueSystem, graphileSystem, pgbossSystem, ceilingSystem, nofloorsSystem, bareSystem, bareDeleteSystem},
	lackingSystems,
	[]*system{plainInsert, plainNotify},
)

// queues are those whose handlers run in this process, bulkQueues all queues that can be drained.
var (
	queues     = []*system{rebaseSystem, riverSystem, gueSystem}
	bulkQueues = append(queues[:3:3], nodeQueues...)
	// loopSystems have no workers, but loops that send statements.
	loopSystems = append([]*system{ceilingSystem, nofloorsSystem, bareSystem, bareDeleteSystem}, lackingSystems...)
)

func systemNames() []string {
	names := make([]string, len(allSystems))
	for i, s := range allSystems {
		names[i] = s.name
	}
	return names
}

func systemNamed(name string) (*system, error) {
	for _, s := range allSystems {
		if s.name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("unknown system %q", name)
}
