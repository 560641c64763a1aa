package rebase

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Task ties a task's name to the type of its payload, once, so that the place
// that enqueues and the place that handles can't disagree.

// A Task is the name of a kind of job, with its payload's type:
//
//	const SendWelcome rebase.Task[Welcome] = "send-welcome"
//
// A name has 1 to 255 bytes and no control characters.
type Task[T any] string

// Enqueue makes a job in a transaction of its own. See [Queue.Enqueue].
func (t Task[T]) Enqueue(ctx context.Context, q *Queue, payload T, opts *EnqueueOptions) (Enqueued, error) {
	return q.Enqueue(ctx, string(t), payload, opts)
}

// EnqueueTx makes a job in the caller's transaction. See [Queue.EnqueueTx].
func (t Task[T]) EnqueueTx(ctx context.Context, q *Queue, tx pgx.Tx, payload T, opts *EnqueueOptions) (Enqueued, error) {
	return q.EnqueueTx(ctx, tx, string(t), payload, opts)
}

// Item makes an entry for [Queue.EnqueueMany].
func (t Task[T]) Item(payload T, opts *EnqueueOptions) Item {
	return Item{Task: string(t), Payload: payload, Options: opts}
}

// Handle registers h for the task. It panics if the task has a handler already.
func (t Task[T]) Handle(w *Worker, h func(ctx context.Context, job *Job, payload T) error, opts *TaskOptions) {
	Handle(w, string(t), h, opts)
}

// Handle registers a handler that gets its payload decoded by encoding/json. A
// payload that T can't decode is an ordinary failure: a newer deploy may read it.
// With T = json.RawMessage the handler gets the bytes as they are stored. It
// panics if the task has a handler already.
func Handle[T any](w *Worker, task string, h func(ctx context.Context, job *Job, payload T) error, opts *TaskOptions) {
	if h == nil {
		panic(fmt.Sprintf("rebase: Handle: nil handler for task %q", task))
	}
	w.Register(task, func(ctx context.Context, job *Job) error {
		var payload T
		if err := json.Unmarshal(job.Payload, &payload); err != nil {
			return fmt.Errorf("decode payload of task %q: %w", job.Task, err)
		}
		return h(ctx, job, payload)
	}, opts)
}
