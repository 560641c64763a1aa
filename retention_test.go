package rebase_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// J17: what ended long ago is deleted; nothing else ever is.

// aged fills the table with one job of each state, finished (or made) so long ago.
func (r *rig) aged(age string) {
	r.exec(`insert into rebase.jobs (task, status, dead, fence, finished_at, run_at, created_at, updated_at, meta)
		select 'old', s, s = 'failed', case s when 'running' then id + 1 else 0 end, case when s not in ('pending', 'running') then now() - $1::interval end,
			now() + interval '1 hour', now() - $1::interval, now() - $1::interval, jsonb_build_object('age', $1::text)
		from unnest(array['pending', 'running', 'succeeded', 'failed', 'cancelled']) with ordinality u (s, id)`, age)
}

// J17, Q43: succeeded and cancelled after 3 days, failed after 30, unfinished never.
func TestRetentionDeletesWhatEndedLongAgoAndNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, age := range []string{"2 days 23 hours", "3 days 1 hour", "29 days", "31 days", "1 year"} {
		r.aged(age)
	}
	r.handle("other", nil, succeed)
	want := "finished_at is not null and (finished_at < now() - interval '30 days' or status <> 'failed' and finished_at < now() - interval '3 days')"
	r.until(func() bool { return r.count(want) == 0 }, "all of that is gone")
	require.Equal(t, 10, r.count("status in ('pending', 'running')"), "never an unfinished row, however old")
	require.Equal(t, 3, r.count("status = 'failed'"))
	require.Equal(t, 2, r.count("status in ('succeeded', 'cancelled')"))
}

// J17: options, and negative ones that keep for ever.
func TestRetentionCanBeSetAndSwitchedOff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.aged("2 hours")
	s := r.handle("other", &rebase.WorkerOptions{Retention: rebase.Retention{Succeeded: -1, Failed: time.Hour}}, succeed)
	r.until(func() bool { return r.count("status = 'failed'") == 0 }, "the dead letter is gone")
	require.NoError(t, s.stop())
	require.Equal(t, 2, r.count("status in ('succeeded', 'cancelled')"))
}

// Q43: many rows go in small committed batches while jobs run.
func TestRetentionGoesInBatchesBesideTheWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into rebase.jobs (task, status, finished_at) select 'old', 'succeeded', now() - interval '4 days' - i * interval '1 millisecond' from generate_series(1, 8000) i`)
	r.exec(`create table purged (n bigint, tx xid8)`)
	r.exec(`create function note() returns trigger language plpgsql as $$ begin insert into public.purged select count(*), pg_current_xact_id() from gone; return null; end $$`)
	r.exec(`create trigger note after delete on rebase.jobs referencing old table as gone for each statement execute function note()`)
	ids := r.enqueueMany("x", 200, nil)
	r.handle("x", nil, succeed)
	r.until(func() bool { return r.count("task = 'old'") == 0 }, "all are gone")
	r.until(func() bool { return r.count("status = 'succeeded'") == len(ids) }, "the work is done")
	require.GreaterOrEqual(t, ask[int](r, "select count(distinct tx)::int from purged where n > 0"), 8)
	require.LessOrEqual(t, ask[int](r, "select max(n)::int from purged"), 1000)
}

// J17: the hook archives in the transaction that deletes.
func TestArchiveRunsInTheDeletingTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("create table archive (id bigint primary key, task text, tx xid8)")
	r.aged("1 year")
	archive := func(ctx context.Context, tx pgx.Tx, jobs []*rebase.Job) error {
		for _, j := range jobs {
			if _, err := tx.Exec(ctx, "insert into public.archive values ($1, $2, pg_current_xact_id())", j.ID, j.Task); err != nil {
				return err
			}
		}
		return nil
	}
	r.handle("other", &rebase.WorkerOptions{Retention: rebase.Retention{Archive: archive}}, succeed)
	r.until(func() bool { return r.count("finished_at is not null") == 0 }, "all are gone")
	require.Equal(t, 3, ask[int](r, "select count(*)::int from archive where task = 'old'"))
}

// J17: its error, its panic or its network trouble keeps the rows, undoes what it wrote,
// and disturbs nothing else: it is not an outage of the database.
func TestAnArchiveThatFailsKeepsTheRows(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"error": func() error { return errBoom },
		"panic": func() error { panic("odd") },
		"net":   func() error { return &net.OpError{Op: "dial", Err: errors.New("boom")} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec("create table archive (id bigint)")
			r.aged("1 year")
			id := r.enqueue("other", nil)
			archive := func(ctx context.Context, tx pgx.Tx, jobs []*rebase.Job) error {
				_, err := tx.Exec(ctx, "insert into public.archive values (1)")
				return errors.Join(err, fail())
			}
			s := r.handle("other", &rebase.WorkerOptions{Retention: rebase.Retention{Archive: archive}}, succeed)
			r.until(func() bool { return len(r.log.matching("ERROR", "archive")) > 0 }, "it is logged")
			r.ends(id, rebase.StatusSucceeded)
			require.NoError(t, s.stop())
			require.Equal(t, 3, r.count("task = 'old' and finished_at is not null"))
			require.Zero(t, ask[int](r, "select count(*)::int from archive"))
			require.Empty(t, r.log.matching("can't be reached"))
		})
	}
}

// J17: a slot whose zone this host doesn't know is archived in UTC, and holds up no other.
func TestAnArchiveGetsAJobOfAnUnknownZone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.aged("1 year")
	r.exec("update rebase.jobs set slot = now(), slot_zone = 'Europe/Newtown' where status = 'cancelled'")
	n := 0
	s := r.purger(nil, func(_ context.Context, _ pgx.Tx, jobs []*rebase.Job) error {
		n += len(jobs)
		return nil
	})
	require.NoError(t, s.Purge())
	require.Equal(t, 3, n)
	require.Zero(t, r.count("finished_at is not null"))
}

// J17: an archive that is too slow for its batch gets smaller ones until it has the time, and
// they grow again.
func TestASlowArchiveGetsSmallerBatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("insert into rebase.jobs (task, status, finished_at) select 'old', 'succeeded', now() - interval '1 year' from generate_series(1, 600)")
	var sizes []int
	s := r.purger(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, func(ctx context.Context, _ pgx.Tx, jobs []*rebase.Job) error {
		if sizes = append(sizes, len(jobs)); len(jobs) > 400 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	require.Error(t, s.Purge())
	require.Error(t, s.Purge())
	for range 3 {
		require.NoError(t, s.Purge())
	}
	require.Equal(t, []int{600, 500, 250, 254, 96}, sizes)
	require.Zero(t, r.count("true"))
	require.Len(t, r.log.matching("WARN", "deleting old jobs took too long"), 2)
}

// J17: an archive that leaves rows open has no effect, and that is told.
func TestAnArchiveThatLeavesRowsOpenIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.aged("1 year")
	s := r.purger(nil, func(ctx context.Context, tx pgx.Tx, _ []*rebase.Job) error {
		_, err := tx.Query(ctx, "select 1")
		return err
	})
	require.ErrorContains(t, s.Purge(), "left rows of tx.Query open")
	require.Equal(t, 3, r.count("finished_at is not null"))
	require.Len(t, r.log.matching("WARN", "left rows of tx.Query open"), 1)
}

// purger is a worker that is stepped, with this archive.
func (r *rig) purger(opts *rebase.WorkerOptions, archive func(context.Context, pgx.Tx, []*rebase.Job) error) *rebase.Stepper {
	if opts == nil {
		opts = &rebase.WorkerOptions{}
	}
	opts.Retention.Archive = archive
	w := r.worker(opts)
	w.Register("other", succeed, nil)
	s := rebase.NewStepper(r.t.Context(), w)
	r.t.Cleanup(s.Close)
	return s
}
