package rebase

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"
)

// What the database refuses to take back. A claim may hold hundreds of jobs, and one row that can't
// be written (a trigger raises, a page is broken) must keep none of its neighbours. So a claim that
// was refused alone goes behind the others and is taken back by parts of its jobs, halved down to
// one, in the same turns. A job that is refused alone stays until the next reap.

// heldSQL lists the jobs that have the token $1. Relies on jobs_pkey.
const heldSQL = `
select i.id
from rebase.claims k
cross join lateral unnest(k.ids) i (id)
cross join lateral (
  select
  from rebase.jobs p
  where p.id = i.id and p.fence = k.token
  limit 1
) j
where k.token = $1`

// A parted claim is taken back by parts.
type parted struct {
	parts   [][]int64 // of its jobs' ids; the next is the last
	refused int       // parts in a row
	kept    []kept
}

// A kept job was refused alone.
type kept struct {
	id  int64
	err error
}

// maxRefused parts in a row are no matter of single rows: the claim is left for the next reap.
const maxRefused = 40

// part makes ready to take back a claim by parts, after it was refused as a whole; parts is false if
// nothing would be gained.
func (e *engine) part(ctx context.Context, token int64, whole error) (parts bool, err error) {
	var ids []int64
	err = e.results.round(ctx, e.roundLimit(), statement{heldSQL, []any{token}, func(rows pgx.Rows) (err error) {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	}})
	switch {
	case err != nil && !isRefused(err):
		return false, err
	case err != nil || len(ids) == 0:
		e.tellRefused(whole)
	case len(ids) == 1:
		e.tellKept(kept{ids[0], whole})
	default:
		// Where bad rows stand together others would not be come by before maxRefused.
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		if e.reaping.parted == nil {
			e.reaping.parted = map[int64]*parted{}
		}
		e.reaping.parted[token] = &parted{parts: halves(ids)}
		return true, nil
	}
	return false, nil
}

func halves(ids []int64) [][]int64 { return [][]int64{ids[len(ids)/2:], ids[:len(ids)/2]} }

// reapPart takes back the claim's next part, and after the last one deletes the claim.
func (e *engine) reapPart(ctx context.Context, token int64, evenFar bool) (done bool, err error) {
	p := e.reaping.parted[token]
	if n := len(p.parts); n > 0 {
		ids := p.parts[n-1]
		err := e.reapBatch(ctx, []int64{token}, ids, evenFar)
		if err != nil && !isRefusal(err) {
			return false, err
		}
		p.parts, p.refused = p.parts[:n-1], p.refused+1
		switch {
		case err == nil:
			p.refused = 0
		case p.refused == maxRefused:
			e.tellRefused(err)
			delete(e.reaping.parted, token)
			return true, nil
		case len(ids) == 1:
			p.kept = append(p.kept, kept{ids[0], err})
		default:
			p.parts = append(p.parts, halves(ids)...)
		}
		return false, nil
	}
	if len(p.kept) == 0 {
		err = e.results.round(ctx, e.roundLimit(), statement{sql: emptyClaimsSQL, args: []any{[]int64{token}}})
	}
	if isRefused(err) {
		e.tellRefused(err)
	} else if err != nil {
		return false, err
	}
	e.tellKept(p.kept...)
	delete(e.reaping.parted, token)
	return true, nil
}

func (e *engine) tellRefused(err error) {
	e.log.Error("rebase: the jobs of a claim can't be taken back; it is tried again", "error", err, "worker", e.id)
}

// tellKept says it once of each job that is refused at one reap after the other.
func (e *engine) tellKept(jobs ...kept) {
	r := &e.reaping
	for _, k := range jobs {
		if !slices.Contains(r.said, k.id) && !slices.Contains(r.kept, k.id) { // RunOnce reaps what it owes besides
			e.log.Error("rebase: a job can't be taken back; it is tried again", "job_id", k.id, "error", k.err, "worker", e.id)
		}
		r.kept = append(r.kept, k.id)
	}
}
