package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// stats: how the queue is doing, once. Zeros that are good news are left out of the tables'
// colours, so that what is coloured is what to look at.

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "Show how the queue is doing",
		Long: `Shows the live jobs of each task, the workers that are alive, and what makes a queue sick.

Counting ends at 5,000 jobs, which the tasks share: "1,250+" means at least so many. It costs the same
however much history there is.`,
		Args: takes(0, 0),
		RunE: a.with(func(ctx context.Context, d *db, _ []string) error {
			ctx, cancel := d.limit(ctx)
			defer cancel()
			s, err := d.q.Stats(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return printJSON(a.out, statsOf(s))
			}
			a.stats(s)
			return nil
		}),
	}
}

func (a *app) stats(s *rebase.Stats) {
	t := a.table("TASK", ">READY", ">SCHEDULED", ">RUNNING", ">AHEAD", ">RETRYING", ">OLDEST", ">DEAD", ">WORKERS", ">SLOTS", "STATE")
	for _, x := range s.Tasks {
		more := map[bool]string{true: "+"}[x.Capped]
		oldest := ""
		if x.OldestReady > 0 {
			oldest = age(x.OldestReady)
		}
		t.add(clean(x.Task), number(x.Ready)+more, number(x.Scheduled)+more, number(x.Running), number(x.ClaimedAhead), number(x.Retrying),
			oldest, warn(capped(x.DeadLetters, rebase.StatsCap), x.DeadLetters > 0, red), number(x.Workers), number(x.Slots), stateCell(x, s))
	}
	if len(s.Tasks) == 0 {
		fmt.Fprintln(a.out, "no unfinished jobs and no dead letters")
	}
	t.flush(a.out)
	fmt.Fprintln(a.out)
	t = a.table("WORKER", "HOST", ">SLOTS", ">UP", ">SEEN", "TASKS")
	for _, w := range s.Workers {
		t.add(clean(w.ID), clean(w.Host), number(w.Concurrency), age(s.At.Sub(w.StartedAt)), since(s.At, w.SeenAt), clean(strings.Join(w.Tasks, " ")))
	}
	if len(s.Workers) == 0 {
		fmt.Fprintln(a.out, a.paint(yellow, "no live workers"))
	}
	t.flush(a.out)
	fmt.Fprintln(a.out)
	a.health(s)
}

func warn(text string, bad bool, s style) cell {
	if !bad {
		s = plain
	}
	return cell{text, s}
}

// stateCell says what stands in the way of a task.
func stateCell(x rebase.TaskStats, s *rebase.Stats) cell {
	switch {
	case x.Paused:
		return cell{"paused", yellow}
	case slices.Contains(s.Unserved(), x.Task):
		return cell{"no live worker", red}
	}
	return cell{}
}

func (a *app) health(s *rebase.Stats) {
	count := func(n int64) string { return a.paint(warn("", n > 0, yellow).style, number(n)) }
	horizon := "none"
	if h := s.Horizon; h != nil {
		horizon = fmt.Sprintf("%s %s, %s begun since", h.Kind, clean(h.Holder), plural(int(h.XIDs), "transaction"))
		if !h.Since.IsZero() {
			horizon += ", " + age(s.At.Sub(h.Since)) + " old"
		}
	}
	a.fields(a.out,
		"dead letters", a.paint(warn("", s.DeadLetters > 0, red).style, capped(s.DeadLetters, rebase.StatsCap)),
		"leases expired", count(s.LeaseExpirations)+" in this hour and the one before",
		"handlers abandoned", count(int64(s.AbandonedHandlers)),
		"slots missed", count(s.MissedSlots),
		"lock waits", count(int64(s.LockWaits)),
		"notification queue", percent(s.NotificationQueue)+" full",
		"oldest snapshot", horizon,
		"totals", totals(s.Totals),
	)
}

func totals(m map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, clean(name)+" "+number(m[name]))
	}
	return strings.Join(parts, ", ")
}

// statsRecord is what stats --json prints.
type statsRecord struct {
	At                time.Time        `json:"at"`
	Tasks             []taskRecord     `json:"tasks"`
	Workers           []workerRecord   `json:"workers"`
	Unserved          []string         `json:"unserved"`
	DeadLetters       int              `json:"dead_letters"`
	LeaseExpirations  int64            `json:"lease_expirations"`
	AbandonedHandlers int              `json:"abandoned_handlers"`
	MissedSlots       int64            `json:"missed_slots"`
	LockWaits         int              `json:"lock_waits"`
	NotificationQueue float64          `json:"notification_queue"`
	Horizon           *horizonRecord   `json:"horizon"`
	Totals            map[string]int64 `json:"totals"`
}

type taskRecord struct {
	Task         string      `json:"task"`
	Ready        int         `json:"ready"`
	Scheduled    int         `json:"scheduled"`
	Running      int         `json:"running"`
	ClaimedAhead int         `json:"claimed_ahead"`
	Retrying     int         `json:"retrying"`
	Capped       bool        `json:"capped"`
	OldestReady  float64     `json:"oldest_ready_seconds"`
	Attempts     map[int]int `json:"attempts"`
	DeadLetters  int         `json:"dead_letters"`
	Workers      int         `json:"workers"`
	Slots        int         `json:"slots"`
	Paused       bool        `json:"paused"`
}

type workerRecord struct {
	ID          string           `json:"id"`
	Host        string           `json:"host"`
	Tasks       []string         `json:"tasks"`
	Concurrency int              `json:"concurrency"`
	StartedAt   time.Time        `json:"started_at"`
	SeenAt      time.Time        `json:"seen_at"`
	Counters    map[string]int64 `json:"counters"`
}

type horizonRecord struct {
	Kind   string     `json:"kind"`
	Holder string     `json:"holder"`
	PID    int        `json:"pid"`
	Since  *time.Time `json:"since"`
	XIDs   int64      `json:"xids"`
}

func statsOf(s *rebase.Stats) statsRecord {
	r := statsRecord{
		At: s.At.UTC(), Tasks: []taskRecord{}, Workers: []workerRecord{}, Unserved: append([]string{}, s.Unserved()...),
		DeadLetters: s.DeadLetters, LeaseExpirations: s.LeaseExpirations, AbandonedHandlers: s.AbandonedHandlers, MissedSlots: s.MissedSlots,
		LockWaits: s.LockWaits, NotificationQueue: s.NotificationQueue, Totals: s.Totals,
	}
	for _, t := range s.Tasks {
		r.Tasks = append(r.Tasks, taskRecord{t.Task, t.Ready, t.Scheduled, t.Running, t.ClaimedAhead, t.Retrying, t.Capped,
			t.OldestReady.Seconds(), t.Attempts, t.DeadLetters, t.Workers, t.Slots, t.Paused})
	}
	for _, w := range s.Workers {
		r.Workers = append(r.Workers, workerRecord{w.ID, w.Host, w.Tasks, w.Concurrency, w.StartedAt.UTC(), w.SeenAt.UTC(), w.Counters})
	}
	if h := s.Horizon; h != nil {
		r.Horizon = &horizonRecord{h.Kind, h.Holder, h.PID, orNull(h.Since), h.XIDs}
	}
	return r
}
