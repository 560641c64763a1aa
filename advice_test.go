package rebase_test

// What a newcomer's first mistakes are answered with: each text says what to do, or at least
// names what was called.

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// Whatever is called first on a database without the schema says how to make it.
func TestWithoutTheSchemaEachCallNamesMigrate(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	ctx := t.Context()
	tx, err := d.pool.Begin(ctx)
	require.NoError(t, err)
	_, enqueueTx := d.q.EnqueueTx(ctx, tx, "t", nil, nil)
	require.NoError(t, tx.Rollback(ctx))
	tx, err = d.pool.Begin(ctx)
	require.NoError(t, err)
	cancelTx := d.q.CancelTx(ctx, tx, 1, "")
	require.NoError(t, tx.Rollback(ctx))
	db := stdlib.OpenDBFromPool(d.pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, enqueue := d.q.Enqueue(ctx, "t", nil, nil)
	_, job := d.q.Job(ctx, 1)
	_, stats := d.q.Stats(ctx)
	for call, err := range map[string]error{
		"Enqueue": enqueue, "EnqueueTx": enqueueTx, "EnqueueSQL": enqueueSQL(ctx, d.q, db), "Job": job, "Stats": stats,
		"PauseTask": d.q.PauseTask(ctx, "t"), "FireSchedule": d.q.FireSchedule(ctx, "s"), "Cancel": d.q.Cancel(ctx, 1, ""), "CancelTx": cancelTx,
	} {
		require.ErrorContains(t, err, "the schema is missing, call Queue.Migrate: ", call)
	}
}

func enqueueSQL(ctx context.Context, q *rebase.Queue, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	_, err = q.EnqueueSQL(ctx, tx, "t", nil, nil)
	return err
}

// A role that may not migrate is told who may, and of a version only if one was begun.
func TestMigrateTellsWhoMay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	empty := deskOn(t, pgtest.Empty(t), nil)
	err := empty.as("").q.Migrate(ctx)
	denied(t, err, "Migrate")
	require.ErrorContains(t, err, "rebase: migrate: version 1: the role may not change the schema; let its owner migrate")

	err = newDesk(t).as("").q.Migrate(ctx)
	denied(t, err, "Migrate")
	require.ErrorContains(t, err, "rebase: migrate: the role can't read rebase.migrations; let the schema's owner migrate")

	require.NoError(t, newDesk(t).as("worker").q.Migrate(ctx), "who may look finds nothing to do")
	closed := newDesk(t).another(nil)
	closed.pool.Close()
	require.EqualError(t, closed.q.Migrate(ctx), "rebase: migrate: closed pool")
}

// An index is told only of a batch, and a pause is no enqueue.
func TestARefusalNamesWhatWasCalled(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := t.Context()
	_, one := d.q.Enqueue(ctx, "", nil, nil)
	_, many := d.q.EnqueueMany(ctx, []rebase.Item{{Task: "t"}, {Task: ""}})
	for want, err := range map[string]error{
		`rebase: enqueue: task "": task: empty`:         one,
		`rebase: enqueue: item 1: task "": task: empty`: many,
		`rebase: pause: task "": task: empty`:           d.q.PauseTask(ctx, ""),
		`rebase: resume: task "": task: empty`:          d.q.ResumeTask(ctx, ""),
	} {
		require.EqualError(t, err, want)
	}
}

// RunOnce looks around before its own row is in the table.
func TestRunOnceDoesNotWarnOfItsOwnTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("mine", nil)
	r.enqueue("misspelt", nil)
	r.exec("update rebase.jobs set run_at = now() - interval '1 minute'")
	require.Equal(t, 1, r.once("mine", nil, succeed))
	require.Empty(t, r.log.matching("WARN", "task=mine"))
	require.Len(t, r.log.matching("WARN", "no live worker serves", "task=misspelt"), 1)
}

// A worker that has run is not running, but takes no more tasks.
func TestRegisterAfterRunSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	_, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.PanicsWithValue(t, `rebase: Register: task "t": Run has begun; register before it`, func() { w.Register("t", succeed, nil) })
}
