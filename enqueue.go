package rebase

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// How a job gets into the table. Everything that can be wrong with an item is
// found here, before any SQL, so that the caller's transaction lives. Then one
// function inserts: a plain insert for one job, because the general form would
// cost it a third of its speed, and one statement over arrays for many.
//
// These statements run in the caller's transaction, under whatever search_path it
// has: every function, type and operator is named with its schema.

// EnqueueOptions are the options of one job. Nil, and every zero field, is the
// default.
type EnqueueOptions struct {
	// Delay is how long to wait from now, by the database's clock. Zero is at once.
	Delay time.Duration
	// RunAt is when to run, as an instant. If zero, Delay decides; both are an
	// error. One in the past is taken as it is, before jobs that came earlier.
	RunAt time.Time
	// MaxAttempts is how often the job is tried. If zero, 3.
	MaxAttempts int
	// IdempotencyKey allows one unfinished (pending or running) job for each task
	// and key; "" is no key. An event that arrives while its key is *running* is a
	// duplicate too: put what tells events apart into the key. Once the job has
	// ended the key can be used again. At most 1 MiB.
	IdempotencyKey string
	// Lane is the tenant, endpoint or customer that the job belongs to: lanes of a
	// task share its slots fairly. At most 255 bytes.
	Lane string
	// Meta travels with the job, for tracing and the like; 16 KiB at most.
	Meta map[string]string
}

// An Item is a job for EnqueueMany.
type Item struct {
	Task    string
	Payload any
	Options *EnqueueOptions
}

// Enqueued is what became of an item.
type Enqueued struct {
	// ID of the job made or, for a duplicate, of the job that has the key. It is 0
	// for a duplicate whose job can't be seen: it ended in the meantime, or is newer
	// than the snapshot of the caller's transaction, or Enqueue and EnqueueMany could
	// not look for it once their jobs were there.
	ID        int64
	Duplicate bool
}

// A jobRow is an item that has been checked and encoded.
type jobRow struct {
	task, lane, payload string
	meta, key           *string
	hash                []byte // nil without a key
	runAt               *time.Time
	delay               string // an interval
	atOnce              bool   // neither runAt nor delay
	maxAttempts         int32
	slot                *time.Time // set by schedules
	zone                *string
}

// maxBatch is half of what the server takes as one message: it closes the connection at more, and
// with it the caller's transaction. In pgx's text modes a quote takes two bytes.
const maxBatch = 512 << 20

// encode checks and encodes all items.
func (q *Queue) encode(items []Item) ([]jobRow, error) {
	rows := make([]jobRow, len(items))
	size := 0
	for i, item := range items {
		field, reason := rows[i].encode(item, q.maxPayload)
		if size += rows[i].size(); reason == "" && size > q.maxBatch {
			field, reason = "payload", fmt.Sprintf("the batch has more than %d bytes up to this item; make several of it", q.maxBatch)
		}
		if reason != "" {
			refused := &PayloadError{Index: i, Task: storable(item.Task, 100), Field: field, Reason: reason}
			if len(items) == 1 {
				refused.call = "enqueue"
			}
			return nil, refused
		}
	}
	return rows, nil
}

func (r *jobRow) encode(item Item, maxPayload int) (field, reason string) {
	opts := item.Options
	if opts == nil {
		opts = new(EnqueueOptions)
	}
	if reason := checkTask(item.Task); reason != "" {
		return "task", reason
	}
	if reason := checkLane(opts.Lane); reason != "" {
		return "lane", reason
	}
	if reason := checkText(opts.IdempotencyKey, 1<<20); reason != "" {
		return "idempotency_key", reason
	}
	if field, reason := r.encodeTimes(opts); reason != "" {
		return field, reason
	}
	if opts.MaxAttempts < 0 || opts.MaxAttempts > math.MaxInt32 {
		return "max_attempts", fmt.Sprintf("%d is not between 1 and %d (0 is the default, 3)", opts.MaxAttempts, math.MaxInt32)
	}
	meta, reason := encodeMeta(opts.Meta)
	if reason != "" {
		return "meta", reason
	}
	payload, reason := encodePayload(item.Payload, maxPayload)
	if reason != "" {
		return "payload", reason
	}
	r.task, r.lane, r.payload, r.maxAttempts = item.Task, opts.Lane, string(payload), int32(opts.MaxAttempts)
	if r.maxAttempts == 0 {
		r.maxAttempts = 3
	}
	if meta != nil {
		r.meta = new(string(meta))
	}
	if opts.IdempotencyKey != "" {
		r.key, r.hash = &opts.IdempotencyKey, keyHash(opts.IdempotencyKey)
	}
	return "", ""
}

// size is what the job takes in a message, about: its texts, and what is short in every job.
func (r *jobRow) size() int {
	size := 100 + len(r.task) + len(r.lane) + len(r.payload)
	for _, text := range []*string{r.meta, r.key} {
		if text != nil {
			size += len(*text)
		}
	}
	return size
}

func (r *jobRow) encodeTimes(opts *EnqueueOptions) (field, reason string) {
	switch {
	case opts.Delay != 0 && !opts.RunAt.IsZero():
		return "run_at", "both a delay and a run time are given"
	case opts.Delay < 0:
		return "delay", opts.Delay.String() + " is negative"
	case opts.Delay > maxDelay:
		return "delay", opts.Delay.String() + " is longer than ten years"
	}
	r.delay, r.atOnce = interval(opts.Delay), opts.Delay == 0 && opts.RunAt.IsZero()
	if opts.RunAt.IsZero() {
		return "", ""
	}
	t := opts.RunAt.UTC().Truncate(time.Microsecond) // the server would round up, beyond the year 9999 even
	if y := t.Year(); y < 1 || y > 9999 {
		return "run_at", fmt.Sprintf("year %d is not between 1 and 9999", y)
	}
	r.runAt = &t
	return "", ""
}

// keyHash is what the unique index holds of a key.
func keyHash(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:16]
}

// interval writes a duration as PostgreSQL reads it, whatever the pool's exec mode.
func interval(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}

// querier is what pgx.Tx, *pgx.Conn and *pgxpool.Pool have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// insertJobs makes the jobs and tells which were duplicates, and of what.
func insertJobs(ctx context.Context, db querier, rows []jobRow, mode NotifyMode) ([]Enqueued, error) {
	done, err := insert(ctx, db, rows, mode)
	if err == nil {
		err = findDuplicates(ctx, db, rows, done)
	}
	if err != nil {
		return nil, enqueueError(err)
	}
	return done, nil
}

// insert makes the jobs and tells which were duplicates. The ids of those mean nothing yet.
func insert(ctx context.Context, db querier, rows []jobRow, mode NotifyMode) ([]Enqueued, error) {
	if len(rows) == 1 {
		return insertOne(ctx, db, &rows[0], mode)
	}
	return insertMany(ctx, db, rows, mode)
}

func enqueueError(err error) error { return fmt.Errorf("rebase: enqueue: %w", withAdvice(err)) }

// The conflict target is spelled out: a bare "do nothing" would also swallow a
// conflict of the primary key (a sequence behind after a restore) and lose the job.
// The subselect asks the gate once, and only if a row went in.
const insertOneSQL = `
insert into rebase.jobs (task, lane, payload, meta, run_at, max_attempts, idempotency_key, key_hash, slot, slot_zone)
values ($1, $2, $3::pg_catalog.jsonb, $4::pg_catalog.jsonb,
  coalesce($5::pg_catalog.timestamptz, pg_catalog.timestamptz_pl_interval(pg_catalog.statement_timestamp(), $6::pg_catalog.interval)),
  $7::pg_catalog.int4, $8, $9::pg_catalog.bytea, $10::pg_catalog.timestamptz, $11)
on conflict (task, key_hash) where finished_at is null and key_hash is not null do nothing
returning id, (select rebase.wake($1, $12::pg_catalog.int4))`

// The commonest job is due at once and has no key: nothing to conflict with, and half the
// parameters. That is a tenth of the work of the server and of the client.
const insertPlainSQL = `
insert into rebase.jobs (task, lane, payload, meta, run_at, max_attempts)
values ($1, $2, $3::pg_catalog.jsonb, $4::pg_catalog.jsonb, pg_catalog.statement_timestamp(), $5::pg_catalog.int4)
returning id, (select rebase.wake($1, $6::pg_catalog.int4))`

// insert is the statement for this one job. No row comes back for a duplicate.
func (r *jobRow) insert(mode NotifyMode) (sql string, args []any) {
	if r.atOnce && r.key == nil && r.slot == nil {
		return insertPlainSQL, []any{r.task, r.lane, r.payload, r.meta, r.maxAttempts, int32(mode)}
	}
	return insertOneSQL, []any{r.task, r.lane, r.payload, r.meta, r.runAt, r.delay, r.maxAttempts, r.key, r.hash, r.slot, r.zone, int32(mode)}
}

func insertOne(ctx context.Context, db querier, r *jobRow, mode NotifyMode) ([]Enqueued, error) {
	var id int64
	var asked *string
	sql, args := r.insert(mode)
	err := db.QueryRow(ctx, sql, args...).Scan(&id, &asked)
	if err == pgx.ErrNoRows {
		return []Enqueued{{Duplicate: true}}, nil
	}
	return []Enqueued{{ID: id}}, err
}

// Ids are drawn first, so that what went in can be matched to the items; and the
// rows go in ordered by key, so that two batches with the same keys in opposite
// orders can't deadlock: by bytes, as rebase.enqueue_many has them, whatever the
// database's collation makes of the hashes' digits. The gate is asked once for each task.
const insertManySQL = `
with item as materialized (
  select pg_catalog.nextval('rebase.jobs_id_seq'::pg_catalog.regclass) as id, u.*
  from rows from (
    pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]), pg_catalog.unnest($3::pg_catalog.text[]),
    pg_catalog.unnest($4::pg_catalog.text[]), pg_catalog.unnest($5::pg_catalog.timestamptz[]), pg_catalog.unnest($6::pg_catalog.text[]),
    pg_catalog.unnest($7::pg_catalog.int4[]), pg_catalog.unnest($8::pg_catalog.text[]), pg_catalog.unnest($9::pg_catalog.text[])
  ) with ordinality as u(task, lane, payload, meta, run_at, delay, max_attempts, key, hash, ord)
), made as (
  insert into rebase.jobs (id, task, lane, payload, meta, run_at, max_attempts, idempotency_key, key_hash)
  select id, task, lane, payload::pg_catalog.jsonb, meta::pg_catalog.jsonb,
    coalesce(run_at, pg_catalog.timestamptz_pl_interval(pg_catalog.statement_timestamp(), delay::pg_catalog.interval)),
    max_attempts, key, pg_catalog.decode(hash, 'hex')
  from item
  order by task collate pg_catalog."C", hash collate pg_catalog."C", ord
  on conflict (task, key_hash) where finished_at is null and key_hash is not null do nothing
  returning id, task
), asked as materialized (
  select rebase.wake(t.task, $10::pg_catalog.int4) as answer
  from (select task from made group by task) t
)
select item.id, made.id is null, (select pg_catalog.count(answer) from asked)
from item left join made on made.id operator(pg_catalog.=) item.id
order by item.ord`

// A batch without keys has no conflicts and needs no join: two fifths faster. The ids are drawn in
// the order of the rows (insert ... select ... order by keeps it); the rows may come back in
// another. The subselect asks the gate once for each task, when the first row is in.
const insertPlainManySQL = `
insert into rebase.jobs (task, lane, payload, meta, run_at, max_attempts)
select u.task, u.lane, u.payload::pg_catalog.jsonb, u.meta::pg_catalog.jsonb,
  coalesce(u.run_at, pg_catalog.timestamptz_pl_interval(pg_catalog.statement_timestamp(), u.delay::pg_catalog.interval)), u.max_attempts
from rows from (
  pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]), pg_catalog.unnest($3::pg_catalog.text[]),
  pg_catalog.unnest($4::pg_catalog.text[]), pg_catalog.unnest($5::pg_catalog.timestamptz[]), pg_catalog.unnest($6::pg_catalog.text[]),
  pg_catalog.unnest($7::pg_catalog.int4[])
) with ordinality as u(task, lane, payload, meta, run_at, delay, max_attempts, ord)
order by u.ord
returning id, (
  select pg_catalog.count(rebase.wake(t.task, $8::pg_catalog.int4))
  from (select task from pg_catalog.unnest($1::pg_catalog.text[]) as one(task) group by task) t
)`

func insertMany(ctx context.Context, db querier, in []jobRow, mode NotifyMode) ([]Enqueued, error) {
	n := len(in)
	tasks, lanes, payloads, delays := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	metas, keys, hashes := make([]*string, n), make([]*string, n), make([]*string, n)
	runAts, max := make([]*time.Time, n), make([]int32, n)
	keyed := false
	for i := range in {
		r := &in[i]
		tasks[i], lanes[i], payloads[i], delays[i] = r.task, r.lane, r.payload, r.delay
		metas[i], keys[i], runAts[i], max[i] = r.meta, r.key, r.runAt, r.maxAttempts
		if r.hash != nil {
			hashes[i], keyed = new(hex.EncodeToString(r.hash)), true
		}
	}
	if !keyed {
		return insertPlainMany(ctx, db, tasks, lanes, payloads, metas, runAts, delays, max, int32(mode))
	}
	rows, err := db.Query(ctx, insertManySQL, tasks, lanes, payloads, metas, runAts, delays, max, keys, hashes, int32(mode))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Enqueued, err error) {
		var asked int64
		err = row.Scan(&e.ID, &e.Duplicate, &asked)
		return e, err
	})
}

// insertPlainMany returns the ids in the order of the items.
func insertPlainMany(ctx context.Context, db querier, args ...any) ([]Enqueued, error) {
	rows, err := db.Query(ctx, insertPlainManySQL, args...)
	if err != nil {
		return nil, err
	}
	done, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Enqueued, err error) {
		var asked int64
		err = row.Scan(&e.ID, &asked)
		return e, err
	})
	slices.SortFunc(done, func(a, b Enqueued) int { return cmp.Compare(a.ID, b.ID) })
	return done, err
}

// Relies on jobs_key. A statement of its own, because the insert's snapshot can be
// older than the rival's commit.
const findDuplicatesSQL = `
select u.ord, j.id
from rows from (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) with ordinality u(task, hash, ord)
cross join lateral (
  select id
  from rebase.jobs
  where task operator(pg_catalog.=) u.task
  and key_hash operator(pg_catalog.=) pg_catalog.decode(u.hash, 'hex')
  and finished_at is null and key_hash is not null
  limit 1
) j`

// findDuplicates fills in the ids of the jobs that have the duplicates' keys.
func findDuplicates(ctx context.Context, db querier, in []jobRow, done []Enqueued) error {
	var tasks, hashes []string
	var at []int
	for i := range done {
		if done[i].Duplicate {
			done[i].ID = 0
			tasks, hashes, at = append(tasks, in[i].task), append(hashes, hex.EncodeToString(in[i].hash)), append(at, i)
		}
	}
	if len(at) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, findDuplicatesSQL, tasks, hashes)
	if err != nil {
		return err
	}
	var ord, id int64
	_, err = pgx.ForEachRow(rows, []any{&ord, &id}, func() error {
		done[at[ord-1]].ID = id
		return nil
	})
	return err
}
