//go:build unix

// Operators do by hand what may be done by hand, at random and at the worst moments:
// cancel, retry, redrive, pause and resume, look. An operation is noted when it has ended,
// with the time when it was called; what it did to a row must lie between the two.

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rebasejobs/rebase"
)

// The operations.
const (
	opCancel  = "cancel"
	opRetry   = "retry"
	opRedrive = "redrive"
	opPause   = "pause"
	opResume  = "resume"
	opLook    = "look"
)

type operators struct {
	record *record
	queue  *rebase.Queue
	jobs   *enqueuers
}

// run operates from three desks until ctx ends; all tasks are resumed then.
func (o *operators) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for i := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 2000+i))
		all.Go(func() {
			for ctx.Err() == nil {
				o.one(ctx, r, i == 0)
				_ = pause(ctx, between(r, 50*time.Millisecond, 450*time.Millisecond)) // the loop asks the context
			}
		})
	}
	all.Wait()
}

// one is one operation. Only one desk pauses tasks, or it would not be known when one is
// paused.
func (o *operators) one(ctx context.Context, r *rand.Rand, pauses bool) {
	switch n := r.IntN(100); {
	case n < 40:
		o.job(r, opCancel, func(ctx context.Context, id int64) error { return o.queue.Cancel(ctx, id, "by an operator") })
	case n < 70:
		o.job(r, opRetry, o.queue.Retry)
	case n < 78:
		o.do(opRedrive, "", func(ctx context.Context) error {
			_, err := o.queue.Redrive(ctx, rebase.Filter{Task: taskShort}, 5)
			return err
		})
	case n < 90 && pauses:
		o.pauseTask(ctx, tasks[r.IntN(len(tasks))], between(r, 500*time.Millisecond, 2500*time.Millisecond))
	default:
		o.look(r)
	}
}

// do carries out one operation and notes it. on is the task or nothing.
func (o *operators) do(what, on string, f func(context.Context) error) (done bool) {
	return o.noted(note{Kind: noteOperate, Task: what, On: on}, f)
}

func (o *operators) job(r *rand.Rand, what string, f func(context.Context, int64) error) {
	id := o.jobs.someJob(r)
	o.noted(note{Kind: noteOperate, Task: what, Job: id}, func(ctx context.Context) error { return f(ctx, id) })
}

func (o *operators) noted(n note, f func(context.Context) error) (done bool) {
	// It doesn't end with the run: an operation that is cut short has an unknown outcome.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	n.From = time.Now().UnixMicro()
	err := f(ctx)
	n.What = committed
	if err != nil {
		n.What, n.Text = unknown, err.Error()
	}
	if saysNo(err) {
		n.What = refused
	}
	o.record.note(n)
	return err == nil
}

// saysNo recognises an answer of the library's that means that nothing was done.
func saysNo(err error) bool {
	_, isState := errors.AsType[*rebase.StateError](err)
	_, isTaken := errors.AsType[*rebase.KeyTakenError](err)
	return isState || isTaken || errors.Is(err, rebase.ErrNotFound)
}

// pauseTask pauses a task for a time. It resumes until that is confirmed.
func (o *operators) pauseTask(ctx context.Context, task string, d time.Duration) {
	o.do(opPause, task, func(ctx context.Context) error { return o.queue.PauseTask(ctx, task) })
	_ = pause(ctx, d) // if it was cut short, then it was
	for !o.do(opResume, task, func(ctx context.Context) error { return o.queue.ResumeTask(ctx, task) }) {
		_ = pause(context.Background(), 100*time.Millisecond) // always its full time
	}
}

// look reads, in every way that there is. What it reads is not checked here; that it does
// no harm is.
func (o *operators) look(r *rand.Rand) {
	o.do(opLook, "", func(ctx context.Context) error {
		if _, err := o.queue.Stats(ctx); err != nil {
			return err
		}
		if _, err := o.queue.Explain(ctx, o.jobs.someJob(r)); err != nil {
			return err
		}
		for _, err := range o.queue.Jobs(ctx, rebase.Filter{Limit: 50}) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}
