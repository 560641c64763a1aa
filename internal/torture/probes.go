//go:build unix

// The quiet between two rounds of chaos. First the queue must get empty: what the faults
// left behind comes back within one lease and some seconds. Then single jobs are enqueued,
// each when the last has been run, in four ways, on a queue on which nothing else happens
// but schedules: what an idle worker doesn't hear of, it would find only after half a
// minute.

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rebasejobs/rebase"
)

// quiet drains and probes.
func (r *run) quiet(ctx context.Context, random *rand.Rand) {
	from := time.Now()
	straggle := r.straggler(ctx)
	empty, left := r.awaitEmpty(ctx)
	if !empty {
		straggle(ctx, from)
		r.record.note(note{Kind: noteStuck, From: from.UnixMicro(), Text: left})
		return
	}
	r.record.note(note{Kind: noteEmpty, From: from.UnixMicro(), Text: left})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = pause(ctx, 1500*time.Millisecond) // they have to prove that they hear
	if id := straggle(ctx, from); id != 0 && r.awaitJob(ctx, id) != nil || !r.fleet.complete() {
		return
	}
	queue := rebase.New(r.direct, nil)
	for until := time.Now().Add(quietTime * 2 / 3); ctx.Err() == nil && time.Now().Before(until); {
		n := r.jobs.n.Add(1)
		id, err := r.probe(ctx, queue, random.IntN(4), n)
		if err != nil {
			r.record.note(note{Kind: noteEnqueue, N: n, Task: taskProbe, What: unknown})
			continue
		}
		if r.awaitJob(ctx, id) != nil {
			return
		}
		_ = pause(ctx, between(random, 10*time.Millisecond, 400*time.Millisecond)) // the loop asks the clock
	}
}

// straggler enqueues in a transaction while everybody is busy, so that nobody has to be told.
// It returns what commits that when all have fallen asleep: they must find it by themselves,
// about as long after as the transaction took.
func (r *run) straggler(ctx context.Context) (commit func(ctx context.Context, from time.Time) (id int64)) {
	none := func(context.Context, time.Time) int64 { return 0 }
	n := r.jobs.n.Add(1)
	tx, err := r.direct.Begin(ctx)
	if err != nil {
		return none
	}
	got, err := rebase.New(r.direct, nil).EnqueueTx(ctx, tx, taskProbe, payload{N: n, Does: doesOK}, nil)
	if err != nil {
		rollBack(ctx, tx)
		return none
	}
	return func(ctx context.Context, from time.Time) int64 {
		if tx.Commit(ctx) != nil {
			r.record.note(note{Kind: noteEnqueue, N: n, Task: taskProbe, What: unknown})
			return 0
		}
		r.record.note(note{Kind: noteEnqueue, N: n, Job: got.ID, Task: taskProbe, What: committed})
		r.record.note(note{Kind: noteProbe, N: n, Job: got.ID, From: from.UnixMicro(), Text: "straggler"})
		return got.ID
	}
}

// awaitEmpty says whether the queue is empty before the time is over, and what was last
// seen to be left.
func (r *run) awaitEmpty(ctx context.Context) (empty bool, left string) {
	ctx, cancel := context.WithTimeout(ctx, r.Visibility+patience)
	defer cancel()
	for {
		var unfinished, claims int
		var example string
		err := r.direct.QueryRow(ctx, `
select count(*), (select count(*) from rebase.claims), coalesce(string_agg(id::text, ' '), '')
from (select id from rebase.jobs where finished_at is null limit 20) j`).Scan(&unfinished, &claims, &example)
		if err == nil && unfinished == 0 && claims == 0 {
			return true, left
		}
		left = fmt.Sprintf("%d claims; unfinished: %s", claims, example)
		if err != nil {
			left = "the server does not answer: " + err.Error()
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return false, left
		}
	}
}

// probe enqueues one job and notes when that was committed.
func (r *run) probe(ctx context.Context, queue *rebase.Queue, way int, n int64) (id int64, err error) {
	p := payload{N: n, Does: doesOK}
	var got rebase.Enqueued
	var late time.Duration
	switch way {
	case 0:
		got, err = queue.Enqueue(ctx, taskProbe, p, nil)
	case 1:
		late = 300 * time.Millisecond
		got, err = queue.Enqueue(ctx, taskProbe, p, &rebase.EnqueueOptions{Delay: late})
	case 2:
		err = r.direct.QueryRow(ctx, "select rebase.enqueue($1, $2)", taskProbe, p).Scan(&got.ID)
	case 3: // asks for a wake-up long before it commits
		err = pgx.BeginFunc(ctx, r.direct, func(tx pgx.Tx) (err error) {
			if got, err = queue.EnqueueTx(ctx, tx, taskProbe, p, nil); err != nil {
				return err
			}
			return pause(ctx, 400*time.Millisecond)
		})
	}
	if err != nil {
		return 0, err
	}
	r.record.note(note{Kind: noteProbe, N: n, Job: got.ID, At: time.Now().Add(late).UnixMicro(), Text: fmt.Sprint(way)})
	r.record.note(note{Kind: noteEnqueue, N: n, Job: got.ID, Task: taskProbe, What: committed})
	return got.ID, nil
}

// awaitJob waits until the probe is over; retention may have deleted it already.
func (r *run) awaitJob(ctx context.Context, id int64) error {
	for {
		var over bool
		err := r.direct.QueryRow(ctx, "select coalesce((select finished_at is not null from rebase.jobs where id = $1), true)", id).Scan(&over)
		if err == nil && over {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// gauge keeps the queue from growing without end, and notes when the server itself was
// slow although nobody harmed it: a machine that is too busy excuses a late renewal.
func (r *run) gauge(ctx context.Context) {
	for pause(ctx, gaugePeriod) == nil {
		begun := time.Now()
		var n int
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := r.direct.QueryRow(short, "select count(*) from (select from rebase.jobs where finished_at is null limit 2000) j").Scan(&n)
		cancel()
		if took := time.Since(begun); took > r.Visibility/8 {
			r.record.note(note{Kind: noteFault, What: "slow server", On: "server", From: begun.UnixMicro()})
		}
		if err == nil {
			r.jobs.full.Store(n > 1000)
		}
	}
}
