package rebase

// What the tests of operating reach into: the statements of Stats, to be explained; the
// hourly look for orphans; and the clocks that health goes by, so that a test need not wait
// for 90 s to pass.

import (
	"context"
	"time"
)

// OperatorSettings are those of every operator's statement.
const OperatorSettings = operatorSettingsSQL

// StatsStatements are those of Stats, with their arguments.
func StatsStatements() map[string][]any {
	return map[string][]any{
		taskStatsSQL:   {StatsCap},
		workerStatsSQL: nil,
		totalsSQL:      nil,
		healthSQL:      {StatsCap},
		horizonSQL:     nil,
	}
}

// Orphans looks at all pages for orphans.
func (s *Stepper) Orphans(ctx context.Context) error {
	for {
		if err := s.e.orphanDuty(ctx, time.Now()); err != nil || s.e.orphans == (orphanKey{}) {
			return err
		}
	}
}

// Age makes it look as if the last attempt had begun, and the loop had last gone round, so
// much earlier.
func (w *Worker) Age(started, beat time.Duration) {
	e := w.current()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started, e.beat = e.started.Add(-started), e.beat.Add(-beat)
}
