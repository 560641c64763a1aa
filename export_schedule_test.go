package rebase

// What the tests of schedules need from inside: the decision about a schedule as a function of
// instants, since no test may move the clock of the database; and a worker's firing step by
// step, so that a test can put others between a look and what follows from it.

import (
	"context"
	"time"
)

// ScheduleStatements are the statements that fire, by the names of their constants.
var ScheduleStatements = map[string]string{"dueSQL": dueSQL, "anySlotDueSQL": anySlotDueSQL, "nextFireSQL": nextFireSQL, "fireSQL": fireSQL, "pruneSlotsSQL": pruneSlotsSQL}

// SlotsAt decides what becomes at now of a schedule that was to fire next at from.
func SlotsAt(s Schedule, from, now time.Time) (fire []time.Time, missed int, next time.Time, err error) {
	p, err := planSchedule(s, 0)
	if err != nil {
		return nil, 0, time.Time{}, err
	}
	fire, missed, next = p.slots(from.Add(p.offset).Add(-p.offset), now, false, 10_000)
	return fire, missed, next, nil
}

// SetScheduleAt is SetSchedule at an instant of the database's clock.
func SetScheduleAt(ctx context.Context, q *Queue, s Schedule, now time.Time) error {
	p, err := planSchedule(s, 0)
	if err != nil {
		return err
	}
	return q.round(ctx, p.write(now, ""))
}

// ScheduleOffset is the schedule's place in its window.
func ScheduleOffset(s Schedule) time.Duration { return offsetOf(s.ID, s.Window) }

// A Firer is a worker's engine without its loops. It belongs to one goroutine.
type Firer struct {
	e    *engine
	look *fireLook
}

// NewFirer prepares an engine for the worker, which must not run.
func NewFirer(ctx context.Context, w *Worker) *Firer {
	e := newEngine(ctx, w, true)
	return &Firer{e: e}
}

// Close ends the engine; its row in rebase.workers stays.
func (f *Firer) Close() {
	f.e.results.drop()
	f.e.hardEnd()
}

// Name is the worker's.
func (f *Firer) Name() string { return f.e.id }

// Appear makes the worker's row, or renews it.
func (f *Firer) Appear(ctx context.Context) error {
	return f.e.results.round(ctx, 5*time.Second, f.e.heartbeat())
}

// Look reads what is due, and returns how many schedules that are.
func (f *Firer) Look(ctx context.Context) (due int, err error) {
	f.look, err = f.e.lookAtSchedules(ctx)
	if err != nil {
		return 0, err
	}
	return len(f.look.due), nil
}

// Fire makes the jobs of what the last Look found, and says whether it could move it all on.
func (f *Firer) Fire(ctx context.Context) (all bool, err error) { return f.e.fire(ctx, f.look) }

// Duty is all that a worker does at a time of the host's clock. It returns how long it is
// from its end until the next time.
func (f *Firer) Duty(ctx context.Context, host time.Time) (time.Duration, error) {
	began := time.Now()
	err := f.e.fireDuty(ctx, host)
	return f.e.duties.fire.Sub(host) - time.Since(began), err
}

// Tend writes the declarations and brings schedules back, as once a minute.
func (f *Firer) Tend(ctx context.Context) error {
	f.e.tended, f.e.duties.declareAt = time.Time{}, time.Time{}
	_, err := f.e.tendSchedules(ctx, time.Now())
	return err
}

// AsRun makes the firer treat errors as Run does, not as RunOnce.
func (f *Firer) AsRun() { f.e.once = false }

// Tended says whether all of the last Tend was done.
func (f *Firer) Tended() bool { return len(f.e.duties.undeclared) == 0 }

// Told says what becomes of the plan for the next look when a change is notified before, or
// during, a look: whether the next is at once.
func (f *Firer) Told(during bool) bool {
	planned := time.Now().Add(fireRetry)
	if !during {
		f.e.schedulesChanged()
	}
	f.e.set(&f.e.duties.fire, planned)
	if during {
		f.e.schedulesChanged()
	}
	f.e.planFire(planned, planned.Add(time.Hour))
	return f.e.due(&f.e.duties.fire, time.Now())
}

// Heard says how long after a look at the schedules the next is, when a change is notified.
func (f *Firer) Heard(looked time.Time) time.Duration {
	f.e.firedAt, f.e.duties.fire = looked, looked.Add(fireRetry)
	f.e.schedulesHeard()
	return f.e.duties.fire.Sub(looked)
}
