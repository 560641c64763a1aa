package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// The story, and the checks that it is true: an error is a promise that was not kept.

type story struct {
	pool  *pgxpool.Pool
	queue *rebase.Queue
	out   io.Writer
	began time.Time
	names scheduleNames
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.3f s  "+format+"\n", append([]any{time.Since(s.began).Seconds()}, args...)...)
}

func (s *story) tell(ctx context.Context, workers []*process) error {
	err := s.until(ctx, `
		select (select count(*) from rebase.workers where id like '%-' || $1::text || '-%') = $2
			and (select count(*) from rebase.schedules where id like 'cron-%-' || $1::text) = 2`, s.names.run, len(workers))
	if err != nil {
		return err
	}
	s.say("%d processes run, and both declare two schedules", len(workers))
	for _, chapter := range []func(context.Context) error{s.nightly, s.slot, s.pause, s.resume} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return s.account(ctx)
}

// nightly shows when the nightly job comes, in its own zone.
func (s *story) nightly(ctx context.Context) error {
	state, err := s.state(ctx, s.names.nightly)
	if err != nil {
		return err
	}
	zone, err := time.LoadLocation(state.Zone)
	if err != nil {
		return err
	}
	s.say("nightly: %q in %s: next on %s", state.Cron, state.Zone, state.NextRunAt.In(zone).Format("Mon 2 Jan at 15:04 MST"))
	return nil
}

// slot makes the slot of this minute due and looks how many jobs come of it. FireSchedule runs the
// nightly job now; it also tells the workers to look.
func (s *story) slot(ctx context.Context) error {
	key, err := s.rewind(ctx, 0)
	if err != nil {
		return err
	}
	s.say("report: its slot is due, and either process may fire it")
	if err := s.queue.FireSchedule(ctx, s.names.nightly); err != nil {
		return err
	}
	err = s.until(ctx, `
		select exists (select from rebase.jobs where idempotency_key = $1 and status = 'succeeded')
			and exists (select from rebase_cron.ran where schedule = $2)`, key, s.names.nightly)
	if err != nil {
		return err
	}
	var jobs int
	var by string
	err = s.pool.QueryRow(ctx, `
		select count(*), min(r.worker) from rebase.jobs j join rebase_cron.ran r on r.job_id = j.id where j.idempotency_key = $1`, key).Scan(&jobs, &by)
	if err == nil && jobs != 1 {
		err = fmt.Errorf("%d jobs for the slot %s", jobs, key)
	}
	s.say("report: one job for the slot, run by %s; its idempotency key is %s", by, key)
	s.say("nightly: run now, beside its slots")
	return err
}

// pause lets three slots of the report pass while it is paused.
func (s *story) pause(ctx context.Context) error {
	if err := s.queue.PauseSchedule(ctx, s.names.report); err != nil {
		return err
	}
	if _, err := s.rewind(ctx, 3); err != nil {
		return err
	}
	s.say("report: paused; three of its slots pass")
	return s.queue.FireSchedule(ctx, s.names.nightly)
}

// resume shows that nothing is made up for.
func (s *story) resume(ctx context.Context) error {
	if err := s.until(ctx, `select count(*) = 2 from rebase_cron.ran where schedule = $1`, s.names.nightly); err != nil {
		return err
	}
	if err := s.queue.ResumeSchedule(ctx, s.names.report); err != nil {
		return err
	}
	state, err := s.state(ctx, s.names.report)
	if err != nil {
		return err
	}
	s.say("report: resumed; next at %s, %d slots missed, nothing made up for", state.NextRunAt.Format("15:04:05 MST"), state.Missed)
	if state.Missed != 0 || !state.NextRunAt.After(s.began) {
		return fmt.Errorf("after the pause: %d missed, next at %v", state.Missed, state.NextRunAt)
	}
	return nil
}

// account compares jobs, slots and runs.
func (s *story) account(ctx context.Context) error {
	var jobs, keys, slots, ran int
	err := s.pool.QueryRow(ctx, `
		select count(*), count(distinct idempotency_key), (select count(*) from rebase.schedule_slots where schedule_id = $1),
			(select count(distinct job_id) from rebase_cron.ran where schedule = $1)
		from rebase.jobs where starts_with(idempotency_key, $1 || '@')`, s.names.report).Scan(&jobs, &keys, &slots, &ran)
	if err != nil {
		return err
	}
	s.say("report: slots fired %d, jobs %d", slots, jobs)
	if jobs != slots || keys != slots || ran > slots {
		return fmt.Errorf("%d slots, %d jobs with %d keys, %d runs", slots, jobs, keys, ran)
	}
	s.say("each slot fired once")
	return nil
}

// rewind moves the report back by so many minutes, as if time had passed, and returns the key
// of the job of this minute's slot. A slot is not fired before its time, so only the past will do.
func (s *story) rewind(ctx context.Context, minutes int) (key string, err error) {
	var slot time.Time
	err = s.pool.QueryRow(ctx, `
		update rebase.schedules
		set next_slot = date_trunc('minute', now()) - $2 * interval '1 minute', next_run_at = date_trunc('minute', now()) - $2 * interval '1 minute'
		where id = $1
		returning next_slot`, s.names.report, minutes).Scan(&slot)
	return s.names.report + "@" + slot.UTC().Format(time.RFC3339), err
}

func (s *story) state(ctx context.Context, id string) (*rebase.ScheduleState, error) {
	for state, err := range s.queue.Schedules(ctx) {
		if err != nil || state.ID == id {
			return state, err
		}
	}
	return nil, fmt.Errorf("no schedule %s", id)
}

// until waits for what only the tables tell, for ten seconds.
func (s *story) until(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		var ok bool
		if err := s.pool.QueryRow(ctx, sql, args...).Scan(&ok); err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for: %s", sql)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
