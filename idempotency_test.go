package rebase_test

// At most one unfinished job for each task and key, and a duplicate is an answer, never an
// error. Whoever waits for a rival is seen waiting, by SQL, before the rival ends.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

func keyed(key string) *rebase.EnqueueOptions { return &rebase.EnqueueOptions{IdempotencyKey: key} }

// J4: pending and running jobs keep their key, finished ones give it back; the key of one
// task never swallows a job of another.
func TestJ4AKeyIsTakenUntilItsJobHasEnded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	first := d.enqueue("t", keyed("k"))
	require.False(t, first.Duplicate)
	duplicate := rebase.Enqueued{ID: first.ID, Duplicate: true}
	require.Equal(t, duplicate, d.enqueue("t", keyed("k")), "pending")
	d.claimed(first.ID)
	require.Equal(t, duplicate, d.enqueue("t", keyed("k")), "running")
	require.False(t, d.enqueue("u", keyed("k")).Duplicate, "another task")
	require.False(t, d.enqueue("t", keyed("K")).Duplicate, "another key")
	require.False(t, d.enqueue("t", nil).Duplicate, "no key")
	last := first.ID
	for _, end := range []rebase.Status{rebase.StatusSucceeded, rebase.StatusFailed, rebase.StatusCancelled} {
		d.ended(last, end)
		next := d.enqueue("t", keyed("k"))
		require.False(t, next.Duplicate, end)
		require.NotEqual(t, last, next.ID)
		last = next.ID
	}
}

// J4: a double click, a retried request and two instances become one job. Also where the
// role's transactions are REPEATABLE READ or SERIALIZABLE by default.
func TestJ4OneOfManyConcurrentEnqueuesMakesTheJob(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewWith(t, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
			})
			d := deskOn(t, pool, nil)
			require.Equal(t, isolation, tell[string](d, `show transaction_isolation`))
			const rounds, rivals = 10, 8
			ids := make([][rivals]int64, rounds)
			var made atomic.Int32
			var wg sync.WaitGroup
			for rival := range rivals {
				wg.Go(func() {
					for round := range rounds {
						key := keyed(fmt.Sprint("k", round))
						items := []rebase.Item{{Task: "t", Options: key}, {Task: "u", Options: key}}[:1+rival%2]
						done, err := d.q.EnqueueMany(t.Context(), items)
						if err != nil {
							t.Errorf("round %d: %v", round, err)
							return
						}
						if !done[0].Duplicate {
							made.Add(1)
						}
						ids[round][rival] = done[0].ID
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, rounds, made.Load())
			require.Equal(t, 2*rounds, d.jobs())
			for _, round := range ids {
				for _, id := range round {
					require.Equal(t, round[0], id, "all are told the same job")
					require.NotZero(t, id)
				}
			}
		})
	}
}

// Q21, J4: who waits for a rival with the same key gets the job when the rival rolls back,
// and the rival's id when it commits.
func TestQ21TheWaitingOneGetsTheJobIfTheRivalRollsBack(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{false, true} {
		for n := 1; n <= 2; n++ { // one item, and many
			d := newDesk(t)
			items := []rebase.Item{{Task: "t", Options: keyed("k")}, {Task: "other"}}[:n]
			rival := d.begin(pgx.TxOptions{})
			theirs, err := d.q.EnqueueTx(t.Context(), rival, "t", "rival", keyed("k"))
			require.NoError(t, err)
			result := make(chan rebase.Enqueued, 1)
			var failed error
			go func() {
				defer close(result)
				done, err := d.q.EnqueueMany(t.Context(), items)
				if failed = err; err == nil {
					result <- done[0]
				}
			}()
			d.waits(1)
			if commit {
				require.NoError(t, rival.Commit(t.Context()))
			} else {
				require.NoError(t, rival.Rollback(t.Context()))
			}
			mine, ok := <-result
			require.True(t, ok, "%v", failed)
			if commit {
				require.Equal(t, rebase.Enqueued{ID: theirs.ID, Duplicate: true}, mine)
				continue
			}
			require.False(t, mine.Duplicate)
			require.True(t, tell[bool](d, `select payload = 'null' from rebase.jobs where id = $1`, mine.ID))
		}
	}
}

// afterInsert does something once, when the first insert of jobs has been answered.
type afterInsert struct {
	do   func(context.Context)
	once sync.Once
}

type insertKey struct{}

func (a *afterInsert) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, insertKey{}, strings.Contains(data.SQL, "insert into rebase.jobs"))
}

func (a *afterInsert) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(insertKey{}) == true {
		a.once.Do(func() { a.do(ctx) })
	}
}

// Q22: the job that has the key ends between the insert and the look for its id.
func TestQ22AJobThatEndsBeforeTheLookIsAnAnswerWithoutID(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ {
		d := newDesk(t)
		held := d.enqueue("t", keyed("k"))
		hook := &afterInsert{do: func(ctx context.Context) {
			_, err := d.pool.Exec(ctx, `update rebase.jobs set status = 'succeeded', finished_at = now() where id = $1`, held.ID)
			require.NoError(t, err)
		}}
		cfg := d.pool.Config()
		cfg.ConnConfig.Tracer = hook
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		items := []rebase.Item{{Task: "t", Options: keyed("k")}, {Task: "other"}}[:n]
		done, err := deskOn(t, pool, nil).q.EnqueueMany(t.Context(), items)
		require.NoError(t, err)
		require.Equal(t, rebase.Enqueued{Duplicate: true}, done[0])
		require.Equal(t, rebase.StatusSucceeded, d.status(held.ID), "the hook ran")
	}
}

// Q23: the same key in one batch is one job and as many results.
func TestQ23TheSameKeyInOneBatchIsOneJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	old := d.enqueue("t", keyed("old"))
	done, err := d.q.EnqueueMany(t.Context(), []rebase.Item{
		{Task: "t", Payload: 0, Options: keyed("k")}, {Task: "u", Payload: 1, Options: keyed("k")}, {Task: "t", Payload: 2, Options: keyed("k")},
		{Task: "t", Payload: 3, Options: keyed("old")}, {Task: "t", Payload: 4}, {Task: "t", Payload: 5, Options: keyed("k")},
	})
	require.NoError(t, err)
	require.Equal(t, []bool{false, false, true, true, false, true}, []bool{done[0].Duplicate, done[1].Duplicate, done[2].Duplicate,
		done[3].Duplicate, done[4].Duplicate, done[5].Duplicate})
	require.Equal(t, done[0].ID, done[2].ID)
	require.Equal(t, done[0].ID, done[5].ID)
	require.Equal(t, old.ID, done[3].ID)
	require.Equal(t, 4, d.jobs())
	require.Equal(t, 0, tell[int](d, `select payload::int from rebase.jobs where id = $1`, done[0].ID), "the first of them")
}

// Q24: a duplicate in a READ COMMITTED transaction doesn't abort it.
func TestQ24ADuplicateLeavesTheCallersTransactionAlive(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	held := d.enqueue("t", keyed("k"))
	d.exec(`create table orders (id int)`)
	tx := d.begin(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	one, err := d.q.EnqueueTx(t.Context(), tx, "t", nil, keyed("k"))
	require.NoError(t, err)
	require.Equal(t, rebase.Enqueued{ID: held.ID, Duplicate: true}, one)
	many, err := d.q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "t", Options: keyed("k")}, {Task: "t", Options: keyed("new")}})
	require.NoError(t, err)
	require.Equal(t, one, many[0])
	_, err = tx.Exec(t.Context(), `insert into orders values (1)`)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 1, tell[int](d, `select count(*) from orders`))
	require.Equal(t, 2, d.jobs())
}

// Q25: keys of any length and of any bytes work, or are refused before any SQL.
func TestQ25KeysOfAnyLengthWorkOrAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, size := range []int{3 << 10, 1 << 20} {
		random := make([]byte, size)
		_, _ = rand.Read(random) // never fails
		text := hex.EncodeToString(random[:size/2])
		tx := d.begin(pgx.TxOptions{})
		made, err := d.q.EnqueueTx(t.Context(), tx, "t", nil, keyed(text))
		require.NoError(t, err)
		again, err := d.q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "t", Options: keyed(text)}, {Task: "t", Options: keyed(text[1:])}})
		require.NoError(t, err)
		require.Equal(t, rebase.Enqueued{ID: made.ID, Duplicate: true}, again[0])
		require.False(t, again[1].Duplicate, "one character less is another key")
		var same *int64
		require.NoError(t, tx.QueryRow(t.Context(), `select rebase.enqueue('t', idempotency_key => $1)`, text).Scan(&same))
		require.Nil(t, same, "SQL and the library hash alike")
		for _, bad := range []string{string(random), text + "\x00", strings.Repeat("x", 1<<20+1)} {
			_, err = d.q.EnqueueTx(t.Context(), tx, "t", nil, keyed(bad))
			refused, ok := errors.AsType[*rebase.PayloadError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, "idempotency_key", refused.Field)
		}
		require.NoError(t, tx.Commit(t.Context()))
		require.True(t, tell[bool](d, `select idempotency_key = $2 and octet_length(key_hash) = 16 from rebase.jobs where id = $1`, made.ID, text))
	}
}

// Q27: overlapping keys in opposite orders from many transactions, from Go and from SQL.
func TestQ27OverlappingKeysInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const writers, batches, keys = 8, 4, 600
	write := func(writer, batch int) error {
		return pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
			if writer%4 == 0 {
				_, err := tx.Exec(t.Context(), `select rebase.enqueue_many(jsonb_agg(jsonb_build_object(
					'task', 't' || i % 3, 'idempotency_key', $1 || '/' || i) order by random())) from generate_series(0, $2::int - 1) i`, fmt.Sprint(batch), keys)
				return err
			}
			var items []rebase.Item
			for i := range keys {
				items = append(items, rebase.Item{Task: fmt.Sprint("t", i%3), Options: keyed(fmt.Sprint(batch, "/", i))})
			}
			if writer%2 == 0 {
				slices.Reverse(items)
			}
			_, err := d.q.EnqueueManyTx(t.Context(), tx, items)
			return err
		})
	}
	for batch := range batches {
		start := make(chan struct{}) // all at once
		var wg sync.WaitGroup
		for writer := range writers {
			wg.Go(func() {
				<-start
				if err := write(writer, batch); err != nil {
					t.Errorf("writer %d: %v", writer, err)
				}
			})
		}
		close(start)
		wg.Wait()
	}
	require.Equal(t, batches*keys, d.jobs())
}

// Q28: a transaction that holds a duplicate open never stands in the way of the running
// job's own end.
func TestQ28ADuplicateHeldOpenDoesNotBlockTheRunningJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("t", keyed("k"))
	var tx pgx.Tx
	n := d.drain(map[string]rebase.Handler{"t": func(_ context.Context, job *rebase.Job) error {
		tx = d.begin(pgx.TxOptions{})
		done, err := d.q.EnqueueTx(t.Context(), tx, "t", nil, keyed("k"))
		require.NoError(t, err)
		require.Equal(t, rebase.Enqueued{ID: job.ID, Duplicate: true}, done)
		return nil
	}})
	require.Equal(t, 1, n)
	require.Equal(t, 1, tell[int](d, `select count(*) from rebase.jobs where status = 'succeeded'`))
	require.NoError(t, tx.Commit(t.Context()))
}

// J4: above READ COMMITTED a duplicate newer than the snapshot is the 40001 that callers
// retry there; one that the snapshot knows is a duplicate there too.
func TestJ4AboveReadCommittedANewerDuplicateIsASerialisationFailure(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for n := 1; n <= 2; n++ {
			d := newDesk(t)
			known := d.enqueue("t", keyed("known"))
			tx := d.begin(pgx.TxOptions{IsoLevel: level})
			_, err := tx.Exec(t.Context(), `select count(*) from rebase.jobs`) // takes the snapshot
			require.NoError(t, err)
			newer := d.enqueue("t", keyed("newer"))
			items := func(key string) []rebase.Item {
				return []rebase.Item{{Task: "t", Options: keyed(key)}, {Task: "u"}}[:n]
			}
			done, err := d.q.EnqueueManyTx(t.Context(), tx, items("known"))
			require.NoError(t, err)
			require.Equal(t, rebase.Enqueued{ID: known.ID, Duplicate: true}, done[0])
			_, err = d.q.EnqueueManyTx(t.Context(), tx, items("newer"))
			requireState(t, err, "40001")
			require.NoError(t, tx.Rollback(t.Context()))
			again := d.begin(pgx.TxOptions{IsoLevel: level})
			done, err = d.q.EnqueueManyTx(t.Context(), again, items("newer"))
			require.NoError(t, err, "the retry")
			require.Equal(t, rebase.Enqueued{ID: newer.ID, Duplicate: true}, done[0])
			require.NoError(t, again.Commit(t.Context()))
		}
	}
}
