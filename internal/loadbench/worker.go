//go:build unix

// A worker process. It works until its standard input ends, that is also when the process that
// started it does, so none survives a run that was interrupted. A line of input asks for a
// report; one more comes at the end, after Run has returned, so it counts everything.

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

const (
	// workerEnv holds a worker's configuration; that it is set makes a process a worker.
	workerEnv = "REBASE_LOADBENCH_WORKER"
	// workerName is what the server knows the workers' connections by.
	workerName = "loadbench worker"
)

type workerConfig struct {
	URL     string
	Slots   int
	Handler time.Duration // of taskTimed
	Count   bool          // looks and rounds; it costs a little for each round
}

// A message is a line of a worker's output: a report, or when a probe's handler began.
type message struct {
	Report *report   `json:",omitempty"`
	Began  time.Time `json:",omitzero"`
}

// A report is what a worker has done so far.
type report struct {
	Runs   int64         // of handlers
	Looks  int64         // rounds that tried to claim
	Rounds int64         // round trips in all, but for the LISTEN connection's
	CPU    time.Duration // of the process
}

func isWorker() bool { return os.Getenv(workerEnv) != "" }

func workerMain() int {
	var c workerConfig
	err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &c)
	if err == nil {
		err = serve(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadbench: worker:", err)
		return 1
	}
	return 0
}

func serve(c workerConfig) error {
	s := &service{out: json.NewEncoder(os.Stdout)}
	config, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["application_name"] = workerName
	if c.Count {
		config.ConnConfig.Tracer = &s.meter // the worker's own connections are made like the pool's
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	w := rebase.NewWorker(rebase.New(pool, &rebase.Options{Logger: quiet}), &rebase.WorkerOptions{Concurrency: c.Slots})
	s.register(w, c.Handler)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done, input := make(chan error, 1), make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	go func() { input <- s.answer(os.Stdin) }()
	select {
	case err := <-done:
		return errors.Join(errors.New("the worker has ended by itself"), err)
	case err := <-input:
		cancel()
		if err := errors.Join(err, <-done); err != nil {
			return err
		}
	}
	return s.say(message{Report: s.report()})
}

// A service is the state of a worker process.
type service struct {
	meter meter
	runs  atomic.Int64

	mu  sync.Mutex // guards out
	out *json.Encoder
}

func (s *service) register(w *rebase.Worker, handler time.Duration) {
	w.Register(taskNoop, func(context.Context, *rebase.Job) error {
		s.runs.Add(1)
		return nil
	}, nil)
	w.Register(taskTimed, func(ctx context.Context, _ *rebase.Job) error {
		s.runs.Add(1)
		return pause(ctx, handler)
	}, nil)
	w.Register(taskProbe, func(context.Context, *rebase.Job) error {
		began := time.Now()
		s.runs.Add(1)
		return s.say(message{Began: began})
	}, nil)
}

// answer gives a report for each line until the input ends.
func (s *service) answer(input io.Reader) error {
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		if err := s.say(message{Report: s.report()}); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (s *service) say(m message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Encode(m)
}

func (s *service) report() *report {
	r := &report{Runs: s.runs.Load(), Looks: s.meter.looks.Load(), Rounds: s.meter.rounds.Load()}
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil { // it can't fail with these arguments
		r.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return r
}

// A meter counts rounds where pgx sends them. The library sends each as a batch; only the
// first of a kind go statement by statement, from a begin on.
type meter struct{ looks, rounds atomic.Int64 }

// isClaim recognises a claim by the ledger that all kinds of it write.
func isClaim(sql string) bool { return strings.Contains(sql, "insert into rebase.claims") }

func (m *meter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	m.rounds.Add(1)
	for _, q := range data.Batch.QueuedQueries {
		if isClaim(q.SQL) {
			m.looks.Add(1)
			break // it may look for jobs whose worker died in the same round
		}
	}
	return ctx
}

func (m *meter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if isClaim(data.SQL) {
		m.looks.Add(1)
	}
	if strings.HasPrefix(data.SQL, "begin") {
		m.rounds.Add(1)
	}
	return ctx
}

func (*meter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*meter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*meter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
