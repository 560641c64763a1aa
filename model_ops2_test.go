package rebase_test

// The rest of the model's operations: CompleteTx, leases that end, and what operators do.

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rebasejobs/rebase"
)

func isSnooze(err error) bool    { return strings.HasPrefix(err.Error(), "rebase: snoozed") }
func isPermanent(err error) bool { return err.Error() == "no use" }

func isSetback(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok
}

// complete uses CompleteTx and commits or rolls back; then the handler returns nil or an
// error (J16, Q50).
func (m *model) complete(rt *rapid.T) {
	w, h, ok := m.drawHold(rt, func(h rebase.Hold) bool { return !h.Waiting() })
	if !ok {
		return
	}
	var returned error
	if rapid.Bool().Draw(rt, "returns an error") {
		returned = errors.New("boom")
	}
	tx, err := m.pool.Begin(m.t.Context())
	require.NoError(rt, err)
	defer func() { _ = tx.Rollback(m.t.Context()) }()
	err = h.Job().CompleteTx(m.t.Context(), tx)
	if !m.valid(h) {
		require.ErrorIs(rt, err, rebase.ErrLeaseLost)
		m.finishStale(rt, w, h, returned)
		return
	}
	require.NoError(rt, err)
	j := m.jobs[h.Job().ID]
	if rapid.Bool().Draw(rt, "commit") {
		require.NoError(rt, tx.Commit(m.t.Context()))
		if j.history > 0 {
			j.note()
		}
		j.status, j.fence, j.crashes, j.setbacks, j.started = rebase.StatusSucceeded, -j.fence, 0, 0, true
		if rapid.Bool().Draw(rt, "renewed meanwhile") {
			require.NoError(rt, m.workers[w].Renew())
			m.forgetLost(w)
		}
	} else {
		require.NoError(rt, tx.Rollback(m.t.Context()))
		m.end(j, errors.New("not committed, or what the handler says"))
	}
	lost := m.workers[w].Lost()
	m.workers[w].Finish(h, returned)
	require.NoError(rt, m.workers[w].Record())
	require.True(rt, h.Settled())
	require.Equal(rt, lost, m.workers[w].Lost())
	m.drop(w, h)
}

// finishStale: an attempt that has lost its job changes nothing.
func (m *model) finishStale(rt *rapid.T, w int, h rebase.Hold, returned error) {
	m.workers[w].Finish(h, returned)
	require.NoError(rt, m.workers[w].Record())
	require.True(rt, h.Settled())
	m.drop(w, h)
}

// forgetLost drops what a renewal has settled.
func (m *model) forgetLost(w int) {
	for _, h := range m.holds[w] {
		if j := m.jobs[h.Job().ID]; !h.Settled() && !h.Waiting() && m.valid(h) && j.status == rebase.StatusRunning {
			j.started = true
		}
	}
	m.holds[w] = slices.DeleteFunc(m.holds[w], rebase.Hold.Settled)
}

// giveBack is the first step of a shutdown: what waits goes back, its attempt unused (J15).
func (m *model) giveBack(rt *rapid.T) {
	w := rapid.IntRange(0, 1).Draw(rt, "worker")
	for _, h := range m.holds[w] {
		if j := m.jobs[h.Job().ID]; h.Waiting() && m.valid(h) {
			j.status, j.fence, j.started = rebase.StatusPending, 0, false
			j.attempts--
		}
	}
	m.workers[w].Release()
	require.NoError(rt, m.workers[w].Record())
	m.holds[w] = slices.DeleteFunc(m.holds[w], rebase.Hold.Settled)
}

// reap lets the leases of one worker run out; the other, or itself, takes its jobs back
// (J8, J11). The dead one doesn't know: its attempts are zombies from here on.
func (m *model) reap(rt *rapid.T) {
	dead, by := rapid.IntRange(0, 1).Draw(rt, "dead"), rapid.IntRange(0, 1).Draw(rt, "by")
	var tokens, backed []int64
	for _, h := range m.holds[dead] {
		tokens = append(tokens, h.Job().Fence)
		j := m.jobs[h.Job().ID]
		if !m.valid(h) {
			continue
		}
		j.fence = 0
		j.note()
		j.crashes++
		switch {
		case j.started && j.attempts >= j.max:
			j.status = rebase.StatusFailed
		case j.started:
			j.status, j.due = rebase.StatusPending, false
			backed = append(backed, j.id)
		default:
			j.status = rebase.StatusPending
			j.attempts--
		}
	}
	m.exec("update rebase.jobs set locked_until = now() - interval '1 s' where fence = any($1)", tokens)
	m.exec("update rebase.claims set locked_until = now() - interval '1 s' where token = any($1)", tokens)
	require.NoError(rt, m.workers[by].Reap())
	// The backoff would end while the test is at work.
	m.exec("update rebase.jobs set run_at = run_at + interval '1 hour' where id = any($1)", backed)
}

func (m *model) cancel(rt *rapid.T) {
	j := m.drawJob(rt)
	if j == nil {
		return
	}
	err := m.q.Cancel(m.t.Context(), j.id, "why")
	switch {
	case j.status == rebase.StatusCancelled:
		require.NoError(rt, err)
	case j.finished():
		require.ErrorAs(rt, err, new(*rebase.StateError))
	default:
		require.NoError(rt, err)
		j.status, j.fence = rebase.StatusCancelled, 0
		j.note()
	}
}

func (m *model) retry(rt *rapid.T) {
	j := m.drawJob(rt)
	if j == nil {
		return
	}
	err := m.q.Retry(m.t.Context(), j.id)
	holder := m.holder(j.task, j.key)
	switch {
	case !j.finished():
		require.ErrorAs(rt, err, new(*rebase.StateError))
	case holder != nil:
		taken, ok := errors.AsType[*rebase.KeyTakenError](err)
		require.True(rt, ok, "%v", err)
		require.Equal(rt, holder.id, taken.ID)
	default:
		require.NoError(rt, err)
		j.status, j.fence, j.attempts, j.crashes, j.setbacks, j.started, j.due = rebase.StatusPending, 0, 0, 0, 0, false, true
	}
}

func (m *model) delete(rt *rapid.T) {
	j := m.drawJob(rt)
	if j == nil {
		return
	}
	err := m.q.Delete(m.t.Context(), j.id)
	if j.status == rebase.StatusRunning {
		require.ErrorAs(rt, err, new(*rebase.StateError))
		return
	}
	require.NoError(rt, err)
	delete(m.jobs, j.id)
}

// purge deletes all that has ended, and nothing else (J17).
func (m *model) purge(rt *rapid.T) {
	m.exec("update rebase.jobs set finished_at = finished_at - interval '1 s' where finished_at is not null")
	require.NoError(rt, m.workers[0].Purge())
	for id, j := range m.jobs {
		if j.finished() {
			delete(m.jobs, id)
		}
	}
}

// timePasses makes everything due that waits.
func (m *model) timePasses(*rapid.T) {
	m.exec("update rebase.jobs set run_at = least(run_at, now() - interval '1 s') where status = 'pending'")
	for _, j := range m.jobs {
		j.due = true
	}
}
