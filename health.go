package rebase

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// Health, for orchestrators and for people who are paged. Live says that the worker's own
// loops go round; a database that is away doesn't make it red, since a restart mends
// nothing. Ready says that work gets done: handlers that hang must not leave it green.

// errNotRunning is the answer before Run and after it.
var errNotRunning = errors.New("rebase: worker is not running")

// Live returns nil while Run's loops go round, whatever the database does.
func (w *Worker) Live() error {
	e := w.current()
	if e == nil {
		return errNotRunning
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := time.Since(e.beat); !e.beat.IsZero() && d > e.beatLimit() {
		return fmt.Errorf("rebase: the worker's loop has not gone round for %s", d.Round(time.Second))
	}
	return nil
}

// Ready returns nil while the worker can take jobs and gets them done. It returns an error
// when it is not running or is shutting down, when the database can't be reached, when as
// many handlers as there are slots run on after their timeouts, and when all slots are
// taken, jobs are due, and none has started for three idle looks (45 poll intervals; 90 s by
// default).
func (w *Worker) Ready(ctx context.Context) error {
	e := w.current()
	if e == nil {
		return errNotRunning
	}
	if err := w.Live(); err != nil {
		return err
	}
	stuck, err := e.readyState()
	if err != nil || !stuck {
		return err
	}
	var due bool
	err = e.q.round(ctx, statement{anyDueSQL, []any{e.names}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&due}, func() error { return nil })
		return err
	}})
	if err != nil {
		return fmt.Errorf("rebase: the database can't be asked whether jobs are due: %w", err)
	}
	if due {
		return errors.New("rebase: all slots are taken, jobs are due, and none has started for three looks")
	}
	return nil
}

// anyDueSQL relies on jobs_unfinished and jobs_reaped. A paused task's jobs are not meant to
// start.
const anyDueSQL = `
select exists (
  select
  from unnest($1::text[]) l (task)
  where not exists (select from rebase.paused z where z.task = l.task)
  and (
    exists (select from rebase.jobs p where p.task = l.task and p.finished_at is null and p.crashes = 0 and p.status = 'pending' and p.run_at <= now())
    or exists (select from rebase.jobs p where p.task = l.task and p.finished_at is null and p.crashes <> 0 and p.status = 'pending' and p.run_at <= now())))`

// readyState looks at what the engine knows itself; stuck says that the table must be asked.
func (e *engine) readyState() (stuck bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	slots := e.w.opts.Concurrency
	switch {
	case e.stopping:
		return false, errors.New("rebase: worker is shutting down")
	case e.beat.IsZero():
		return false, errors.New("rebase: worker is waiting for the database")
	case e.claimsAway.away || e.resultsAway.away:
		return false, errors.New("rebase: the database can't be reached")
	case e.abandoned >= slots:
		return false, fmt.Errorf("rebase: %d handlers run on after their attempts have timed out or lost their lease; there are %d slots", e.abandoned, slots)
	}
	quiet := time.Since(e.started)
	return e.running >= slots && quiet > 45*e.w.opts.PollInterval, nil
}

// beatLimit is the longest time that one turn of the recorder's loop can take.
func (e *engine) beatLimit() time.Duration { return 2*e.roundLimit() + 2*pingPeriod }

func (w *Worker) current() *engine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.engine
}

// Health serves GET /live and GET /ready, and everything else as /ready: 200 with "ok", or
// 503 with the reason.
func (w *Worker) Health() http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var err error
		if r.URL.Path == "/live" {
			err = w.Live()
		} else {
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			defer cancel()
			err = w.Ready(ctx)
		}
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := "ok"
		if err != nil {
			rw.WriteHeader(http.StatusServiceUnavailable)
			text = err.Error()
		}
		_, _ = rw.Write([]byte(text + "\n")) // the client may have gone
	})
}
