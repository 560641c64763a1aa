package rebase_test

// What operators and running programs do with schedules, and what workers make of it at once.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// S2: run now: a job beside the slots, which stay as they are; also while it is paused.
func TestFireScheduleMakesAJobBesideTheSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(rebase.Schedule{ID: "a", Cron: "0 0 1 1 *", Task: "report", Lane: "north", Payload: 7, MaxAttempts: 2, Meta: map[string]string{"k": "v"}})
	before := r.state("a")
	require.NoError(t, r.q.FireSchedule(t.Context(), "a"))
	require.Equal(t, before, r.state("a"))
	j := r.onlyJob()
	require.True(t, j.Slot.IsZero())
	require.Empty(t, j.IdempotencyKey)
	require.Equal(t, "north", j.Lane)
	require.JSONEq(t, "7", string(j.Payload))
	require.Equal(t, 2, j.MaxAttempts)
	require.Equal(t, map[string]string{"k": "v"}, j.Meta)
	require.NoError(t, r.q.PauseSchedule(t.Context(), "a"))
	require.NoError(t, r.q.FireSchedule(t.Context(), "a"))
	require.Equal(t, 2, r.count(`true`))
}

// newSleeper is a rig that can tell when all its connections, also those of its workers, have
// had nothing to do for a while.
func newSleeper(t *testing.T) (r *rig, sleeps func()) {
	r = newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "sleeper" }))
	watcher := newRigOn(t, pgtestPool(t, r, 2))
	return r, func() {
		watcher.until(func() bool {
			return ask[bool](watcher, `select count(*) > 1 and bool_and(state = 'idle' and state_change < now() - interval '400 milliseconds')
				from pg_stat_activity where application_name = 'sleeper' and datname = current_database()`)
		}, "the worker sleeps")
	}
}

// N1: a worker of the same process is woken by FireSchedule and by its own firing without any
// NOTIFY.
func TestFiringWakesTheProcessesOwnWorker(t *testing.T) {
	t.Parallel()
	r, sleeps := newSleeper(t)
	r.q = rebase.New(r.pool, &rebase.Options{Notify: rebase.Never, Logger: quiet()})
	ran := make(chan string, 10)
	w := r.worker(&rebase.WorkerOptions{PollOnly: true, PollInterval: soonEnough * 2})
	w.Register("report", func(_ context.Context, j *rebase.Job) error {
		ran <- j.IdempotencyKey
		return nil
	}, nil)
	r.start(w)
	r.set(rebase.Schedule{ID: "a", Cron: "0 0 1 1 *", Task: "report"})
	sleeps()
	require.NoError(t, r.q.FireSchedule(t.Context(), "a"))
	require.Empty(t, await(t, ran))
	r.set(minutely("b"))
	r.due("b", 0)
	sleeps()
	r.set(rebase.Schedule{ID: "a", Cron: "0 0 2 1 *", Task: "report"}) // tells the worker
	require.Contains(t, await(t, ran), "b@")
}

// A worker elsewhere is told of a change by NOTIFY: it doesn't wait for its next look, which is
// minutes away.
func TestChangeReachesWorkersElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ran := make(chan string, 10)
	r.handle("report", nil, func(_ context.Context, j *rebase.Job) error {
		ran <- j.IdempotencyKey
		return nil
	})
	r.until(func() bool {
		return ask[int](r, `select count(*)::int from pg_locks where locktype = 'advisory'
		and database = (select oid from pg_database where datname = current_database())`) > 0
	}, "the worker sleeps")
	elsewhere := newRigOn(t, r.pool)
	start := time.Now()
	r.exec(`insert into rebase.schedules (id, task, cron, zone, next_slot, next_run_at)
		select 'a', 'report', '* * * * *', 'UTC', date_trunc('minute', now()), date_trunc('minute', now())`)
	elsewhere.set(rebase.Schedule{ID: "b", Cron: "0 0 1 1 *", Task: "report"})
	require.Contains(t, await(t, ran), "a@")
	require.Less(t, time.Since(start), 15*time.Second, "before the first renewal would notice it")
	require.NoError(t, elsewhere.q.FireSchedule(t.Context(), "b"))
	require.Empty(t, await(t, ran))
}

// A row that was moved by SQL, of which nobody is told, is noticed along with a renewal.
func TestRowMovedBySQLIsNoticedByARunningWorker(t *testing.T) {
	t.Parallel()
	r, sleeps := newSleeper(t)
	w := r.worker(&rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second})
	w.Schedule(rebase.Schedule{ID: "a", Cron: "0 0 1 1 *", Task: "report"})
	r.start(w)
	r.until(func() bool { return ask[int](r, `select count(*)::int from rebase.schedules`) == 1 }, "it is declared")
	sleeps()
	r.exec(`update rebase.schedules set next_run_at = now()`)
	r.until(func() bool { return r.count(`slot is not null`) == 1 }, "it has fired")
}

// A deleted schedule is gone, its jobs stay; one that code declares comes back.
func TestDeletedScheduleLeavesItsJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.firer(minutely("code"))
	require.NoError(t, f.Tend(t.Context()))
	r.set(minutely("a"))
	r.due("a", 0)
	r.fired()
	for _, id := range []string{"a", "code"} {
		require.NoError(t, r.q.DeleteSchedule(t.Context(), id))
	}
	require.Zero(t, ask[int](r, `select count(*)::int from rebase.schedules`))
	require.Equal(t, 1, r.count(`true`))
	require.NoError(t, f.Tend(t.Context()))
	require.Equal(t, []string{"code"}, scheduleIDs(t, r))
}

func scheduleIDs(t *testing.T, r *rig) []string {
	rows, err := r.pool.Query(t.Context(), `select id from rebase.schedules order by id`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return ids
}

// What isn't there is said to be not there.
func TestOperationsOnNoScheduleSayNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, do := range map[string]func(context.Context, string) error{
		"pause": r.q.PauseSchedule, "resume": r.q.ResumeSchedule, "delete": r.q.DeleteSchedule, "fire": r.q.FireSchedule,
	} {
		err := do(t.Context(), "nothing")
		require.ErrorIs(t, err, rebase.ErrNotFound, name)
		require.ErrorContains(t, err, name+` schedule "nothing"`)
	}
}

// RunOnce declares and fires all that is due, more than one look takes in, and runs what that
// makes; a worker without tasks fires too.
func TestRunOnceFiresAllThatIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, task := range []string{"report", ""} {
		r.exec(`truncate rebase.jobs, rebase.schedules, rebase.schedule_slots`)
		r.exec(`insert into rebase.schedules (id, task, cron, zone, next_slot, next_run_at)
			select 's' || i, 'report', '0 0 1 1 *', 'UTC', date_trunc('year', now(), 'UTC'), date_trunc('year', now(), 'UTC') from generate_series(1, 350) i`)
		if task == "" {
			r.fired()
		} else {
			require.Equal(t, 350, r.once(task, nil, nothing))
		}
		require.Equal(t, 350, r.count(`slot is not null`), "%q", task)
	}
}

// Resuming takes the next slot of the schedule as it is then, though it was edited meanwhile.
func TestResumeAfterAnEditTakesTheEditedSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set(minutely("a"))
	require.NoError(t, r.q.PauseSchedule(t.Context(), "a"))
	r.set(rebase.Schedule{ID: "a", Cron: "0 0 1 1 *", Task: "report"})
	require.NoError(t, r.q.ResumeSchedule(t.Context(), "a"))
	require.Equal(t, "01-01 00:00", fmt.Sprint(r.state("a").NextRunAt.Format("01-02 15:04")))
}
