package rebase_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// J24: one bad row never blocks the rest, whatever SQLSTATE it is refused by: a trigger that asks
// another server, as by dblink or postgres_fdw, raises those of an outage.

// refuseAs is refuse with a SQLSTATE.
func (r *rig) refuseAs(code, where string) {
	r.t.Helper()
	r.exec(fmt.Sprintf(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused by a trigger' using errcode = '%s'; end $$`, code))
	r.exec(`create trigger refuse before update on rebase.jobs for each row when (new.` + where + `) execute function refuse()`)
}

// J24: the rest is recorded at once, the one is told of and put off, and recorded when the table
// takes it; it ran once.
func TestJ24AResultRefusedAsIfInAnOutageBlocksNoOther(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"08001", "53300", "0A000", "25006", "57P01"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ids := r.enqueueMany("x", 20, nil)
			r.refuseAs(code, "id = 7 and new.status = 'succeeded'")
			r.handle("x", nil, succeed)
			r.until(func() bool { return r.count("status = 'succeeded'") == 19 }, "the rest are recorded")
			r.until(func() bool { return len(r.log.matching("ERROR", "can't be recorded", "job_id=7 ", code)) >= 2 }, "it is told again")
			require.Subset(t, r.log.matching("job_id=7 "), r.log.matching("ERROR rebase:"), "of no other")
			require.Empty(t, r.log.matching("can't be reached"))
			r.ends(r.enqueue("x", nil), rebase.StatusSucceeded)
			r.exec(`drop trigger refuse on rebase.jobs`)
			j := r.ends(ids[6], rebase.StatusSucceeded)
			require.Equal(t, []int{1, 1}, []int{j.Runs, j.Attempts})
		})
	}
}

// J24: RunOnce tells of it as of any other refusal.
func TestJ24RunOnceTellsOfAResultRefusedAsIfInAnOutage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.refuseAs("08001", "id = 7 and new.status = 'succeeded'")
	r.enqueueMany("x", 20, nil)
	w := r.worker(&rebase.WorkerOptions{ShutdownTimeout: 2 * time.Second})
	w.Register("x", succeed, nil)
	_, err := w.RunOnce(t.Context())
	require.ErrorContains(t, err, "job 7: its result can't be recorded")
	require.Equal(t, 1, r.count("status = 'running'"), "of those that ran no other's is missing")
}

// J24, N5: a server that takes no writes at all is away: no result is put off or blamed for it, and
// all are recorded when it is back.
func TestJ24AReadOnlyServerPutsOffNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	const n = 5
	r.enqueueMany("x", n, nil)
	began, end := make(chan struct{}, n), make(chan struct{})
	far.handle("x", &rebase.WorkerOptions{Concurrency: n}, func(context.Context, *rebase.Job) error {
		began <- struct{}{}
		<-end
		return nil
	})
	for range n {
		await(t, began)
	}
	r.exec(`create function refuse() returns trigger language plpgsql as
		$$ begin raise exception 'cannot execute UPDATE in a read-only transaction' using errcode = '25006'; end $$`)
	for _, table := range []string{"jobs", "claims", "workers"} {
		r.exec(`create trigger refuse before update or delete or insert on rebase.` + table + ` for each statement execute function refuse()`)
	}
	before := proxy.Accepted()
	close(end)
	r.until(func() bool { return len(far.log.matching("can't be reached")) == 1 && proxy.Accepted() >= before+5 }, "it tries again and again")
	r.exec(`drop function refuse cascade`) // at once, or it would be a server that takes some writes
	r.until(func() bool { return r.count("status = 'succeeded' and runs = 1 and attempts = 1") == n }, "they are recorded")
	require.Empty(t, far.log.matching("can't be recorded"))
	require.Empty(t, far.log.matching("ERROR rebase:"))
}
