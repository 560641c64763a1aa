// Package intest is the door through which package rebasetest reaches what package rebase
// doesn't export. The variables are set when package rebase is initialised, and never again.
// They are of type any because this package can't import the one that imports it; the comment
// beside each is its type.
package intest

import "time"

var (
	// JobsTx reads a task's jobs as the transaction sees them, in the order of their ids.
	JobsTx any // func(ctx context.Context, tx pgx.Tx, task string) ([]*rebase.Job, error)

	// WorkTx runs one pending job of the task in the transaction: the one with the id, due or
	// not, or, if that is 0, the next that is due. The job that it returns is the row
	// afterwards, or nil if there was nothing to run.
	WorkTx any // func(ctx context.Context, tx pgx.Tx, w *rebase.Worker, task string, id int64) (*rebase.Job, intest.Outcome, error)
)

// An Outcome is what became of an attempt.
type Outcome struct {
	Event string        // a rebase.EventKind
	Delay time.Duration // until the job runs again, if it does
	Err   error         // of the handler, as events have it
}
