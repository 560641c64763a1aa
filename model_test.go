package rebase_test

// A model of the queue: a few lines of arithmetic for each thing that can happen to a job.
// Random sequences of operations run against it and, through the engine's own functions,
// against a real database. After every step each row must be what the model says, so
// nothing is lost, nothing is done twice, and no stale attempt has written anything; and
// what must hold whatever has happened is asked in SQL (see model_rules_test.go).

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// J1, J4, J7 to J9, J11, J12, J15 to J18, J20, J24: any sequence of operations by two workers, users and
// operators. REBASE_LONG=1 runs it for twenty minutes.
func TestAnySequenceOfOperationsLeavesTheRowsThatTheModelPredicts(t *testing.T) {
	t.Parallel()
	limit := 10 * time.Second
	if os.Getenv("REBASE_LONG") != "" {
		limit = 20 * time.Minute
	}
	pool := pgtest.New(t)
	end := time.Now().Add(limit)
	done, failed := 0, false
	for done == 0 || os.Getenv("REBASE_LONG") != "" && time.Now().Before(end) {
		rapid.Check(t, func(rt *rapid.T) {
			if time.Now().After(end) && done > 0 && !failed {
				return
			}
			defer func() { failed = failed || rt.Failed() }() // from then on it is being made shorter
			newModel(rt, t, pool).run()
			done++
		})
	}
	t.Logf("%d sequences", done)
}

// run does a sequence of operations.
func (m *model) run() {
	defer m.close()
	m.rt.Repeat(map[string]func(*rapid.T){
		"":               func(*rapid.T) { m.check() },
		"enqueue":        func(rt *rapid.T) { m.enqueue(rt, 1, false) },
		"enqueue keyed":  func(rt *rapid.T) { m.enqueue(rt, 1, true) },
		"enqueue batch":  func(rt *rapid.T) { m.enqueue(rt, rapid.IntRange(2, 6).Draw(rt, "n"), true) },
		"roll back":      m.enqueueRollback,
		"claim":          func(rt *rapid.T) { m.claim(rt, false, false) },
		"claim ahead":    func(rt *rapid.T) { m.claim(rt, true, false) },
		"claim reaped":   func(rt *rapid.T) { m.claim(rt, false, true) },
		"claim by id":    m.claimIDs,
		"lose a claim":   m.loseClaim,
		"begin":          m.begin,
		"renew":          m.renew,
		"succeed":        func(rt *rapid.T) { m.finish(rt, nil) },
		"fail":           func(rt *rapid.T) { m.finish(rt, errors.New("boom")) },
		"fail for good":  func(rt *rapid.T) { m.finish(rt, rebase.Permanent(errors.New("no use"))) },
		"snooze":         func(rt *rapid.T) { m.finish(rt, rebase.Snooze(time.Hour)) },
		"give up":        func(rt *rapid.T) { m.finish(rt, rebase.ErrCancelled) },
		"setback":        func(rt *rapid.T) { m.finish(rt, &pgconn.PgError{Code: "57P01"}) },
		"complete":       m.complete,
		"give back":      m.giveBack,
		"expire, reap":   m.reap,
		"cancel":         m.cancel,
		"retry":          m.retry,
		"delete":         m.delete,
		"purge":          m.purge,
		"time goes by":   m.timePasses,
		"time goes by 2": m.timePasses,
	})
	m.check()
}

// The tasks of the model; the second has lanes, which are found by a scan.
var (
	modelTasks = []string{"plain", "laned"}
	modelLanes = map[string][]string{"plain": {""}, "laned": {"", "x", "y"}}
)

// A modelJob is what a row should be.
type modelJob struct {
	id                int64
	task, lane, key   string
	status            rebase.Status
	fence             int64
	attempts, max     int
	runs              int
	crashes, setbacks int
	history           int
	started, due      bool
}

func (j *modelJob) finished() bool {
	return j.status != rebase.StatusPending && j.status != rebase.StatusRunning
}

// note adds an entry to the history.
func (j *modelJob) note() { j.history = min(j.history+1, 20) }

// A model is the state that the table should have, and two workers that change it.
type model struct {
	rt      *rapid.T
	t       *testing.T
	pool    *pgxpool.Pool
	q       *rebase.Queue
	workers []*rebase.Stepper
	holds   [][]rebase.Hold // of each worker: not settled
	jobs    map[int64]*modelJob
	lost    [][]int64 // of each worker: jobs in claims whose reply was lost
}

func newModel(rt *rapid.T, t *testing.T, pool *pgxpool.Pool) *model {
	_, err := pool.Exec(t.Context(), "truncate rebase.jobs, rebase.claims, rebase.workers restart identity")
	require.NoError(rt, err)
	q := rebase.New(pool, &rebase.Options{Logger: quiet()})
	m := &model{rt: rt, t: t, pool: pool, q: q, jobs: map[int64]*modelJob{}, holds: make([][]rebase.Hold, 2), lost: make([][]int64, 2)}
	for range m.holds {
		w := rebase.NewWorker(q, &rebase.WorkerOptions{
			Retention: rebase.Retention{Succeeded: time.Nanosecond, Failed: time.Nanosecond},
			Backoff:   func(int) time.Duration { return time.Hour },
		})
		for _, task := range modelTasks {
			w.Register(task, nothing, nil)
		}
		m.workers = append(m.workers, rebase.NewStepper(t.Context(), w))
	}
	return m
}

func (m *model) close() {
	for _, w := range m.workers {
		w.Close()
	}
}

func (m *model) exec(sql string, args ...any) {
	_, err := m.pool.Exec(m.t.Context(), sql, args...)
	require.NoError(m.rt, err)
}
