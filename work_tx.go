package rebase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rebasejobs/rebase/internal/intest"
)

// One attempt in a caller's transaction, for package rebasetest: a job is claimed, run and
// recorded by the code and the statements of a worker, but nothing is committed and no worker
// runs. None of it is exported; internal/intest is the door.
//
// Two things differ. A worker's rounds are short transactions whose statements read now();
// a test's transaction began before its jobs were enqueued, so here they read
// statement_timestamp(). And the handler shares the transaction with the bookkeeping, so it
// is waited for, however late it is.

func init() { intest.JobsTx, intest.WorkTx = jobsTx, workTx }

// long makes a statement of a round one for a transaction that began long ago.
func long(sql string) string { return strings.ReplaceAll(sql, "now()", "statement_timestamp()") }

const jobsTxSQL = `select ` + jobColumns + ` from rebase.jobs j where j.task = $1 order by j.id`

func jobsTx(ctx context.Context, tx pgx.Tx, task string) ([]*Job, error) {
	return readTx(ctx, tx, jobsTxSQL, task)
}

func readTx(ctx context.Context, tx pgx.Tx, sql string, args ...any) (jobs []*Job, err error) {
	err = statement{sql, args, func(rows pgx.Rows) error {
		for rows.Next() {
			j := new(Job)
			if err := readJob(rows, j, nil); err != nil {
				return err
			}
			jobs = append(jobs, j)
		}
		return nil
	}}.runTx(ctx, tx)
	return jobs, err
}

func (st statement) runTx(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, st.sql, st.args...)
	if err != nil {
		return withAdvice(err)
	}
	defer rows.Close()
	if err := st.rows(rows); err != nil {
		return err
	}
	rows.Close()
	return withAdvice(rows.Err())
}

// claimOneTxSQL: the next due job of task $5, or job $6 of that task, due or not. Relies on
// jobs_unfinished and jobs_reaped, or on the primary key.
var claimOneTxSQL = long(`
with nothing as (select)` + claimHead + `
    select p.ctid
    from rebase.jobs p
    where p.finished_at is null and p.status = 'pending'
    and p.task = $5::text
    and case when $6::bigint = 0 then p.run_at <= now() else p.id = $6::bigint end
    and not exists (select from rebase.paused z where z.task = p.task)
    order by p.run_at, p.id
    limit 1
    for update skip locked` + claimTail + `
select * from c`)

func workTx(ctx context.Context, tx pgx.Tx, w *Worker, task string, id int64) (*Job, intest.Outcome, error) {
	e := newEngine(ctx, w, true)
	defer e.hardEnd()
	none := intest.Outcome{}
	if e.byName[task] == nil {
		return nil, none, fmt.Errorf("the worker has no handler for task %q, only for %q", task, e.names)
	}
	a, err := e.claimTx(ctx, tx, task, id)
	if err != nil || a == nil {
		return nil, none, err
	}
	if err := e.runTx(ctx, tx, a); err != nil {
		return nil, none, err
	}
	o, err := e.recordTx(ctx, tx, a)
	if err != nil {
		return nil, none, fmt.Errorf("record the result of job %d: %w", a.job.ID, err)
	}
	jobs, err := readTx(ctx, tx, jobSQL, a.job.ID)
	if err != nil || len(jobs) == 0 {
		return nil, none, fmt.Errorf("read job %d after its attempt: %w", a.job.ID, cmpError(err, ErrNotFound.Error()))
	}
	return jobs[0], o, nil
}

// claimTx takes a job and a slot for it; nil if there is no job.
func (e *engine) claimTx(ctx context.Context, tx pgx.Tx, task string, id int64) (*attempt, error) {
	b := &batch{wanted: 1}
	if err := e.claimStatement(b, claimOneTxSQL, task, id).runTx(ctx, tx); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	if len(b.broken) > 0 {
		return nil, fmt.Errorf("claim: %w", b.broken[0])
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deliverBatch(b, time.Now(), time.Now())
	return e.pick(time.Now()), nil
}

// runTx runs the handler on this goroutine, so that it may end a test, and judges what it
// returned. A savepoint keeps the transaction alive when a statement of the handler's fails in
// it; a worker's bookkeeping would not notice that either.
func (e *engine) runTx(ctx context.Context, tx pgx.Tx, a *attempt) error {
	before, err := tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("savepoint before the handler of job %d: %w", a.job.ID, err)
	}
	handlerCtx, cancel := context.WithCancelCause(e.handlers)
	defer cancel(nil)
	if a.timeout > 0 {
		defer time.AfterFunc(a.timeout, func() { cancel(ErrTimeout) }).Stop()
	}
	returned := call(&jobContext{handlerCtx, a.deadline}, a.lane.task.handler, &a.job)
	cause := context.Cause(handlerCtx)
	if conn := tx.Conn(); conn != nil && conn.PgConn().TxStatus() != 'T' {
		err = before.Rollback(ctx)
	} else {
		err = before.Commit(ctx) // also if the handler failed: what it has done on its own connection stays
	}
	if err != nil {
		return fmt.Errorf("the handler of job %d has broken the transaction (it returned: %v; its context: %v): %w", a.job.ID, returned, cause, err)
	}
	e.mu.Lock()
	completing := a.completing
	e.mu.Unlock()
	o := e.judge(cause, a, completing, returned)
	if cause == ErrTimeout {
		o = e.timeoutOutcome(a)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end(a)
	e.save(a, o)
	return nil
}

// recordTx writes the outcome, unless the row says that CompleteTx has done so or that
// somebody has taken the job from the handler.
func (e *engine) recordTx(ctx context.Context, tx pgx.Tx, a *attempt) (intest.Outcome, error) {
	r := &record{others: []*attempt{a}, ended: map[int64]Status{}}
	st := e.recordStatement(r)
	st.sql = long(st.sql)
	if err := st.runTx(ctx, tx); err != nil {
		return intest.Outcome{}, err
	}
	if _, err := tx.Exec(ctx, overSQL, []int64{a.claim.token}, nil); err != nil {
		return intest.Outcome{}, err
	}
	status, recorded := r.ended[a.job.ID]
	if !recorded {
		return e.answerTx(ctx, tx, a)
	}
	o := intest.Outcome{Event: a.outcome.kind, Err: a.outcome.cause} // kinds are called as their events are
	switch status {
	case StatusPending:
		o.Delay = a.outcome.delay
	case StatusFailed:
		o.Event = string(EventDead)
	}
	return o, nil
}

// answerTx: see answered.
func (e *engine) answerTx(ctx context.Context, tx pgx.Tx, a *attempt) (intest.Outcome, error) {
	fences, statuses := make([]*int64, 1), make([]*string, 1)
	if err := answerStatement([]int64{a.job.ID}, fences, statuses).runTx(ctx, tx); err != nil {
		return intest.Outcome{}, err
	}
	err := a.outcome.cause
	if fences[0] == nil || *fences[0] != -a.claim.token {
		return intest.Outcome{Event: string(EventLeaseLost), Err: cmp.Or(err, ErrLeaseLost)}, nil
	}
	if errors.Is(err, errNotCommitted) {
		err = nil // the handler returned nil, and here is its CompleteTx
	}
	return intest.Outcome{Event: string(EventSucceeded), Err: err}, nil
}
