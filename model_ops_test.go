package rebase_test

// The operations of the model: each draws what it does, does it through the product, and
// does the same arithmetic on the model's jobs.

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rebasejobs/rebase"
)

// enqueue makes n jobs at once; a key that an unfinished job has is a duplicate.
func (m *model) enqueue(rt *rapid.T, n int, keyed bool) {
	items := make([]rebase.Item, n)
	for i := range items {
		items[i] = drawItem(rt, keyed)
	}
	done, err := m.q.EnqueueMany(m.t.Context(), items)
	require.NoError(rt, err)
	for i, item := range items {
		o := item.Options
		if holder := m.holder(item.Task, o.IdempotencyKey); holder != nil {
			require.Equal(rt, rebase.Enqueued{ID: holder.id, Duplicate: true}, done[i])
			continue
		}
		require.False(rt, done[i].Duplicate)
		require.NotContains(rt, m.jobs, done[i].ID)
		m.jobs[done[i].ID] = &modelJob{
			id: done[i].ID, task: item.Task, lane: o.Lane, key: o.IdempotencyKey,
			status: rebase.StatusPending, max: o.MaxAttempts, due: true,
		}
	}
}

func drawItem(rt *rapid.T, keyed bool) rebase.Item {
	task := rapid.SampledFrom(modelTasks).Draw(rt, "task")
	o := &rebase.EnqueueOptions{MaxAttempts: rapid.IntRange(1, 3).Draw(rt, "max"), Lane: rapid.SampledFrom(modelLanes[task]).Draw(rt, "lane")}
	if keyed {
		o.IdempotencyKey = rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "key")
	}
	return rebase.Item{Task: task, Options: o}
}

// holder is the unfinished job that has the key.
func (m *model) holder(task, key string) *modelJob {
	for _, j := range m.jobs {
		if key != "" && j.task == task && j.key == key && !j.finished() {
			return j
		}
	}
	return nil
}

// enqueueRollback: a job whose transaction is rolled back never was (J2).
func (m *model) enqueueRollback(rt *rapid.T) {
	tx, err := m.pool.Begin(m.t.Context())
	require.NoError(rt, err)
	item := drawItem(rt, true)
	_, err = m.q.EnqueueTx(m.t.Context(), tx, item.Task, nil, item.Options)
	require.NoError(rt, err)
	require.NoError(rt, tx.Rollback(m.t.Context()))
}

// claim takes jobs of one task: as many as were asked for and are there, none that is
// not due, none that was once reaped unless it asked for one of those.
func (m *model) claim(rt *rapid.T, ahead, reaped bool) {
	w := rapid.IntRange(0, 1).Draw(rt, "worker")
	task := rapid.SampledFrom(modelTasks).Draw(rt, "task")
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	ready, crashed := m.ready(task, 0), m.ready(task, 1)
	holds, err := m.workers[w].Claim(task, n, ahead, reaped)
	require.NoError(rt, err)
	fresh, again := 0, 0
	for _, h := range holds {
		j := m.jobs[h.Job().ID]
		require.NotNil(rt, j, "a job that nobody made")
		if j.crashes != 0 {
			again++
			require.Contains(rt, crashed, j.id)
		} else {
			fresh++
			require.Contains(rt, ready, j.id)
		}
		m.claimed(rt, w, h)
	}
	m.holding(rt, w)
	if want := 0; reaped {
		want = min(len(crashed), 1)
		require.Equal(rt, want, again)
		n--
	} else {
		require.Zero(rt, again)
	}
	require.LessOrEqual(rt, fresh, n)
	if task == "plain" { // lanes share out what was asked for, and a scan may begin anywhere
		require.Equal(rt, min(len(ready), n), fresh)
	}
}

// ready are the ids of the task's jobs that may be claimed.
func (m *model) ready(task string, minCrashes int) (ids []int64) {
	for _, j := range m.jobs {
		if j.task == task && j.status == rebase.StatusPending && j.due && min(j.crashes, 1) == minCrashes {
			ids = append(ids, j.id)
		}
	}
	return ids
}

func (m *model) claimed(rt *rapid.T, w int, h rebase.Hold) {
	j := m.jobs[h.Job().ID]
	j.status, j.fence, j.started = rebase.StatusRunning, h.Job().Fence, !h.Ahead()
	j.attempts++
	j.runs++
	require.Equal(rt, []int{j.attempts, j.max, j.runs}, []int{h.Job().Attempts, h.Job().MaxAttempts, h.Job().Runs})
	// The worker's own older attempt of the job has ended with this (Q6).
	m.holds[w] = slices.DeleteFunc(m.holds[w], func(old rebase.Hold) bool {
		again := old.Job().ID == j.id
		if again { // one claim may end several at once
			require.True(rt, old.Settled())
		}
		return again
	})
	m.holds[w] = append(m.holds[w], h)
	require.NoError(rt, m.workers[w].Record()) // the ledger's rows
}

// holding requires that the worker goes on with every attempt that the model thinks it holds: a
// claim ends those that it supersedes and no other.
func (m *model) holding(rt *rapid.T, w int) {
	for _, h := range m.holds[w] {
		require.False(rt, h.Settled(), "job %d", h.Job().ID)
	}
}

// claimIDs claims what a head look might have found.
func (m *model) claimIDs(rt *rapid.T) {
	w := rapid.IntRange(0, 1).Draw(rt, "worker")
	ids := m.anyIDs(func(*modelJob) bool { return true })
	if len(ids) == 0 {
		return
	}
	ids = ids[:rapid.IntRange(1, len(ids)).Draw(rt, "n")]
	var want []int64
	for _, id := range ids {
		if j := m.jobs[id]; j.status == rebase.StatusPending && j.due && j.crashes == 0 {
			want = append(want, id)
		}
	}
	holds, err := m.workers[w].ClaimIDs(ids)
	require.NoError(rt, err)
	var got []int64
	for _, h := range holds {
		got = append(got, h.Job().ID)
		m.claimed(rt, w, h)
	}
	m.holding(rt, w)
	require.Equal(rt, want, got)
}

// loseClaim commits a claim that its worker never hears of, and the worker gives it back
// by its token (Q12).
func (m *model) loseClaim(rt *rapid.T) {
	w := m.workers[rapid.IntRange(0, 1).Draw(rt, "worker")]
	ready := m.ready("plain", 0)
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	require.NoError(rt, w.LoseClaim("plain", n))
	var running int
	require.NoError(rt, m.pool.QueryRow(m.t.Context(), "select count(*) from rebase.jobs where status = 'running' and task = 'plain'").Scan(&running))
	require.Equal(rt, len(m.anyIDs(func(j *modelJob) bool { return j.task == "plain" && j.status == rebase.StatusRunning }))+min(n, len(ready)), running)
	require.NoError(rt, w.FindLost())
	// Which of them it were only the rows know; runs is never lowered.
	rows, err := m.pool.Query(m.t.Context(), "select id, runs from rebase.jobs where id = any($1)", ready)
	require.NoError(rt, err)
	var id int64
	var runs, taken int
	_, err = pgx.ForEachRow(rows, []any{&id, &runs}, func() error {
		if j := m.jobs[id]; runs == j.runs+1 {
			j.runs, j.fence, j.started = runs, 0, false
			taken++
		}
		return nil
	})
	require.NoError(rt, err)
	require.Equal(rt, min(n, len(ready)), taken)
}

// drawHold chooses a job of some worker that matches.
func (m *model) drawHold(rt *rapid.T, match func(rebase.Hold) bool) (int, rebase.Hold, bool) {
	w := rapid.IntRange(0, 1).Draw(rt, "worker")
	var fit []rebase.Hold
	for _, h := range m.holds[w] {
		if match(h) {
			fit = append(fit, h)
		}
	}
	if len(fit) == 0 {
		return w, rebase.Hold{}, false
	}
	return w, fit[rapid.IntRange(0, len(fit)-1).Draw(rt, "hold")], true
}

// valid says whether the attempt still holds its job.
func (m *model) valid(h rebase.Hold) bool {
	j := m.jobs[h.Job().ID]
	return j != nil && j.fence == h.Job().Fence
}

func (m *model) begin(rt *rapid.T) {
	if w, h, ok := m.drawHold(rt, rebase.Hold.Waiting); ok {
		m.workers[w].Begin(h)
	}
}

// renew is the heartbeat: it notes in the row what has begun, and drops what was lost.
func (m *model) renew(rt *rapid.T) {
	w := rapid.IntRange(0, 1).Draw(rt, "worker")
	require.NoError(rt, m.workers[w].Renew())
	require.NoError(rt, m.workers[w].Record()) // the ledger's rows
	m.holds[w] = slices.DeleteFunc(m.holds[w], func(h rebase.Hold) bool {
		j := m.jobs[h.Job().ID]
		gone := j == nil || j.fence != h.Job().Fence && j.fence != -h.Job().Fence
		if !gone && !h.Waiting() && j.status == rebase.StatusRunning {
			j.started = true
		}
		require.Equal(rt, gone, h.Settled(), "job %d after a renewal", h.Job().ID)
		return gone
	})
}

// finish ends an attempt, of whatever worth it still is: a zombie's result is dropped (J12).
// Sometimes the reply is lost, and the result is sent again (J24).
func (m *model) finish(rt *rapid.T, returned error) {
	w, h, ok := m.drawHold(rt, func(h rebase.Hold) bool { return !h.Waiting() })
	if !ok {
		return
	}
	worker, lost := m.workers[w], m.workers[w].Lost()
	if m.valid(h) {
		m.end(m.jobs[h.Job().ID], returned)
	} else if j := m.jobs[h.Job().ID]; j == nil || j.fence != -h.Job().Fence && j.status != rebase.StatusCancelled {
		lost++
	}
	worker.Finish(h, returned)
	if rapid.Bool().Draw(rt, "reply lost") {
		require.NoError(rt, worker.RecordUnheard())
	}
	require.NoError(rt, worker.Record())
	require.True(rt, h.Settled())
	require.Equal(rt, lost, worker.Lost(), "leases lost")
	m.drop(w, h)
}

func (m *model) drop(w int, h rebase.Hold) {
	m.holds[w] = slices.DeleteFunc(m.holds[w], func(x rebase.Hold) bool { return x == h })
}

// end is what an outcome does to a row.
func (m *model) end(j *modelJob, returned error) {
	j.fence, j.started = -j.fence, true
	j.crashes = 0
	setbacks := 0
	switch {
	case returned == nil:
		j.status = rebase.StatusSucceeded
		if j.attempts == 1 && j.history == 0 {
			j.history-- // none for a success at the first try
		}
	case errors.Is(returned, rebase.ErrCancelled):
		j.status = rebase.StatusCancelled
	case isSnooze(returned):
		j.status, j.due = rebase.StatusPending, false
		j.attempts--
	case isSetback(returned):
		j.status, j.due = rebase.StatusPending, false
		j.attempts--
		setbacks = j.setbacks + 1
	case isPermanent(returned) || j.attempts >= j.max:
		j.status = rebase.StatusFailed
	default:
		j.status, j.due = rebase.StatusPending, false
	}
	j.setbacks = setbacks
	j.note()
}

// anyIDs are the ids of the jobs that match, in order.
func (m *model) anyIDs(match func(*modelJob) bool) (ids []int64) {
	for id, j := range m.jobs {
		if match(j) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// drawJob chooses any job; nil if there is none.
func (m *model) drawJob(rt *rapid.T) *modelJob {
	ids := m.anyIDs(func(*modelJob) bool { return true })
	if len(ids) == 0 {
		return nil
	}
	return m.jobs[rapid.SampledFrom(ids).Draw(rt, "job")]
}

func (j *modelJob) String() string { return fmt.Sprintf("%+v", *j) }
