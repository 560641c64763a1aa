package rebase_test

// What several of the tests of claims share.

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// quiet is a logger for workers whose log nobody looks at.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// nothing is a handler that has nothing to do.
func nothing(context.Context, *rebase.Job) error { return nil }

// newWorker is a worker with one task.
func newWorker(t testing.TB, pool *pgxpool.Pool, concurrency int, task string, h rebase.Handler, opts *rebase.TaskOptions) *rebase.Worker {
	t.Helper()
	w := rebase.NewWorker(rebase.New(pool, &rebase.Options{Logger: quiet()}), &rebase.WorkerOptions{Concurrency: concurrency})
	w.Register(task, h, opts)
	return w
}
