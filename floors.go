package rebase

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
)

// Floors. While somebody holds an old snapshot, the index entries of finished jobs
// can't be removed, and every claim that starts at the head of its lane walks over
// all of them. A floor is a key (run_at, id) in memory from which claims start
// instead.
//
// A floor is only a hint. Rows may come in below it: a transaction commits late, a
// job is given back, a lock is released. So the head is looked at on the recorder's
// connection, at most a twentieth of the time, and what is found below the floor is
// claimed by id; and an idle look always starts at the head. A lane whose head look
// is cheap has no floor at all.

const (
	floorFrom  = 500 * time.Microsecond // a head look that costs more makes a floor
	floorUntil = 250 * time.Microsecond // one that costs less ends it
	floorGap   = 5 * time.Millisecond   // between head looks of a lane with a floor
	floorProbe = 20 * time.Millisecond  // between those of a busy lane without one
	// floorLag keeps the floor behind the clock: transactions that commit in another
	// order than they began put rows a little below the newest key.
	floorLag = 50 * time.Millisecond
)

var (
	lowest  = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	highest = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// A floor belongs to a lane; the engine's lock guards it.
type floor struct {
	set    bool
	at     time.Time // together with id: the highest key claimed
	id     int64
	rows   int           // claimed since the last head look
	looked time.Time     // when that began
	cost   time.Duration // what it cost the server
}

// start is the key from which a claim starts.
func (f *floor) start(fromHead bool) (time.Time, int64) {
	if !f.set || fromHead || f.at.IsZero() {
		return lowest, 0
	}
	return f.at, f.id
}

// advance notes a claim's keys. A full claim tells exactly how far the lane was
// taken, also when that is below the old floor; a short one only that nothing was left
// up to there. now is the database's clock: a floor above it (the clock was set back)
// would hide every new job.
func (f *floor) advance(at time.Time, id int64, n int, full bool, now time.Time) {
	f.rows += n
	if lag := now.Add(-floorLag); at.After(lag) {
		at, id = lag, 0
	}
	if n > 0 && (full || keyLess(f.at, f.id, at, id)) {
		f.at, f.id = at, id
	}
	if f.at.After(now) {
		f.at, f.id = time.Time{}, 0
	}
}

func keyLess(at1 time.Time, id1 int64, at2 time.Time, id2 int64) bool {
	return at1.Before(at2) || at1.Equal(at2) && id1 < id2
}

// due says when the lane's head is to be looked at; zero is not at all.
func (f *floor) due() time.Time {
	switch {
	case f.rows == 0:
		return time.Time{}
	case f.set:
		return f.looked.Add(max(floorGap, 20*f.cost))
	case f.rows < 1000:
		return time.Time{}
	}
	return f.looked.Add(max(floorProbe, 20*f.cost))
}

// dropFloors forgets all floors: at an error nothing is known about what was seen.
func (e *engine) dropFloors() {
	for _, t := range e.tasks {
		for _, l := range t.lanes {
			l.floor.at, l.floor.id = time.Time{}, 0
		}
	}
}

// hasFloors says whether any claim would start above its lane's head.
func (e *engine) hasFloors() bool {
	for _, t := range e.tasks {
		for _, l := range t.lanes {
			if l.floor.set && !l.floor.at.IsZero() {
				return true
			}
		}
	}
	return false
}

// prune forgets lanes that nothing is known of, so that a task with ever new lanes doesn't
// grow for ever.
func (t *taskState) prune() {
	if len(t.lanes) < 1000 {
		return
	}
	maps.DeleteFunc(t.lanes, func(_ string, l *lane) bool {
		return !l.queued && l.buffer.len() == 0 && !l.floor.set
	})
}

// headSQL looks at the heads of lanes, below the key given, and measures itself. The
// order of evaluation is that of the target list; offset 0 keeps it.
const headSQL = `
select l.ord::int, h.ids, (extract(epoch from clock_timestamp() - h.began) * 1000000)::bigint
from rows from (unnest($1::text[]), unnest($2::text[]), unnest($3::timestamptz[]), unnest($4::bigint[]), unnest($5::int[]))
  with ordinality as l (task, lane, floor_at, floor_id, want, ord)
cross join lateral (
  select clock_timestamp() as began, array(
    select p.id
    from rebase.jobs p
    where p.finished_at is null and p.crashes = 0
    and p.status = 'pending'
    and p.task = l.task and p.lane = l.lane
    and p.run_at <= now()
    and (p.run_at, p.id) < (l.floor_at, l.floor_id)
    order by p.run_at, p.id
    limit l.want) as ids
  offset 0
) h`

// A headLook is one lane's turn.
type headLook struct {
	lane *lane
	ids  []int64
	cost time.Duration
	set  bool
}

// lookAtHeads looks at the heads of those lanes whose turn it is.
func (e *engine) lookAtHeads(ctx context.Context, looks []headLook) error {
	var tasks, names []string
	var ats []time.Time
	var ids []int64
	var wants []int32
	e.mu.Lock()
	for i := range looks {
		l := looks[i].lane
		at, id, want := highest, int64(0), int32(1)
		if l.floor.set && !l.floor.at.IsZero() {
			at, id, want, looks[i].set = l.floor.at, l.floor.id, aheadRows, true
		}
		tasks, names, ats, ids, wants = append(tasks, l.task.name), append(names, l.name), append(ats, at), append(ids, id), append(wants, want)
	}
	e.mu.Unlock()
	err := e.results.round(ctx, e.roundLimit(), statement{headSQL, []any{tasks, names, ats, ids, wants}, func(rows pgx.Rows) error {
		var ord int
		var found []int64
		var us int64
		_, err := pgx.ForEachRow(rows, []any{&ord, &found, &us}, func() error {
			looks[ord-1].ids, looks[ord-1].cost = found, time.Duration(us)*time.Microsecond
			found = nil
			return nil
		})
		return err
	}})
	if err != nil {
		return err
	}
	e.looked(looks)
	return nil
}

// looked takes the answers.
func (e *engine) looked(looks []headLook) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range looks {
		f := &h.lane.floor
		f.cost = h.cost
		switch {
		case h.cost > floorFrom:
			f.set = true
		case h.cost < floorUntil && len(h.ids) == 0 && h.set:
			f.set = false
		}
		if !h.set || len(h.ids) == 0 {
			continue
		}
		if h.lane.task.laneLimit > 0 && h.lane.name != "" {
			f.at, f.id = time.Time{}, 0 // a claim by id would not count the lane's running jobs
		} else {
			e.stragglers = append(e.stragglers, h.ids...)
		}
		e.look.more = true
		e.claimSignal.set()
	}
}

// headLooksDue collects the lanes whose heads are to be looked at now, and tells when
// the next one is.
func (e *engine) headLooksDue(now time.Time) (due []headLook, next time.Time) {
	for _, t := range e.tasks {
		for _, l := range t.lanes {
			when := l.floor.due()
			if when.IsZero() {
				continue
			}
			if when.After(now) || len(due) == 32 {
				next = earlier(next, when)
				continue
			}
			l.floor.looked, l.floor.rows = now, 0
			due = append(due, headLook{lane: l})
		}
	}
	return due, next
}
