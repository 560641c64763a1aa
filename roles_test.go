package rebase_test

// What a role may do: the GRANTs of docs/operating.md, as they stand there, are given to
// roles that have nothing else, and each is tried at what it is for and at what it is not.
// The document's other queries are run, too.

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

var documentedSQL = regexp.MustCompile("(?s)<!-- sql: ([a-z ]+) -->\n```sql\n(.*?)```\n")

// documented are the document's blocks of SQL by name.
func documented(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("docs/operating.md")
	require.NoError(t, err)
	blocks := map[string]string{}
	for _, m := range documentedSQL.FindAllStringSubmatch(string(raw), -1) {
		blocks[m[1]] = m[2]
	}
	require.Equal(t, strings.Count(string(raw), "```sql"), len(blocks), "each block has a name of its own")
	return blocks
}

// as is a desk whose sessions have a new role, with the grants that the document gives to
// the kind, or none if that is "".
func (d *desk) as(kind string) *desk {
	d.t.Helper()
	role := "rebase_" + tell[string](d, `select right(current_database(), 12)`) + "_" + kind
	d.exec("create role " + role)
	d.t.Cleanup(func() { // roles are the whole server's
		_, err := d.pool.Exec(context.WithoutCancel(d.t.Context()), "drop owned by "+role+"; drop role "+role, pgx.QueryExecModeSimpleProtocol)
		require.NoError(d.t, err)
	})
	if kind != "" {
		d.grant(kind, role)
	}
	cfg := d.pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role "+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(d.t.Context(), cfg)
	require.NoError(d.t, err)
	d.t.Cleanup(pool.Close)
	return deskOn(d.t, pool, nil)
}

// grant gives a role what the document gives to the kind.
func (d *desk) grant(kind, role string) {
	d.t.Helper()
	sql := documented(d.t)["role "+kind]
	require.NotEmpty(d.t, sql)
	_, err := d.pool.Exec(d.t.Context(), strings.ReplaceAll(sql, " TO "+kind+";", " TO "+role+";"), pgx.QueryExecModeSimpleProtocol)
	require.NoError(d.t, err)
}

// denied requires the error of PostgreSQL for a missing right.
func denied(t *testing.T, err error, what string) {
	t.Helper()
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%s: %v", what, err)
	require.Equal(t, "42501", pgErr.Code, "%s: %v", what, err)
}

// forbids requires that none of the statements may be run.
func (d *desk) forbids(statements ...string) {
	d.t.Helper()
	for _, sql := range statements {
		_, err := d.pool.Exec(d.t.Context(), sql)
		denied(d.t, err, sql)
	}
}

// manages tries everything that changes a job, and returns what came of it.
func (d *desk) manages(id int64) map[string]error {
	ctx := d.t.Context()
	_, redriven := d.q.Redrive(ctx, rebase.Filter{}, 1)
	return map[string]error{
		"retry":   d.q.Retry(ctx, id),
		"redrive": redriven,
		"cancel":  d.q.Cancel(ctx, id, ""),
		"delete":  d.q.Delete(ctx, id),
		"pause":   d.q.PauseTask(ctx, "t"),
		"resume":  d.q.ResumeTask(ctx, "t"),
	}
}

// J23: without a grant nobody but the owner can do anything.
func TestJ23ARoleWithoutGrantsCanDoNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	nobody := d.as("")
	nobody.forbids(`select rebase.enqueue('t')`, `select from rebase.enqueue_many('[{"task": "t"}]')`, `select from rebase.jobs`, `select rebase.cancel(1)`)
	_, err := nobody.q.Enqueue(t.Context(), "t", nil, nil)
	denied(t, err, "Enqueue")
	refused, ok := errors.AsType[*rebase.SchemaError](nobody.q.Check(t.Context()))
	require.True(t, ok)
	require.Contains(t, refused.Reason, "grant")
	require.Zero(t, d.jobs())
}

// J23: USAGE alone opens nothing: the functions are granted to nobody.
func TestJ23TheFunctionsAreGrantedToNobody(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	visitor := d.as("")
	d.exec(`grant usage on schema rebase to ` + tell[string](visitor, `select current_user::text`))
	visitor.forbids(`select rebase.enqueue('t')`, `select from rebase.enqueue_many('[{"task": "t"}]')`, `select from rebase.jobs`, `select * from rebase.cancel(1)`)
}

// J23: an enqueuer's jobs are there, run, and wake; it sees none and changes none.
func TestJ23AnEnqueuerCanEnqueueAndNothingElse(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	e := d.as("enqueuer")
	id := tell[int64](e, `select rebase.enqueue('t', '{"n": 1}', idempotency_key => 'k')`)
	require.Equal(t, 2, len(list[*int64](e, `select id from rebase.enqueue_many('[{"task": "t", "idempotency_key": "k"}, {"task": "t"}]') order by ord`)))
	require.Equal(t, 2, d.jobs())
	e.forbids(`select from rebase.jobs`, `insert into rebase.jobs (task) values ('t')`, `update rebase.jobs set lane = ''`, `delete from rebase.jobs`,
		`select from rebase.workers`, `select * from rebase.cancel(1)`, `insert into rebase.paused values ('t')`, `select nextval('rebase.jobs_id_seq')`,
		`create table rebase.x ()`, `create function rebase.x() returns int language sql return 1`)
	for what, err := range e.manages(id) {
		denied(t, err, what)
	}
	require.Equal(t, 2, d.drain(map[string]rebase.Handler{"t": succeed}))
}

// J23: what anybody with USAGE may call doesn't hang on the default privileges of the database, of
// which Migrate's owner may have taken it away from PUBLIC.
func TestJ23TheGrantsAreEnoughWhateverTheDefaultPrivilegesAre(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	d.exec(`alter default privileges revoke execute on functions from public`)
	require.NoError(t, d.q.Migrate(t.Context()))
	w := d.as("worker")
	require.NoError(t, w.q.Check(t.Context()))
	id := w.enqueue("t", nil).ID
	require.NoError(t, w.q.Cancel(t.Context(), id, ""))
	w.enqueue("t", nil)
	require.Equal(t, 1, w.drain(map[string]rebase.Handler{"t": succeed}))
	d.exec(`revoke execute on function rebase.wake from public`)
	require.Contains(t, d.requireSchemaError(w.q.Check(t.Context())).Reason, "execute on wake")
}

// J25: a role that may create nothing in the database can migrate a schema that was made for it.
func TestJ25MigrateNeedsNoMoreThanTheSchemaThatItsRoleOwns(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	owner := d.as("")
	require.ErrorContains(t, owner.q.Migrate(t.Context()), "may not change the schema")
	d.exec(`create schema rebase authorization ` + tell[string](owner, `select current_user::text`))
	require.NoError(t, owner.q.Migrate(t.Context()))
	require.NoError(t, owner.q.Check(t.Context()))
}

// J2, J4: a producer has the whole Go interface for enqueueing, and reads no payload.
func TestJ2AProducerCanEnqueueFromGoAndReadsNoPayload(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p := d.as("producer")
	first := p.enqueue("t", keyed("k"))
	again := p.enqueue("t", keyed("k"))
	require.Equal(t, rebase.Enqueued{ID: first.ID, Duplicate: true}, again)
	_, err := p.q.EnqueueMany(t.Context(), []rebase.Item{{Task: "t"}, {Task: "t", Options: keyed("k")}, {Task: "u", Options: &rebase.EnqueueOptions{Lane: "l"}}})
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
		_, err := p.q.EnqueueTx(t.Context(), tx, "t", nil, keyed("other"))
		return err
	}))
	require.Equal(t, 4, d.jobs())
	p.forbids(`select payload from rebase.jobs`, `update rebase.jobs set lane = ''`, `delete from rebase.jobs`, `select from rebase.workers`, `select rebase.enqueue('t')`,
		`insert into rebase.jobs (task, status, fence) values ('t', 'running', 7)`, `insert into rebase.jobs (task, status, dead, finished_at) values ('t', 'failed', true, now())`,
		`insert into rebase.jobs (task, history) values ('t', '[]')`)
	for what, err := range p.manages(first.ID) {
		denied(t, err, what)
	}
}

// J25: a worker's grants are what Check asks for, and no less will do; with them it runs.
func TestJ25AWorkersGrantsAreEnoughAndCheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	w := d.as("worker")
	require.NoError(t, w.q.Check(t.Context()))
	d.enqueue("t", nil)
	d.enqueue("t", &rebase.EnqueueOptions{Lane: "l"})
	r := newRigOn(t, w.pool)
	done := make(chan struct{}, 10)
	s := r.handle("t", nil, func(ctx context.Context, job *rebase.Job) error {
		done <- struct{}{}
		if job.Attempts == 1 {
			return errBoom
		}
		return nil
	})
	for range 4 {
		await(t, done)
	}
	require.NoError(t, s.stop())
	require.Equal(t, 2, tell[int](d, `select count(*) from rebase.jobs where status = 'succeeded'`))
	require.Empty(t, r.log.matching("ERROR"), "nothing was refused")
	w.forbids(`truncate rebase.jobs`, `insert into rebase.migrations values (99, 99)`, `create table rebase.x ()`)
	denied(t, w.q.PauseTask(t.Context(), "t"), "pausing is for operators")

	role := tell[string](w, `select current_user::text`)
	d.exec(`revoke delete on rebase.claims from ` + role)
	refused, ok := errors.AsType[*rebase.SchemaError](w.q.Check(t.Context()))
	require.True(t, ok)
	require.Contains(t, refused.Reason, "delete on claims")
}

// J18: an operator looks and changes; it makes no job.
func TestJ18AnOperatorCanLookAndChange(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	o := d.as("operator")
	ids := []int64{d.enqueue("t", nil).ID, d.enqueue("t", nil).ID}
	d.ended(ids[0], rebase.StatusFailed)
	d.ended(ids[1], rebase.StatusFailed)
	o.reads(ids[0])
	ctx := t.Context()
	require.NoError(t, o.q.Retry(ctx, ids[0]))
	n, err := o.q.Redrive(ctx, rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, o.q.Cancel(ctx, ids[0], "why"))
	require.NoError(t, o.q.Delete(ctx, ids[0]))
	require.NoError(t, o.q.PauseTask(ctx, "t"))
	require.NoError(t, o.q.PauseTask(ctx, "t"))
	require.NoError(t, o.q.ResumeTask(ctx, "t"))
	_, err = o.q.Enqueue(ctx, "t", nil, nil)
	denied(t, err, "Enqueue")
}

// reads requires that all that only reads is possible.
func (d *desk) reads(id int64) {
	d.t.Helper()
	_, err := d.q.Job(d.t.Context(), id)
	require.NoError(d.t, err)
	_, err = d.q.Explain(d.t.Context(), id)
	require.NoError(d.t, err)
	require.NotEmpty(d.t, d.listed(rebase.Filter{}))
	d.stats()
}

// S4: with the grants for schedules an operator does everything that can be done to them.
func TestAnOperatorOfSchedulesCanManageThemAndEnqueue(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	o := d.as("operator")
	ctx := t.Context()
	s := rebase.Schedule{ID: "s", Cron: "0 0 1 1 *", Task: "t"}
	denied(t, o.q.SetSchedule(ctx, s), "an operator alone")
	d.grant("scheduler", tell[string](o, `select current_user::text`))
	require.NoError(t, o.q.SetSchedule(ctx, s))
	s.Zone = "Europe/Berlin"
	require.NoError(t, o.q.SetSchedule(ctx, s))
	require.NoError(t, o.q.PauseSchedule(ctx, "s"))
	require.NoError(t, o.q.ResumeSchedule(ctx, "s"))
	require.NoError(t, o.q.FireSchedule(ctx, "s"))
	require.NoError(t, o.q.DeleteSchedule(ctx, "s"))
	o.enqueue("t", keyed("k"))
	require.Equal(t, 2, d.jobs())
}

// M1: who reads sees everything, the sessions of others as well, and changes nothing.
func TestM1AReaderSeesEverythingAndChangesNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.enqueue("t", nil).ID
	r := d.as("reader")
	r.reads(id)
	for what, err := range r.manages(id) {
		if what != "redrive" { // there is no dead letter
			denied(t, err, what)
		}
	}
	_, err := r.q.Enqueue(t.Context(), "t", nil, nil)
	denied(t, err, "Enqueue")
	tx := d.begin(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	_, err = tx.Exec(t.Context(), `set local application_name = 'nightly-report'`)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select 1`)
	require.NoError(t, err)
	d.enqueue("t", nil)
	require.False(t, r.stats().Horizon.Since.IsZero())
	d.exec(`revoke pg_read_all_stats from ` + tell[string](r, `select current_user::text`))
	h := r.stats().Horizon
	require.NotNil(t, h)
	require.Equal(t, []any{"nightly-report", int(tx.Conn().PgConn().PID()), true}, []any{h.Holder, h.PID, h.Since.IsZero()}, "as the document says")
}

// The document's queries work as they stand, for who only reads.
func TestTheDocumentsQueriesWork(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(d.enqueue("t", nil).ID, rebase.StatusFailed)
	reader := d.as("reader")
	for name, sql := range documented(t) {
		if strings.HasPrefix(name, "role ") {
			continue
		}
		for one := range strings.SplitSeq(strings.TrimSpace(sql), ";\n") {
			_, err := reader.pool.Exec(t.Context(), one)
			require.NoError(t, err, "%s: %s", name, one)
		}
	}
}
