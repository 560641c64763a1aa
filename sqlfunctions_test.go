package rebase_test

// Enqueueing from SQL (J23), and the gate that every enqueue asks (N1). A session that
// listens and holds the shared lock of a task's bucket stands for a worker that sleeps.

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

func itoa(id int64) string { return strconv.FormatInt(id, 10) }

// listen opens a connection that listens, and is asleep for the given tasks.
func (d *desk) listen(asleep ...string) *pgx.Conn {
	d.t.Helper()
	conn, err := pgx.Connect(d.t.Context(), pgtest.URL(d.t, d.pool))
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(d.t.Context(), `listen rebase_jobs`)
	require.NoError(d.t, err)
	_, err = conn.Exec(d.t.Context(), `select pg_advisory_lock_shared(7236, hashtext(task) & 15) from unnest($1::text[]) task`, asleep)
	require.NoError(d.t, err)
	return conn
}

// heard returns what the connection has been told so far: notifications come in the order
// of the commits, so a mark sent now comes last.
func (d *desk) heard(conn *pgx.Conn) (all []string) {
	d.t.Helper()
	mark := fmt.Sprint("mark ", mathrand.Uint64())
	d.exec(`select pg_notify('rebase_jobs', $1)`, mark)
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(ctx)
		require.NoError(d.t, err)
		if n.Payload == mark {
			return all
		}
		all = append(all, n.Payload)
	}
}

// advisoryLocks counts the advisory locks that any session of this database holds.
func (d *desk) advisoryLocks() int {
	d.t.Helper()
	return tell[int](d, `select count(*) from pg_locks where locktype = 'advisory'
		and database = (select oid from pg_database where datname = current_database())`)
}

// everyWay makes one job of the task in every way there is.
func (d *desk) everyWay(task string) map[string]func() {
	tx := func(f func(pgx.Tx) error) {
		d.t.Helper()
		require.NoError(d.t, pgx.BeginFunc(d.t.Context(), d.pool, f))
	}
	return map[string]func(){
		"pool": func() { d.enqueue(task, nil) },
		"tx": func() {
			tx(func(tx pgx.Tx) error { _, err := d.q.EnqueueTx(d.t.Context(), tx, task, nil, nil); return err })
		},
		"many": func() {
			_, err := d.q.EnqueueMany(d.t.Context(), []rebase.Item{{Task: task}, {Task: task}})
			require.NoError(d.t, err)
		},
		"sql": func() { d.exec(`select rebase.enqueue($1)`, task) },
		"sql, many": func() {
			d.exec(`select rebase.enqueue_many(jsonb_build_array(jsonb_build_object('task', $1::text)))`, task)
		},
	}
}

// N1: whoever enqueues notifies if a worker of the task sleeps, and otherwise not.
func TestN1AnEnqueueNotifiesOnlyIfAWorkerSleeps(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	// A task of another bucket.
	other := tell[string](d, `select 'u' || i from generate_series(1, 1000) i where hashtext('u' || i) & 15 <> hashtext('t') & 15 limit 1`)
	awake, asleep := d.listen(), d.listen()
	for way, enqueue := range d.everyWay("t") {
		enqueue()
		require.Empty(t, d.heard(awake), way)
	}
	_, err := asleep.Exec(t.Context(), `select pg_advisory_lock_shared(7236, hashtext('t') & 15)`)
	require.NoError(t, err)
	for way, enqueue := range d.everyWay("t") {
		enqueue()
		require.Equal(t, []string{"t:t"}, d.heard(awake), way)
	}
	for way, enqueue := range d.everyWay(other) {
		enqueue()
		require.Empty(t, d.heard(awake), way)
	}
	require.Equal(t, 1, d.advisoryLocks(), "the sleeper's")
}

// N1: a rolled-back enqueue and a duplicate notify nobody; a batch tells each task once.
func TestN1OneNotificationForEachTaskThatGotAJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	conn := d.listen("a", "b", "c", "k")
	items := []rebase.Item{{Task: "a"}, {Task: "b"}, {Task: "a"}, {Task: "c"}, {Task: "b"}, {Task: "k", Options: keyed("k")}}
	d.enqueue("k", keyed("k"))
	require.Equal(t, []string{"t:k"}, d.heard(conn))
	_, err := d.q.EnqueueMany(t.Context(), items)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"t:a", "t:b", "t:c"}, d.heard(conn))
	d.exec(`select rebase.enqueue_many('[{"task": "a"}, {"task": "a"}, {"task": "b"}, {"task": "k", "idempotency_key": "k"}]')`)
	require.ElementsMatch(t, []string{"t:a", "t:b"}, d.heard(conn))
	d.enqueue("k", keyed("k"))
	d.exec(`select rebase.enqueue('k', idempotency_key => 'k')`)
	tx := d.begin(pgx.TxOptions{})
	_, err = d.q.EnqueueManyTx(t.Context(), tx, items)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Empty(t, d.heard(conn))
}

// N1: Always asks nobody, Never tells nobody.
func TestN1AlwaysAndNeverAskNobody(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	conn := d.listen()
	enqueue := func(mode rebase.NotifyMode) []string {
		q := deskOn(t, d.pool, &rebase.Options{Notify: mode}).q
		_, err := q.Enqueue(t.Context(), "t", nil, nil)
		require.NoError(t, err)
		_, err = q.EnqueueMany(t.Context(), []rebase.Item{{Task: "a"}, {Task: "b"}, {Task: "a"}})
		require.NoError(t, err)
		return slices.Sorted(slices.Values(d.heard(conn)))
	}
	require.Equal(t, []string{"t:a", "t:b", "t:t"}, enqueue(rebase.Always))
	require.Empty(t, enqueue(rebase.Gated))
	_, err := conn.Exec(t.Context(), `select pg_advisory_lock_shared(7236, i) from generate_series(0, 15) i`)
	require.NoError(t, err)
	require.Empty(t, enqueue(rebase.Never))
	require.Equal(t, []string{"t:a", "t:b", "t:t"}, enqueue(rebase.Gated))
}

// N1, Q63: Retry, Redrive and ResumeTask make jobs pending too, and ask as well.
func TestQ63RetryRedriveAndResumeWakeASleeper(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	conn := d.listen("t")
	id := d.enqueue("t", nil).ID
	d.ended(id, rebase.StatusFailed)
	require.Equal(t, []string{"t:t"}, d.heard(conn))
	require.NoError(t, d.q.Retry(t.Context(), id))
	require.Equal(t, []string{"t:t"}, d.heard(conn), "retry")
	require.Error(t, d.q.Retry(t.Context(), id))
	require.Empty(t, d.heard(conn), "a retry that did nothing")
	d.ended(id, rebase.StatusFailed)
	_, err := d.q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"t:t"}, d.heard(conn), "redrive")
	require.NoError(t, d.q.PauseTask(t.Context(), "t"))
	require.NoError(t, d.q.ResumeTask(t.Context(), "t"))
	require.Equal(t, []string{"t:t"}, d.heard(conn), "resume")
}

// J23: rebase.enqueue takes what Enqueue takes, and answers null for a duplicate.
func TestJ23EnqueueInSQL(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := tell[int64](d, `select rebase.enqueue('t', '{"a": [1, null]}', delay => '1 h', max_attempts => 5, idempotency_key => 'k', lane => 'l', meta => '{"m": "n"}')`)
	require.True(t, tell[bool](d, `select payload = '{"a": [1, null]}' and run_at - created_at = interval '1 h' and max_attempts = 5 and lane = 'l'
		and idempotency_key = 'k' and meta = '{"m": "n"}' and status = 'pending' from rebase.jobs where id = $1`, id))
	require.Nil(t, tell[*int64](d, `select rebase.enqueue('t', idempotency_key => 'k')`))
	require.True(t, d.enqueue("t", keyed("k")).Duplicate, "both sides mean the same key")
	d.enqueue("t", keyed("ключ"))
	require.Nil(t, tell[*int64](d, `select rebase.enqueue('t', idempotency_key => 'ключ')`))
	plain := tell[int64](d, `select rebase.enqueue('t')`)
	nulls := tell[int64](d, `select rebase.enqueue('t', null, null, null, null, null, null, null)`)
	empty := tell[int64](d, `select rebase.enqueue('t', idempotency_key => '')`)
	at := tell[int64](d, `select rebase.enqueue('t', run_at => '2031-01-01 00:00Z')`)
	require.True(t, tell[bool](d, `select run_at = '2031-01-01 00:00Z' from rebase.jobs where id = $1`, at))
	require.Equal(t, 3, tell[int](d, `select count(*) from rebase.jobs where id = any($1) and payload = 'null' and run_at = created_at
		and max_attempts = 3 and lane = '' and idempotency_key is null and key_hash is null and meta is null`, []int64{plain, nulls, empty}))
	_, err := d.pool.Exec(t.Context(), `select rebase.enqueue('t', run_at => 'infinity')`)
	requireState(t, err, "23514")
	require.ErrorContains(t, err, "jobs_run_at")
	_, err = d.pool.Exec(t.Context(), `select rebase.enqueue(null)`)
	requireState(t, err, "23502")
}

// J23: rebase.enqueue_many answers in the order of its items, null for duplicates.
func TestJ23EnqueueManyInSQL(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ids := list[*int64](d, `select id from rebase.enqueue_many('[
		{"task": "b", "payload": 1, "idempotency_key": "k"}, {"task": "a", "payload": [2], "delay": "1 h", "lane": "l", "max_attempts": 9, "meta": {"m": "n"}},
		{"task": "b", "payload": 3, "idempotency_key": "k"}, {"task": "a", "run_at": "2031-01-01T00:00:00Z"}]') order by ord`)
	require.Len(t, ids, 4)
	require.Nil(t, ids[2])
	require.Equal(t, []int64{*ids[0], *ids[1], *ids[3]}, list[int64](d, `select id from rebase.jobs order by payload <> '1', payload <> '[2]'`))
	require.True(t, tell[bool](d, `select run_at - created_at = interval '1 h' and lane = 'l' and max_attempts = 9 and meta = '{"m": "n"}'
		and payload = '[2]' from rebase.jobs where id = $1`, *ids[1]))
	require.True(t, tell[bool](d, `select run_at = '2031-01-01 00:00Z' and payload = 'null' and max_attempts = 3 from rebase.jobs where id = $1`, *ids[3]))
	require.Empty(t, list[*int64](d, `select id from rebase.enqueue_many('[]')`))
}

// J23: a role that may call the functions needs no right to the tables; others may not.
func TestJ23ARoleMayBeAllowedToEnqueueAndNothingElse(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	role := fmt.Sprintf("rebase_test_role_%d", mathrand.Uint32())
	d.exec(`create role ` + role)
	t.Cleanup(func() {
		_, _ = d.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role, pgx.QueryExecModeSimpleProtocol)
	})
	as := func(sql string) error {
		return pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `set local role `+role+`; `+sql, pgx.QueryExecModeSimpleProtocol)
			return err
		})
	}
	d.exec(`grant usage on schema rebase to ` + role)
	requireState(t, as(`select rebase.enqueue('t')`), "42501")
	requireState(t, as(`select rebase.enqueue_many('[{"task": "t"}]')`), "42501")
	d.exec(`grant execute on function rebase.enqueue, rebase.enqueue_many to ` + role)
	require.NoError(t, as(`select rebase.enqueue('t')`))
	require.NoError(t, as(`select rebase.enqueue_many('[{"task": "t"}]')`))
	requireState(t, as(`select * from rebase.jobs`), "42501")
	require.Equal(t, 2, d.jobs())
}

// J23, Q64: in a trigger, with savepoints and failing statements: one job for each row that
// stays, and no advisory lock left.
func TestQ64ATriggerThatEnqueuesLeavesNoLockBehind(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`create table orders (id int primary key, total int check (total > 0))`)
	d.exec(`create function ordered() returns trigger language plpgsql as $$ begin
		perform rebase.enqueue('ordered', jsonb_build_object('id', new.id), idempotency_key => new.id::text); return new; end $$`)
	d.exec(`create trigger ordered after insert on orders for each row execute function ordered()`)
	tx := d.begin(pgx.TxOptions{})
	must := func(sql string) {
		t.Helper()
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	must(`insert into orders values (1, 10), (2, 20)`)
	must(`savepoint one`)
	must(`insert into orders values (3, 30)`)
	must(`rollback to one`)
	_, err := tx.Exec(t.Context(), `insert into orders values (4, 40), (1, 10)`) // the second row fails after the first one's trigger, or before
	requireState(t, err, "23505")
	must(`rollback to one`)
	_, err = tx.Exec(t.Context(), `select rebase.enqueue('ordered'), 1 / (total - 10) from orders`)
	requireState(t, err, "22012")
	must(`rollback to one`)
	require.Zero(t, d.advisoryLocks())
	must(`insert into orders values (5, 50)`)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, []int{1, 2, 5}, list[int](d, `select (payload -> 'id')::int from rebase.jobs order by 1`))
	require.Zero(t, d.advisoryLocks())
}

// Q64: statements that are cancelled at any moment leave no advisory lock behind.
func TestQ64CancelledStatementsLeaveNoLockBehind(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	held := d.begin(pgx.TxOptions{}) // some of them wait for this one's key
	_, err := d.q.EnqueueTx(t.Context(), held, "t", nil, keyed("held"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 40 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(mathrand.N(4000))*time.Microsecond)
				items := []rebase.Item{{Task: "t"}, {Task: "u"}, {Task: "t", Options: keyed("held")}}[:1+i%3]
				_ = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { // fails or not, whenever its time is up
					_, err := d.q.EnqueueManyTx(ctx, tx, items)
					return err
				})
				cancel()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return d.advisoryLocks() == 0 }, patience, 10*time.Millisecond)
	conn := d.begin(pgx.TxOptions{}) // statement_timeout cancels on the server, and the session lives
	for range 20 {
		_, err := conn.Exec(t.Context(), `savepoint s; set local statement_timeout = 5;
			select rebase.enqueue('t') from generate_series(1, 100000)`, pgx.QueryExecModeSimpleProtocol)
		requireState(t, err, "57014")
		require.Zero(t, d.advisoryLocks())
		_, err = conn.Exec(t.Context(), `rollback to s`)
		require.NoError(t, err)
	}
}

// N1: an enqueue that never notifies can be part of a two-phase commit, and a session that
// prepares holds no lock of ours.
func TestN1NeverAllowsTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	if tell[string](d, `show max_prepared_transactions`) == "0" {
		t.Skip("the server allows no prepared transactions")
	}
	q := deskOn(t, d.pool, &rebase.Options{Notify: rebase.Never}).q
	d.listen("t") // somebody sleeps
	conn, err := d.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "t"}, {Task: "t", Options: keyed("k")}})
	require.NoError(t, err)
	name := fmt.Sprintf("rebase_test_%d", mathrand.Uint64())
	_, err = tx.Exec(t.Context(), `prepare transaction '`+name+`'`)
	require.NoError(t, err)
	require.Zero(t, d.jobs())
	d.exec(`commit prepared '` + name + `'`)
	require.Equal(t, 2, d.jobs())
}

// J23, J24: what a worker could not read again is refused, by either function: a row like that would
// stop everybody's claims.
func TestJ23EnqueueInSQLRefusesWhatNobodyCouldRead(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for bad, state := range map[string]string{
		`payload => ('[' || repeat('1e131071,', 9000) || '1]')::jsonb`: "54000",
		`payload => ('[' || repeat('1e131071,', 8) || '1]')::jsonb`:    "54000",
		`payload => to_jsonb(repeat('x', 1048576))`:                    "54000",
		`meta => '[1]'`:      "22023",
		`meta => '"text"'`:   "22023",
		`meta => 'null'`:     "22023",
		`meta => '{"a": 1}'`: "22023",
		`meta => jsonb_build_object('a', repeat('x', 16384))`: "54000",
	} {
		_, err := d.pool.Exec(t.Context(), `select rebase.enqueue('t', `+bad+`)`)
		requireState(t, err, state)
		name, value, _ := strings.Cut(bad, " => ")
		_, err = d.pool.Exec(t.Context(), `select rebase.enqueue_many(jsonb_build_array(jsonb_build_object('task', 't', '`+name+`', `+value+`::jsonb)))`)
		if bad != `meta => 'null'` { // as a field of an object it is no meta
			requireState(t, err, state)
		}
	}
	long := strings.Repeat("x", 256)
	for _, bad := range []struct {
		task, lane  string
		maxAttempts int
		want        string
	}{
		{"", "", 1, "task: it has 0 bytes, and must have 1 to 255"},
		{long, "", 1, "task: it has 256 bytes, and must have 1 to 255"},
		{strings.Repeat("ä", 128), "", 1, "task: it has 256 bytes, and must have 1 to 255"},
		{"t", long, 1, "lane: it has 256 bytes, and may have 255"},
		{"t", "", 0, "max_attempts: it is 0"},
		{"t", "", -1, "max_attempts: it is -1"},
	} {
		_, err := d.pool.Exec(t.Context(), `select rebase.enqueue($1, lane => $2, max_attempts => $3)`, bad.task, bad.lane, bad.maxAttempts)
		requireState(t, err, "22023")
		require.ErrorContains(t, err, bad.want)
		_, err = d.pool.Exec(t.Context(), `select rebase.enqueue_many(jsonb_build_array(jsonb_build_object('task', $1::text, 'lane', $2::text, 'max_attempts', $3::int)))`,
			bad.task, bad.lane, bad.maxAttempts)
		requireState(t, err, "22023")
	}
	d.exec(`select rebase.enqueue($1, lane => $1, max_attempts => 1)`, long[1:])
	d.exec(`delete from rebase.jobs`)
	for _, control := range []string{"\t", "\n", "\x01", "\x1f", "\x7f", "\u0080", "\u009f"} {
		_, err := d.q.Enqueue(t.Context(), "a"+control+"b", nil, nil)
		require.ErrorContains(t, err, "control character", "as in Go")
		_, err = d.pool.Exec(t.Context(), `select rebase.enqueue($1)`, "a"+control+"b")
		requireState(t, err, "22023")
		require.ErrorContains(t, err, "task: it has a control character")
		_, err = d.pool.Exec(t.Context(), `select rebase.enqueue_many(jsonb_build_array(jsonb_build_object('task', $1::text)))`, "a"+control+"b")
		requireState(t, err, "22023")
	}
	for _, task := range []string{" ", "\u00a0", "\u200b", "äöü 任務 🚀", `a\tb`} {
		d.exec(`select rebase.enqueue($1)`, task)
		d.exec(`delete from rebase.jobs where task = $1`, task)
		d.enqueue(task, nil)
		d.exec(`delete from rebase.jobs where task = $1`, task)
	}
	_, err := d.pool.Exec(t.Context(), `select rebase.enqueue('t', ('[' || repeat('1,', 399999) || '1]')::jsonb)`) // 800 kB without the blanks
	require.ErrorContains(t, err, "as PostgreSQL prints it, with blanks behind commas and colons")
	require.LessOrEqual(t, d.jobs(), 1)
	d.exec(`select rebase.enqueue('t', payload => to_jsonb(repeat('x', 1048574)), meta => '{}')`)
}

// J20, J23: of a reason given in SQL as much is kept as of one given in Go.
func TestJ20CancelInSQLCapsItsReason(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.enqueue("t", nil).ID
	d.exec(`select from rebase.cancel($1, repeat('ä', 4001))`, id)
	require.True(t, tell[bool](d, `select last_error = repeat('ä', 4000) and history -> 0 ->> 'error' = repeat('ä', 500) from rebase.jobs`))
}
