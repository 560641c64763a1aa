package rebase

// A Stepper is a worker's engine without its loops: a test takes one step at a time and
// decides who does what next. Each step is a call of the function that the loops call;
// only the order is the test's. Slots are never started, so that a claimed job waits until
// the test begins it and says what its handler returned.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Stepper belongs to one goroutine.
type Stepper struct {
	e *engine
}

// NewStepper prepares an engine for the worker, which must not run.
func NewStepper(ctx context.Context, w *Worker) *Stepper {
	e := newEngine(ctx, w, false)
	e.listener = nil
	w.opts.Concurrency = 0 // no slot: nothing begins by itself
	return &Stepper{e}
}

// Disconnect drops the engine's connections; the next step connects again.
func (s *Stepper) Disconnect() {
	s.e.claims.drop()
	s.e.results.drop()
}

// Close ends the engine.
func (s *Stepper) Close() {
	s.Disconnect()
	s.e.hardEnd()
}

// A Hold is a claimed job, as the engine knows it.
type Hold struct {
	a *attempt
}

// Job is what the handler gets.
func (h Hold) Job() *Job { return &h.a.job }

// Ahead says that the job was claimed ahead: its row has no started_at.
func (h Hold) Ahead() bool { return h.a.ahead }

// Waiting says that the job has not begun.
func (h Hold) Waiting() bool { return h.a.state == stateBuffered }

// LeaseUntil is how long the worker believes in the lease.
func (h Hold) LeaseUntil() time.Time { return h.a.claim.deadline }

// Settled says that the engine has done with the job.
func (h Hold) Settled() bool { return h.a.state == stateSettled }

// Lost is how many leases the engine knows to have lost.
func (s *Stepper) Lost() int64 { return s.e.counts.Lost }

// Cancelled is how many of its jobs it knows to be cancelled.
func (s *Stepper) Cancelled() int64 { return s.e.counts.Cancelled }

// Claim claims at most n jobs of the task, and perhaps one that was reaped, as one round.
func (s *Stepper) Claim(task string, n int, ahead, reaped bool) ([]Hold, error) {
	t := s.e.byName[task]
	p := &plan{probe: true, room: n, free: n, tasks: []*taskState{t}, wants: []int{n}, reaped: reaped}
	if ahead {
		p.free = 0
	}
	return s.newHolds(func() error { return s.e.claim(p) })
}

// ClaimIDs claims those of the jobs that are due.
func (s *Stepper) ClaimIDs(ids []int64) ([]Hold, error) {
	p := &plan{room: len(ids), free: len(ids), ids: ids}
	return s.newHolds(func() error { return s.e.claim(p) })
}

func (s *Stepper) newHolds(claim func() error) (holds []Hold, err error) {
	before := map[int64]bool{}
	for token := range s.e.held {
		before[token] = true
	}
	if err := claim(); err != nil {
		return nil, err
	}
	for token, c := range s.e.held {
		for i := range c.attempts {
			if !before[token] {
				holds = append(holds, Hold{&c.attempts[i]})
			}
		}
	}
	slices.SortFunc(holds, func(a, b Hold) int { return int(a.a.job.ID - b.a.job.ID) })
	return holds, nil
}

// IdleClaim is the look from the heads of all lanes that precedes a sleep.
func (s *Stepper) IdleClaim(task string, n int) ([]Hold, error) {
	p := &plan{idle: true, head: true, probe: true, room: n, free: n, tasks: []*taskState{s.e.byName[task]}, wants: []int{n}}
	return s.newHolds(func() error { return s.e.claim(p) })
}

// LoseClaim commits a claim whose reply nobody reads.
func (s *Stepper) LoseClaim(task string, n int) error {
	e := s.e
	b := &batch{wanted: n}
	st := e.claimStatement(b, claimSQL, []string{task}, []string{""}, []int32{int32(n)}, []time.Time{lowest}, []int64{0}, n)
	if err := e.claims.round(e.base, e.roundLimit(), st); err != nil {
		return err
	}
	e.lostTokens = append(e.lostTokens, lostToken{token: b.token, lost: time.Now(), until: time.Now().Add(time.Minute)})
	return nil
}

// FindLost gives back what claims with a lost reply hold.
func (s *Stepper) FindLost() error { return s.e.tokenDuty(s.e.base, time.Now()) }

// Missing says whether a claim with a lost reply may still come up.
func (s *Stepper) Missing() bool { return s.e.missing() }

// Later makes lost claims look as if they had been lost for long.
func (s *Stepper) Later() {
	for i := range s.e.lostTokens {
		s.e.lostTokens[i].lost = time.Now().Add(-lostFor)
	}
}

// Begin takes the job out of the buffer as a slot does.
func (s *Stepper) Begin(h Hold) { s.BeginAt(h, time.Now()) }

// BeginAt is Begin at another time.
func (s *Stepper) BeginAt(h Hold, at time.Time) {
	s.e.unbuffer(h.a)
	s.e.begin(h.a, at)
}

// Finish hands over what the job's handler has returned.
func (s *Stepper) Finish(h Hold, err error) {
	s.e.finishLocked(h.a, s.e.judge(nil, h.a, h.a.completing, err), time.Now())
}

// Release gives the waiting jobs back, as at a shutdown.
func (s *Stepper) Release() { s.e.release(func(*attempt) bool { return true }) }

// Record writes results until none is left.
func (s *Stepper) Record() error {
	for range 100 {
		if did, err := s.e.recordResults(s.e.base, time.Now()); err != nil || !did {
			return err
		}
	}
	return fmt.Errorf("results are left: %d finished, %d in doubt, %d for later", len(s.e.outbox), len(s.e.doubtful), len(s.e.later))
}

// DoubtIsOver makes what is kept for later due.
func (s *Stepper) DoubtIsOver() {
	for i := range s.e.later {
		s.e.later[i].at = time.Time{}
	}
}

// RecordUnheard writes results, and the reply to the commit is lost.
func (s *Stepper) RecordUnheard() error { return s.RecordLate(func() {}, true) }

// RecordLate writes results; the reply comes only after meanwhile, or is lost.
func (s *Stepper) RecordLate(meanwhile func(), unheard bool) error {
	r := s.e.takeRecord()
	var statements []statement
	if len(r.quick) > 0 {
		statements = append(statements, s.e.succeedStatement(r))
	}
	if len(r.others) > 0 {
		statements = append(statements, s.e.recordStatement(r))
	}
	err := s.e.results.round(s.e.base, s.e.roundLimit(), statements...)
	meanwhile()
	if unheard {
		s.e.unrecorded(r, nil, &lostError{err: errors.New("the reply was lost")})
	} else {
		s.e.recorded(r)
	}
	return err
}

// Renew is the heartbeat.
func (s *Stepper) Renew() error { return s.e.renew(s.e.base) }

// RenewParts sends what is left of a renewal that was refused, part by part.
func (s *Stepper) RenewParts() error {
	for s.e.due(&s.e.duties.parts, time.Now()) {
		if err := s.e.partDuty(s.e.base, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Reap takes back all claims whose lease has ended.
func (s *Stepper) Reap() error {
	for {
		if err := s.e.reap(s.e.base, 365*24*time.Hour); !s.e.reaping.left() || err != nil {
			return err
		}
	}
}

// ReapTurn is one turn of that, and says whether something is left.
func (s *Stepper) ReapTurn() (more bool, err error) {
	err = s.e.reap(s.e.base, 365*24*time.Hour)
	return s.e.reaping.left(), err
}

// Purge deletes a batch of what has succeeded or was cancelled, and one of dead letters. After a
// job that had to be stepped over it goes on to the end of the half.
func (s *Stepper) Purge() error {
	for _, dead := range []bool{false, true} {
		s.e.sweep = sweep{dead: dead, from: lowest, rows: s.e.sweep.rows}
		for again := true; again; again = s.e.sweep.dead == dead && s.e.sweep.stuck > 0 {
			if err := s.e.purgeDuty(s.e.base, time.Now()); err != nil {
				return err
			}
		}
	}
	return nil
}

// PurgeNext deletes the next batch of the sweep.
func (s *Stepper) PurgeNext() error { return s.e.purgeDuty(s.e.base, time.Now()) }

// PurgeBatch sets the size of the next batch.
func (s *Stepper) PurgeBatch(rows int) { s.e.sweep.rows = rows }

// A LaneFloor is what an engine knows of a lane's head.
type LaneFloor struct {
	f *floor
	l *lane
}

// Floor is that of the lane.
func (s *Stepper) Floor(task, name string) LaneFloor {
	l := s.e.byName[task].lane(name)
	return LaneFloor{&l.floor, l}
}

// InUse says whether claims start from the floor.
func (f LaneFloor) InUse() bool { return f.f.set }

// Use makes a floor, as a head look that was too dear does.
func (f LaneFloor) Use() { f.f.set = true }

// Start is the key from which the next claim starts; the zero time is the head.
func (f LaneFloor) Start() (time.Time, int64) {
	at, id := f.f.start(false)
	if at.Equal(lowest) {
		return time.Time{}, id
	}
	return at, id
}

// Advance takes a claim's highest key into account.
func (f LaneFloor) Advance(at time.Time, id int64, n int, full bool, now time.Time) {
	f.f.advance(at, id, n, full, now)
}

// LookAtHead is one head look; it returns the ids that were found below the floor.
func (s *Stepper) LookAtHead(f LaneFloor) ([]int64, error) {
	err := s.e.lookAtHeads(s.e.base, []headLook{{lane: f.l}})
	found := s.e.stragglers
	s.e.stragglers = nil
	return found, err
}

// FloorInUse says whether the running worker has a floor in the lane.
func FloorInUse(w *Worker, task, lane string) bool {
	e := w.current()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byName[task].lane(lane).floor.set
}

// FloorLag is how far behind the clock a floor stays.
const FloorLag = floorLag

// Ahead is how many jobs the worker would hold in stock for the task, with handlers of this
// mean time, payloads of this size, and claims that take so long.
func Ahead(w *Worker, task string, mean, claim time.Duration, bytes float64) int {
	e := newEngine(context.Background(), w, false)
	defer e.hardEnd()
	t := e.byName[task]
	t.mean, t.bytes, e.look.time = mean, bytes, claim
	return e.ahead(t)
}

// ReapFar takes back a claim that an earlier look found to end in a far future.
func (s *Stepper) ReapFar(token int64) error {
	s.e.reaping.far = []int64{token}
	return s.Reap()
}
