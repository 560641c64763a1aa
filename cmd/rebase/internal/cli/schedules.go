package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// schedules: the list, and what is done to one of them.

func (a *app) schedulesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "schedules", Short: "List schedules, or pause, resume, fire or delete one",
		Long: "Lists all schedules. Times are in UTC; a cron expression is read in its own zone.",
		Args: cobra.NoArgs,
		RunE: a.with(a.schedules),
	}
	cmd.AddCommand(
		a.scheduleCommand("pause", "paused", "Stop a schedule's firing", "Stops a schedule's firing until it is resumed. Slots in between don't count as missed.", (*rebase.Queue).PauseSchedule),
		a.scheduleCommand("resume", "resumed", "Let a paused schedule fire again", "Lets a paused schedule fire again, from the next slot on.", (*rebase.Queue).ResumeSchedule),
		a.scheduleCommand("fire", "fired", "Make a job of a schedule now", "Makes a job of a schedule now, beside its slots, which stay as they are.", (*rebase.Queue).FireSchedule),
		a.scheduleCommand("delete", "deleted", "Delete a schedule", "Deletes a schedule; its jobs stay. One that code declares comes back while that code runs: pause\nit instead.", (*rebase.Queue).DeleteSchedule),
	)
	return cmd
}

func (a *app) scheduleCommand(verb, done, short, long string, do func(*rebase.Queue, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: short, Long: long,
		Args: takes(1, 1), ValidArgsFunction: a.scheduleIDs,
		RunE: a.with(func(ctx context.Context, d *db, args []string) error {
			ctx, cancel := d.limit(ctx)
			defer cancel()
			if err := do(d.q, ctx, args[0]); errors.Is(err, rebase.ErrNotFound) {
				return &noScheduleError{verb, args[0]}
			} else if err != nil {
				return err
			}
			if a.json {
				return printJSON(a.out, struct {
					ID   string `json:"id"`
					Done bool   `json:"done"`
				}{args[0], true})
			}
			_, err := fmt.Fprintf(a.out, "%s schedule %s\n", done, clean(args[0]))
			return err
		}),
	}
}

func (a *app) schedules(ctx context.Context, d *db, _ []string) error {
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	t, n := a.table("ID", "TASK", "CRON", "ZONE", "NEXT", "LAST SLOT", ">MISSED", "FROM", "STATE"), 0
	err = visitAll(ctx, d, d.q.Schedules, func(s *rebase.ScheduleState) error {
		n++
		if a.json {
			return printJSON(a.out, scheduleOf(s))
		}
		t.schedule(s, now)
		if len(t.rows) == 200 {
			t.flush(a.out)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.flush(a.out)
	if n == 0 && !a.json {
		fmt.Fprintln(a.Err, "no schedules")
	}
	return nil
}

func (t *table) schedule(s *rebase.ScheduleState, now time.Time) {
	next, last, from := "", "never", "run time"
	if !s.NextRunAt.IsZero() {
		next = since(now, s.NextRunAt)
	}
	if !s.LastSlot.IsZero() {
		last = instant(s.LastSlot)
	}
	if s.Declared {
		from = "code"
	}
	state := cell{}
	switch {
	case s.Error != "":
		state = cell{"broken: " + firstLine(s.Error), red}
	case s.Paused:
		state = cell{"paused", yellow}
	}
	t.add(clean(s.ID), clean(s.Task), clean(s.Cron), clean(zoneOf(s)), next, last, warn(number(s.Missed), s.Missed > 0, yellow), from, state)
}

func zoneOf(s *rebase.ScheduleState) string {
	if s.Zone == "" {
		return "UTC"
	}
	return s.Zone
}

// A scheduleRecord is a row of rebase.schedules. Spread is in seconds.
type scheduleRecord struct {
	ID          string            `json:"id"`
	Task        string            `json:"task"`
	Cron        string            `json:"cron"`
	Zone        string            `json:"zone"`
	NextRunAt   *time.Time        `json:"next_run_at"`
	LastSlot    *time.Time        `json:"last_slot"`
	Lane        string            `json:"lane"`
	MaxAttempts int               `json:"max_attempts"`
	Spread      float64           `json:"spread"`
	CatchUp     string            `json:"catch_up"`
	NoOverlap   bool              `json:"no_overlap"`
	Paused      bool              `json:"paused"`
	Missed      int64             `json:"missed"`
	Error       *string           `json:"error"`
	Declared    bool              `json:"declared"`
	Meta        map[string]string `json:"meta"`
	Payload     json.RawMessage   `json:"payload"`
}

func scheduleOf(s *rebase.ScheduleState) scheduleRecord {
	catchUp := fmt.Sprintf("all %d", int(s.CatchUp))
	switch s.CatchUp {
	case rebase.CatchUpOne:
		catchUp = "one"
	case rebase.CatchUpSkip:
		catchUp = "skip"
	}
	payload, _ := s.Payload.(json.RawMessage) // always one; nil is null
	return scheduleRecord{
		ID: s.ID, Task: s.Task, Cron: s.Cron, Zone: zoneOf(s), NextRunAt: orNull(s.NextRunAt), LastSlot: orNull(s.LastSlot), Lane: s.Lane,
		MaxAttempts: s.MaxAttempts, Spread: s.Window.Seconds(), CatchUp: catchUp, NoOverlap: s.NoOverlap, Paused: s.Paused, Missed: s.Missed,
		Error: orNull(s.Error), Declared: s.Declared, Meta: s.Meta, Payload: payload,
	}
}
