package rebase_test

// The schema (J25, Q45): applied by any number of processes at once, also while others work;
// applied by goose; and told at start whether this binary can work on what is there.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/migrations"
)

// another opens a pool of its own on the desk's database, as another process would.
func (d *desk) another(configure func(*pgxpool.Config)) *desk {
	d.t.Helper()
	cfg := d.pool.Config()
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(d.t.Context(), cfg)
	require.NoError(d.t, err)
	d.t.Cleanup(pool.Close)
	return deskOn(d.t, pool, nil)
}

// atOnce runs f on ten pools at the same time.
func (d *desk) atOnce(f func(*rebase.Queue) error) {
	d.t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 10 {
		q := d.another(nil).q
		wg.Go(func() {
			<-start
			if err := f(q); err != nil {
				d.t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
}

// statements splits a file as goose does: at lines that end with a semicolon, except between
// its two marks; comments are no statements.
func statements(t *testing.T, sql string) (all []string) {
	t.Helper()
	var current strings.Builder
	up, block := false, false
	for line := range strings.Lines(sql) {
		mark, isMark := strings.CutPrefix(strings.TrimSpace(line), "-- +goose ")
		switch {
		case isMark && mark == "Up":
			up = true
			continue
		case isMark && mark == "StatementBegin":
			block = true
			continue
		case isMark && mark == "StatementEnd":
			block = false
		case isMark:
			require.Fail(t, "unknown mark", mark)
		case current.Len() == 0 && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "--")):
			continue
		default:
			require.True(t, up, "a statement before the mark Up")
			current.WriteString(line)
			code, _, _ := strings.Cut(line, "--")
			if block || !strings.HasSuffix(strings.TrimSpace(code), ";") {
				continue
			}
		}
		if current.Len() > 0 {
			all = append(all, current.String())
			current.Reset()
		}
	}
	require.False(t, block, "StatementBegin without its end")
	require.Zero(t, current.Len(), "an unfinished statement: %s", current.String())
	return all
}

// schemaOf describes everything in the schema, so that two ways of applying can be compared.
func (d *desk) schemaOf() []string {
	d.t.Helper()
	return list[string](d, `
		select format('%s %s %s %s %s', table_name, ordinal_position, column_name, data_type, column_default) from information_schema.columns where table_schema = 'rebase'
		union all select indexdef from pg_indexes where schemaname = 'rebase'
		union all select pg_get_functiondef(oid) || coalesce(proacl::text, '') from pg_proc where pronamespace = 'rebase'::regnamespace
		union all select conrelid::regclass || conname || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'rebase'::regnamespace
		union all select relname || coalesce(reloptions::text, '') from pg_class where relnamespace = 'rebase'::regnamespace
		union all select format('%s %s', version, min_reader) from rebase.migrations
		order by 1`)
}

// Q45: ten processes migrate an empty database at once.
func TestQ45TenProcessesMigrateAnEmptyDatabaseAtOnce(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	d.atOnce(func(q *rebase.Queue) error { return errors.Join(q.Migrate(t.Context()), q.Check(t.Context())) })
	require.Equal(t, rebase.NewestVersion(), tell[int](d, `select count(*) from rebase.migrations`))
	before := d.schemaOf()
	require.NoError(t, d.q.Migrate(t.Context()), "migrating twice is migrating once")
	require.Equal(t, before, d.schemaOf())
	require.False(t, d.enqueue("t", nil).Duplicate)
}

// Q45: ten processes bring a new version while an older one works; nobody stops.
func TestQ45TenProcessesMigrateWhileAnOlderOneWorks(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	next := rebase.NewestVersion() + 1
	working := make(chan struct{})
	var once sync.Once
	const jobs = 300
	for i := range jobs {
		d.enqueue("t", &rebase.EnqueueOptions{IdempotencyKey: fmt.Sprint(i)})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		<-working
		d.atOnce(func(q *rebase.Queue) error {
			return q.ApplyMigration(t.Context(), next, fmt.Sprintf(`alter table rebase.jobs add column priority integer not null default 0;
				create index jobs_priority on rebase.jobs (priority) where finished_at is null;
				insert into rebase.migrations (version, min_reader) values (%d, %d)`, next, next-1))
		})
	})
	n := d.drain(map[string]rebase.Handler{"t": func(ctx context.Context, job *rebase.Job) error {
		once.Do(func() { close(working) })
		if job.ID%2 == 0 {
			return nil
		}
		_, err := d.q.Enqueue(ctx, "u", nil, nil)
		return err
	}})
	wg.Wait()
	require.Equal(t, jobs, n)
	require.Equal(t, jobs, tell[int](d, `select count(*) from rebase.jobs where status = 'succeeded' and attempts = 1`))
	require.Equal(t, jobs/2, tell[int](d, `select count(*) from rebase.jobs where task = 'u'`))
	require.Equal(t, 1, tell[int](d, `select count(*) from rebase.migrations where version = $1`, next))
	require.NoError(t, d.q.Check(t.Context()))
}

// J25, Q45: a newer schema works if its min_reader allows it, else it is a clear error.
func TestJ25ANewerSchemaWorksIfItAllowsThisBinary(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	newest := rebase.NewestVersion()
	d.exec(`insert into rebase.migrations values ($1, $2)`, newest+7, newest)
	require.NoError(t, d.q.Check(t.Context()))
	require.NoError(t, d.q.Migrate(t.Context()), "left as it is")
	d.enqueue("t", nil)
	require.Equal(t, 1, d.drain(map[string]rebase.Handler{"t": func(context.Context, *rebase.Job) error { return nil }}))

	d.exec(`insert into rebase.migrations values ($1, $2)`, newest+8, newest+3)
	d.exec(`insert into rebase.migrations values ($1, 1)`, newest+9) // a later one doesn't lower it
	require.NoError(t, d.q.Migrate(t.Context()))
	bad := d.requireSchemaError(d.q.Check(t.Context()))
	require.Equal(t, []int{newest + 9, newest}, []int{bad.Version, bad.Supports})
	require.Contains(t, bad.Reason, fmt.Sprint(newest+3))
	w := rebase.NewWorker(d.q, nil)
	w.Register("t", func(context.Context, *rebase.Job) error { return nil }, nil)
	d.requireSchemaError(w.Run(t.Context()))
}

func (d *desk) requireSchemaError(err error) *rebase.SchemaError {
	d.t.Helper()
	bad, ok := errors.AsType[*rebase.SchemaError](err)
	require.True(d.t, ok, "%v", err)
	require.NotEmpty(d.t, bad.Reason)
	return bad
}

// J25: every reason for which a worker can't work is told at start.
func TestJ25CheckTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	bad := d.requireSchemaError(d.q.Check(t.Context()))
	require.Equal(t, 0, bad.Version)
	require.Contains(t, bad.Reason, "missing")

	first, err := fs.ReadFile(migrations.FS, "0001_jobs.sql")
	require.NoError(t, err)
	require.NoError(t, d.q.ApplyMigration(t.Context(), 1, string(first)))
	bad = d.requireSchemaError(d.q.Check(t.Context()))
	require.Equal(t, 1, bad.Version)
	require.Contains(t, bad.Reason, "too old")
	require.NoError(t, d.q.Migrate(t.Context()))
	require.NoError(t, d.q.Check(t.Context()))

	standby := d.another(func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" })
	err = standby.q.Check(t.Context())
	require.ErrorContains(t, err, "read-only")
	_, ok := errors.AsType[*rebase.SchemaError](err)
	require.False(t, ok, "a standby is waited for")

	gone := d.another(nil)
	gone.pool.Close()
	err = gone.q.Check(t.Context())
	require.Error(t, err)
	_, ok = errors.AsType[*rebase.SchemaError](err)
	require.False(t, ok, "so is a server that is away")
}

// J25: a role without a privilege that a worker or an enqueue needs is told which, at start.
func TestJ25CheckTellsWhichPrivilegeIsMissing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	role := fmt.Sprintf("rebase_test_role_%d", mathrand.Uint32())
	d.exec(`create role ` + role)
	t.Cleanup(func() {
		_, _ = d.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role, pgx.QueryExecModeSimpleProtocol)
	})
	theirs := d.another(func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
	check := func() error { return theirs.q.Check(t.Context()) }
	require.Contains(t, d.requireSchemaError(check()).Reason, "permission")
	d.exec(`grant usage on schema rebase to ` + role)
	require.Contains(t, d.requireSchemaError(check()).Reason, "permission")
	d.exec(`grant select, insert, update, delete on all tables in schema rebase to ` + role)
	require.Contains(t, d.requireSchemaError(check()).Reason, "jobs_id_seq", "a batch draws its ids from the sequence")
	d.exec(`grant usage on sequence rebase.jobs_id_seq to ` + role)
	require.NoError(t, check())
	for _, privilege := range []string{"select on rebase.jobs", "insert on rebase.jobs", "update on rebase.jobs", "delete on rebase.jobs",
		"insert on rebase.claims", "delete on rebase.workers", "select on rebase.paused"} {
		d.exec(`revoke ` + privilege + ` from ` + role)
		require.Contains(t, d.requireSchemaError(check()).Reason, strings.Replace(privilege, "rebase.", "", 1))
		d.exec(`grant ` + privilege + ` to ` + role)
	}
	require.NoError(t, check())
	_, err := theirs.q.EnqueueMany(t.Context(), []rebase.Item{{Task: "t"}, {Task: "t"}})
	require.NoError(t, err)
	require.Equal(t, 2, theirs.drain(map[string]rebase.Handler{"t": func(context.Context, *rebase.Job) error { return nil }}))
}

// J25: the encoding must hold every text.
func TestJ25CheckRefusesAnotherEncoding(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	name := fmt.Sprintf("rebase_test_latin_%d", mathrand.Uint32())
	d.exec(`create database ` + name + ` template template0 encoding latin1 locale 'C'`)
	latin := d.another(func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = name })
	t.Cleanup(func() {
		latin.pool.Close()
		_, err := d.pool.Exec(context.Background(), `drop database `+name+` with (force)`)
		require.NoError(t, err)
	})
	require.NoError(t, latin.q.Migrate(t.Context()))
	require.Contains(t, d.requireSchemaError(latin.q.Check(t.Context())).Reason, "LATIN1")
}

// J25: Migrate stands in nobody's way for longer than 2 s: it gives up its place in the queue
// and comes again, until it has the lock or its context ends.
func TestJ25MigrateWaitsForALockTwoSecondsAtATime(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	next := rebase.NewestVersion() + 1
	migrate := func(ctx context.Context) error {
		return d.another(nil).q.ApplyMigration(ctx, next, fmt.Sprintf(`alter table rebase.jobs add column x integer; insert into rebase.migrations values (%d, 1)`, next))
	}
	reader := d.begin(pgx.TxOptions{})
	_, err := reader.Exec(t.Context(), `select * from rebase.jobs`)
	require.NoError(t, err)

	short, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- migrate(short) }()
	d.waits(1)
	enough := errors.New("enough")
	cancel(enough)
	require.Error(t, <-done)

	d.waits(0)

	go func() { done <- migrate(t.Context()) }()
	tries, longest := map[time.Time]bool{}, 0.0
	require.Eventually(t, func() bool {
		for _, started := range list[time.Time](d, `select xact_start from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) {
			tries[started] = true
		}
		longest = max(longest, tell[float64](d, `select coalesce(max(extract(epoch from clock_timestamp() - query_start)), 0)::float8 from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock'`))
		return len(tries) >= 2
	}, patience, 20*time.Millisecond, "it comes again")
	require.InDelta(t, 2, longest, 1)
	require.NoError(t, reader.Rollback(t.Context()))
	require.NoError(t, <-done)
	require.Equal(t, next, tell[int](d, `select max(version) from rebase.migrations`))
}

// Q45: goose's way of applying the files gives the same schema as Migrate, and each knows the
// other's work.
func TestQ45FilesAppliedAsGooseDoesGiveTheSameSchema(t *testing.T) {
	t.Parallel()
	byMigrate := newDesk(t)
	names, err := fs.Glob(migrations.FS, "*.sql")
	require.NoError(t, err)
	for applied := range len(names) + 1 { // so many by goose, the rest by Migrate
		d := deskOn(t, pgtest.Empty(t), nil)
		for _, name := range names[:applied] {
			sql, err := fs.ReadFile(migrations.FS, name)
			require.NoError(t, err)
			require.NoError(t, pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
				for _, statement := range statements(t, string(sql)) {
					if _, err := tx.Exec(t.Context(), statement); err != nil { // one statement each: the extended protocol takes no more
						return fmt.Errorf("%s: %w", statement, err)
					}
				}
				return nil
			}))
		}
		require.NoError(t, d.q.Migrate(t.Context()))
		require.NoError(t, d.q.Check(t.Context()))
		require.Equal(t, byMigrate.schemaOf(), d.schemaOf())
	}
}
