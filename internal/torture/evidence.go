//go:build unix

// The evidence is all that a run has left behind, brought into the shape in which the
// rules ask for it: each job's states from the audit, cut into spells (one for each claim),
// each spell with the handler's run from the record, and what was done to whom and when.

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

type evidence struct {
	plan
	notes     []note
	faults    []note // those of the notes
	jobs      map[int64]*history
	ids       []int64 // of all jobs, sorted
	processes map[string]*process
	effects   []effect
	archived  map[[2]int64]int // how often, by job and transaction
	fired     map[string]int   // schedule and slot, as in the jobs' keys
	schedules []scheduleEnd
	claims    int // left in the ledger
	report    *report
	loss      *loss // nil without a failover
	cut       int64 // µs; when the server was killed for good whose evidence this is; 0: never
}

// A history is all that is known of a job.
type history struct {
	id     int64
	states []*state
	spells []*spell
	runs   []*handlerRun // in the order of their begin
}

// A spell is the time from a claim to whatever took the job out of running.
type spell struct {
	before *state // the claim
	claim  *state
	last   *state // the claim or the last renewal
	left   *state // nil: never
	how    string // it was left
	run    *handlerRun
}

// A handlerRun is one run of a handler by the record.
type handlerRun struct {
	begin note
	end   *note // nil: none was noted
}

// A process is a worker process by the record. Times are µs, 0 for never.
type process struct {
	name, slot  string
	start, gone int64
	exit        string
	killed      int64 // SIGKILL was sent
	term        int64 // SIGTERM was sent
	died        bool  // by a job that kills its process
	harm        []window
}

// A window is a time in which something was wrong.
type window struct {
	from, to int64
	what     string
}

type effect struct {
	Job, Fence int64
	Child      bool
	XID        int64
}

type scheduleEnd struct {
	ID            string
	Created, Next int64
	Missed        int64
	Now           int64
}

// How a spell ended.
const (
	leftSucceeded = "succeeded"
	leftFailed    = "failed"
	leftDead      = "dead"
	leftSnoozed   = "snoozed"
	leftSetback   = "setback"
	leftOff       = "called off" // the handler returned ErrCancelled
	leftReleased  = "released"
	leftReaped    = "reaped"
	leftCancelled = "cancelled" // by an operator
)

// gather loads everything.
func (r *run) gather(ctx context.Context) (*evidence, error) {
	e := newEvidence(r.plan)
	var err error
	if e.notes, err = readRecords(r.dir); err != nil {
		return nil, err
	}
	states, err := e.load(ctx, r.direct)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	if r.old != nil {
		old := newEvidence(r.plan)
		oldStates, commits, err := r.witness(ctx, old)
		if err != nil {
			return nil, fmt.Errorf("check: the old primary: %w", err)
		}
		if err := writeLines(filepath.Join(r.dir, "audit.old"), oldStates); err != nil {
			return nil, err
		}
		e.compare(old, states, oldStates, commits)
	}
	e.sort(states)
	return e, writeLines(filepath.Join(r.dir, "audit"), states)
}

func newEvidence(p plan) *evidence {
	return &evidence{
		plan: p, report: newReport(), jobs: map[int64]*history{}, processes: map[string]*process{},
		archived: map[[2]int64]int{}, fired: map[string]int{},
	}
}

// A database is a pool or a connection.
type database interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}

// load returns the audit and takes in what else there is.
func (e *evidence) load(ctx context.Context, from database) (states []*state, err error) {
	err = pgx.BeginTxFunc(ctx, from, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if states, err = loadAudit(ctx, tx); err != nil {
			return err
		}
		return e.loadRest(ctx, tx)
	})
	return states, err
}

// writeLines keeps the audit beside the record, since the server goes with the run.
func writeLines[T any](name string, all []T) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	for _, x := range all {
		if err := json.NewEncoder(out).Encode(x); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return errors.Join(out.Flush(), file.Close())
}

func (e *evidence) loadRest(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, "select job, fence, child, xid from torture.effects")
	if err != nil {
		return err
	}
	if e.effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[effect]); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, "select job, xid from torture.archived"); err != nil {
		return err
	}
	var key [2]int64
	if _, err = pgx.ForEachRow(rows, []any{&key[0], &key[1]}, func() error { e.archived[key]++; return nil }); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, `
select schedule_id || '@' || to_char(slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from rebase.schedule_slots`); err != nil {
		return err
	}
	var slot string
	if _, err = pgx.ForEachRow(rows, []any{&slot}, func() error { e.fired[slot]++; return nil }); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, `
select id, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from next_slot) * 1000000)::bigint, missed,
  (extract(epoch from clock_timestamp()) * 1000000)::bigint
from rebase.schedules order by id`); err != nil {
		return err
	}
	if e.schedules, err = pgx.CollectRows(rows, pgx.RowToStructByPos[scheduleEnd]); err != nil {
		return err
	}
	return tx.QueryRow(ctx, "select count(*) from rebase.claims").Scan(&e.claims)
}

// sort builds histories, spells and processes.
func (e *evidence) sort(states []*state) {
	e.sortStates(states)
	e.sortNotes()
	e.pair()
	if e.loss != nil {
		e.loss.old.pair()
		e.loss.old.processes, e.loss.old.faults = e.processes, e.faults
	}
}

// sortStates builds histories and spells.
func (e *evidence) sortStates(states []*state) {
	for _, s := range states {
		h := e.jobs[s.ID]
		if h == nil {
			h = &history{id: s.ID}
			e.jobs[s.ID] = h
			e.ids = append(e.ids, s.ID)
		}
		h.states = append(h.states, s)
	}
	slices.Sort(e.ids)
	for _, h := range e.jobs {
		h.cut()
	}
}

// pair finds the handler's run of each spell.
func (e *evidence) pair() {
	for _, h := range e.jobs {
		for _, s := range h.spells {
			for _, r := range h.runs {
				if r.begin.Fence == s.claim.Fence && s.run == nil {
					s.run = r
				}
			}
		}
	}
}

// spell finds a job's spell by its fence, nil for none.
func (e *evidence) spell(job, fence int64) *spell {
	if h := e.jobs[job]; h != nil {
		for _, s := range h.spells {
			if s.claim.Fence == fence {
				return s
			}
		}
	}
	return nil
}

func (e *evidence) sortNotes() {
	open := map[[2]int64]*handlerRun{}
	for i := range e.notes {
		n := &e.notes[i]
		switch n.Kind {
		case noteBegin:
			r := &handlerRun{begin: *n}
			open[[2]int64{n.Job, n.Fence}] = r
			if e.loss.takes(r) {
				continue
			}
			if h := e.jobs[n.Job]; h != nil {
				h.runs = append(h.runs, r)
			} else {
				e.wrong("results", n.Job, "a job ran that is not in the audit: n %d, by %s", n.N, n.Process)
			}
		case noteEnd:
			if r := open[[2]int64{n.Job, n.Fence}]; r != nil {
				r.end = n
			}
			if n.What == cameDead {
				e.process(n.Process).died = true
			}
		case noteStart:
			p := e.process(n.On)
			p.start, p.slot = n.At, n.What
		case noteDud:
			e.report.facts["duds: "+n.What]++
		case noteExit:
			p := e.process(n.On)
			p.gone, p.exit = n.At, n.What
		}
	}
	for _, n := range e.notes {
		if n.Kind == noteFault {
			e.faults = append(e.faults, n)
			e.report.faults[n.What]++
		}
	}
	for _, n := range e.notes {
		e.sortHarm(n)
	}
}

// process finds the process of a name, or of a worker's id, which begins with it.
func (e *evidence) process(name string) *process {
	name, _, _ = strings.Cut(name, "-")
	p := e.processes[name]
	if p == nil {
		p = &process{name: name}
		e.processes[name] = p
	}
	return p
}

// cut finds the spells.
func (h *history) cut() {
	var now *spell
	var before *state
	for _, s := range h.states {
		switch {
		case s.Op == "U" && s.Status == "running" && before != nil && before.Status != "running":
			now = &spell{before: before, claim: s, last: s}
			h.spells = append(h.spells, now)
		case now == nil:
		case s.Op == "U" && s.Status == "running":
			now.last = s
		default:
			now.left, now.how = s, leaving(now.last, s)
			now = nil
		}
		before = s
	}
}

// leaving says how a job was taken out of running, "" if in no way that there is.
func leaving(last, s *state) string {
	switch {
	case s.Op != "U":
		return ""
	case s.Fence == -last.Fence && s.Status == "pending" && s.Attempts < last.Attempts && s.Setbacks > last.Setbacks:
		return leftSetback
	case s.Fence == -last.Fence && s.Status == "pending" && s.Attempts < last.Attempts:
		return leftSnoozed
	case s.Fence == -last.Fence:
		return map[string]string{"pending": leftFailed, "failed": leftDead, "succeeded": leftSucceeded, "cancelled": leftOff}[s.Status]
	case s.Fence != 0:
		return ""
	case s.Crashes > last.Crashes:
		return leftReaped
	case s.Status == "cancelled":
		return leftCancelled
	case s.Status == "pending":
		return leftReleased
	}
	return ""
}

// timedOut says whether a spell was ended by the attempt's timeout. It is a setback where the
// worker had lost its connection.
func (s *spell) timedOut() bool {
	return (s.how == leftFailed || s.how == leftDead || s.how == leftSetback) && strings.HasPrefix(s.left.Error, "attempt timed out")
}

func seconds(µs int64) string { return fmt.Sprintf("%.3f s", time.Duration(µs*1000).Seconds()) }
