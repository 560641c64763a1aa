package rebase_test

// How a job gets into the table, and what stands there: the row, the options, the two
// transactions (the caller's and the queue's own), one job and many.

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// J1: the columns that operators read by name.
func TestJ1TheTableHasTheColumnsThatOperatorsRead(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	have := list[string](d, `select column_name::text from information_schema.columns where table_schema = 'rebase' and table_name = 'jobs'`)
	require.Subset(t, have, []string{"id", "task", "lane", "payload", "meta", "status", "run_at", "attempts", "max_attempts", "idempotency_key",
		"locked_by", "locked_until", "started_at", "last_error", "history", "finished_at", "created_at", "updated_at", "runs"})
	for column, kind := range map[string]string{"payload": "jsonb", "run_at": "timestamp with time zone", "status": "text", "id": "bigint"} {
		require.Equal(t, kind, tell[string](d, `select data_type::text from information_schema.columns
			where table_schema = 'rebase' and table_name = 'jobs' and column_name = $1`, column))
	}
}

// J1: the five states, their columns at the end, and no other state.
func TestJ1AJobIsInOneOfFiveStates(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	seen := map[string]int64{}
	for _, task := range []string{"well", "dead", "stop", "later"} {
		seen[task] = d.enqueue(task, nil).ID
	}
	require.Equal(t, rebase.StatusPending, d.status(seen["well"]))
	d.drain(map[string]rebase.Handler{
		"well": func(_ context.Context, job *rebase.Job) error {
			require.Equal(t, rebase.StatusRunning, d.status(job.ID))
			return nil
		},
		"dead": func(context.Context, *rebase.Job) error { return rebase.Permanent(errors.New("no such street")) },
		"stop": func(context.Context, *rebase.Job) error { return rebase.ErrCancelled },
	})
	for task, want := range map[string]rebase.Status{"well": rebase.StatusSucceeded, "dead": rebase.StatusFailed, "stop": rebase.StatusCancelled} {
		require.Equal(t, want, d.status(seen[task]), task)
		require.True(t, tell[bool](d, `select locked_by is not null and locked_until is null and started_at is not null
			and finished_at is not null and runs = 1 and attempts = 1 from rebase.jobs where id = $1`, seen[task]), task)
	}
	require.True(t, tell[bool](d, `select finished_at is null and locked_by is null and locked_until is null and runs = 0
		from rebase.jobs where id = $1`, seen["later"]))
	_, err := d.pool.Exec(t.Context(), `update rebase.jobs set status = 'paused' where finished_at is not null`)
	requireState(t, err, "23514")
}

// J1: the query of SPEC as it stands.
func TestJ1TheDeadLetterQueryWorksAsItStands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("fine", nil)
	for _, task := range []string{"first", "second"} {
		d.enqueue(task, nil)
		d.drain(map[string]rebase.Handler{task: func(context.Context, *rebase.Job) error { return rebase.Permanent(errors.New(task + " fell")) }})
	}
	rows, err := d.pool.Query(t.Context(), `SELECT task, attempts, last_error, updated_at FROM rebase.jobs WHERE status = 'failed' ORDER BY updated_at DESC`)
	require.NoError(t, err)
	type letter struct {
		Task      string
		Attempts  int
		LastError string
		UpdatedAt time.Time
	}
	dead, err := pgx.CollectRows(rows, pgx.RowToStructByPos[letter])
	require.NoError(t, err)
	require.Len(t, dead, 2)
	require.Equal(t, letter{"second", 1, "second fell", dead[0].UpdatedAt}, dead[0])
	require.Equal(t, "first fell", dead[1].LastError)
}

// J2: commit makes the job, rollback means that it never was; one and many.
func TestJ2AJobIsThereWhenTheCallersTransactionCommits(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		d := newDesk(t)
		tx := d.begin(pgx.TxOptions{})
		_, err := d.q.EnqueueTx(t.Context(), tx, "one", 1, nil)
		require.NoError(t, err)
		many, err := d.q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "two", Payload: 2}, {Task: "three", Payload: 3}})
		require.NoError(t, err)
		require.Len(t, many, 2)
		require.Zero(t, d.jobs(), "nobody sees it before the commit")
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, 3, d.jobs())
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
			require.Zero(t, d.jobs())
		}
	}
}

// J2: results in the order of the items, with the ids under which their rows stand, whether all
// have keys, some or none.
func TestJ2ManyResultsAreInTheOrderOfTheItems(t *testing.T) {
	t.Parallel()
	for name, keyed := range map[string]func(i int) bool{
		"all":  func(int) bool { return true },
		"some": func(i int) bool { return i%3 > 0 },
		"none": func(int) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			items := make([]rebase.Item, 1000)
			for i := range items {
				opts := &rebase.EnqueueOptions{Delay: time.Duration(i*7919%1000) * time.Hour} // no order of theirs
				if keyed(i) {
					opts.IdempotencyKey = fmt.Sprint(i * 7919 % 1000)
				}
				items[i] = rebase.Item{Task: fmt.Sprint("t", i%7), Payload: i, Options: opts}
			}
			done, err := d.q.EnqueueMany(t.Context(), items)
			require.NoError(t, err)
			ids := make([]int64, len(done))
			for i, e := range done {
				require.False(t, e.Duplicate)
				ids[i] = e.ID
			}
			require.Equal(t, 1000, tell[int](d, `select count(*) from unnest($1::bigint[]) with ordinality u (id, ord)
				join rebase.jobs j on j.id = u.id and j.payload = to_jsonb(u.ord - 1) and j.task = 't' || (u.ord - 1) % 7`, ids))
		})
	}
}

// J2: nothing to enqueue is no error.
func TestJ2NoItemsAreNoResults(t *testing.T) {
	t.Parallel()
	none, err := newDesk(t).q.EnqueueMany(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

// J2: many are all or none, and the error says which item.
func TestJ2ManyAreAllOrNone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	items := []rebase.Item{{Task: "a"}, {Task: "b"}, {Task: "c", Payload: make(chan int)}}
	_, err := d.q.EnqueueMany(t.Context(), items)
	bad, ok := errors.AsType[*rebase.PayloadError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, 2, bad.Index)
	require.Equal(t, "c", bad.Task)
	require.Equal(t, "payload", bad.Field)
	tx := d.begin(pgx.TxOptions{})
	_, err = d.q.EnqueueManyTx(t.Context(), tx, items)
	require.ErrorAs(t, err, &bad)
	require.NoError(t, tx.Commit(t.Context()))
	require.Zero(t, d.jobs())
}

// J3, J26: every option, and every default, as it stands in the row.
func TestJ3OptionsStandInTheRow(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := time.Date(2031, 5, 6, 7, 8, 9, 123456000, time.FixedZone("", 2*3600))
	set := &rebase.EnqueueOptions{RunAt: at, MaxAttempts: 7, IdempotencyKey: "k", Lane: "tenant 4", Meta: map[string]string{"trace": "é\"\\"}}
	const task rebase.Task[[]int] = "typed"
	one, err := task.Enqueue(t.Context(), d.q, []int{1, 2}, set)
	require.NoError(t, err)
	set.IdempotencyKey = "k2"
	many, err := d.q.EnqueueMany(t.Context(), []rebase.Item{task.Item([]int{1, 2}, set), {Task: "plain"}})
	require.NoError(t, err)
	tx := d.begin(pgx.TxOptions{})
	plain, err := task.EnqueueTx(t.Context(), d.q, tx, nil, nil)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	for _, id := range []int64{one.ID, many[0].ID} {
		require.True(t, tell[bool](d, `select task = 'typed' and lane = 'tenant 4' and payload = '[1, 2]' and run_at = $2 and max_attempts = 7
			and idempotency_key like 'k%' and meta = jsonb_build_object('trace', 'é"\') and status = 'pending' from rebase.jobs where id = $1`, id, at))
		job, err := d.q.Job(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, set.Meta, job.Meta)
		require.True(t, job.RunAt.Equal(at))
	}
	for _, id := range []int64{plain.ID, many[1].ID} {
		require.True(t, tell[bool](d, `select lane = '' and payload = 'null' and run_at = created_at and max_attempts = 3 and attempts = 0 and runs = 0
			and idempotency_key is null and key_hash is null and meta is null and status = 'pending' from rebase.jobs where id = $1`, id))
	}
	require.Equal(t, time.Hour, time.Duration(tell[int64](d, `select (extract(epoch from run_at - created_at) * 1000000)::bigint from rebase.jobs where id = $1`,
		d.enqueue("later", &rebase.EnqueueOptions{Delay: time.Hour}).ID))*time.Microsecond)
}

// Q62: the delay of a job counts from its statement, not from the start of its transaction.
func TestQ62DelayCountsFromTheStatementOfALongTransaction(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	tx := d.begin(pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), `select pg_sleep(0.3)`) // stands for ten minutes
	require.NoError(t, err)
	opts := &rebase.EnqueueOptions{Delay: 10 * time.Second}
	one, err := d.q.EnqueueTx(t.Context(), tx, "t", nil, opts)
	require.NoError(t, err)
	two, err := d.q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "t", Options: opts}, {Task: "t", Options: opts}})
	require.NoError(t, err)
	var three int64
	require.NoError(t, tx.QueryRow(t.Context(), `select rebase.enqueue('t', delay => '10 s')`).Scan(&three))
	for _, id := range []int64{one.ID, two[0].ID, two[1].ID, three} {
		var late bool
		require.NoError(t, tx.QueryRow(t.Context(), `select run_at >= now() + interval '10.3 s' and run_at <= clock_timestamp() + interval '10 s'
			and created_at = run_at - interval '10 s' from rebase.jobs where id = $1`, id).Scan(&late))
		require.True(t, late)
	}
}

// Q61: an id that is taken already, as after a restore, is an error and never a duplicate:
// that would lose the job.
func TestQ61AConflictOfTheIDIsAnErrorNotADuplicate(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "k"} {
		d := newDesk(t)
		ways := map[string]func() error{
			"one": func() error {
				_, err := d.q.Enqueue(t.Context(), "t", nil, &rebase.EnqueueOptions{IdempotencyKey: key})
				return err
			},
			"many": func() error {
				item := rebase.Item{Task: "t", Options: &rebase.EnqueueOptions{IdempotencyKey: key}}
				_, err := d.q.EnqueueMany(t.Context(), []rebase.Item{item, {Task: "u"}})
				return err
			},
			"sql": func() error {
				_, err := d.pool.Exec(t.Context(), `select rebase.enqueue('t', idempotency_key => $1)`, key)
				return err
			},
			"sql, many": func() error {
				_, err := d.pool.Exec(t.Context(), `select rebase.enqueue_many('[{"task": "t"}]')`)
				return err
			},
		}
		for way, enqueue := range ways {
			d.exec(`truncate rebase.jobs`)
			d.exec(`insert into rebase.jobs (id, task) select i, 'old' from generate_series(1, 10) i`)
			d.exec(`alter sequence rebase.jobs_id_seq restart 1`)
			require.Error(t, enqueue(), way)
			requireState(t, enqueue(), "23505")
			require.Equal(t, 10, d.jobs(), way)
		}
	}
}

// J23: the same verbs in a transaction of database/sql.
func TestJ23EnqueueInATransactionOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	db := stdlib.OpenDBFromPool(d.pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	opts := &rebase.EnqueueOptions{IdempotencyKey: "k", Delay: time.Hour, Lane: "l", Meta: map[string]string{"a": "b"}, MaxAttempts: 9}
	var made rebase.Enqueued
	inTx := func(commit bool) {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
		require.NoError(t, err)
		made, err = d.q.EnqueueSQL(t.Context(), tx, "t", json.RawMessage(`{"a": 9007199254740993}`), opts)
		require.NoError(t, err)
		require.False(t, made.Duplicate)
		again, err := d.q.EnqueueSQL(t.Context(), tx, "t", nil, opts)
		require.NoError(t, err)
		require.Equal(t, rebase.Enqueued{ID: made.ID, Duplicate: true}, again)
		_, err = d.q.EnqueueSQL(t.Context(), tx, "", nil, opts)
		_, ok := errors.AsType[*rebase.PayloadError](err)
		require.True(t, ok)
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
	}
	inTx(false)
	require.Zero(t, d.jobs())
	inTx(true)
	require.True(t, tell[bool](d, `select payload = '{"a": 9007199254740993}' and lane = 'l' and meta = '{"a": "b"}' and max_attempts = 9
		and run_at - created_at = interval '1 h' and idempotency_key = 'k' from rebase.jobs where id = $1`, made.ID))
}

// requireState requires an error of the server with the given SQLSTATE.
func requireState(t *testing.T, err error, code string) {
	t.Helper()
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, pgErr.Code, "%v", err)
}
