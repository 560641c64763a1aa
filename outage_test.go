package rebase_test

// N5: PostgreSQL restarts, fails over, kills backends, is away for a while or at the
// start. The worker goes on by itself, uses no attempt for it, and says so with one line
// for each change.

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// private is a rig on a server of its own, which may be stopped. What it has committed
// survives an immediate stop.
func private(t *testing.T) (*rig, *pgserver.Server) {
	t.Helper()
	s := pgtest.Server(t, pgserver.Config{Settings: map[string]string{"synchronous_commit": "on", "shared_buffers": "32MB", "log_connections": "on"}})
	pool, err := pgxpool.New(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	r := newRigOn(t, pool)
	require.NoError(t, r.q.Migrate(t.Context()))
	return r, s
}

// A feed enqueues jobs one after the other, whatever happens to the database.
type feed struct {
	r      *rig
	cancel context.CancelFunc
	done   sync.WaitGroup
	ids    []int64 // those that were committed for sure
}

func (r *rig) feed(task string) *feed {
	ctx, cancel := context.WithCancel(r.t.Context())
	f := &feed{r: r, cancel: cancel}
	q := r.elsewhere(rebase.Gated)
	f.done.Go(func() {
		for ctx.Err() == nil {
			if done, err := q.Enqueue(ctx, task, nil, nil); err == nil {
				f.ids = append(f.ids, done.ID)
			}
			pause(2 * time.Millisecond)
		}
	})
	r.t.Cleanup(func() { cancel(); f.done.Wait() })
	return f
}

// allSucceed ends the feed and requires that each of its jobs succeeds, at the first
// attempt.
func (f *feed) allSucceed() {
	f.r.t.Helper()
	f.cancel()
	f.done.Wait()
	require.NotEmpty(f.r.t, f.ids)
	f.r.until(func() bool { return f.r.count(`finished_at is null`) == 0 }, "all has ended")
	require.Equal(f.r.t, len(f.ids), f.r.count(`status = 'succeeded' and attempts = 1 and id = any($1)`, f.ids))
	f.r.t.Logf("%d jobs", len(f.ids))
}

// back waits until the database answers.
func (r *rig) back() {
	r.t.Helper()
	r.until(func() bool { return r.pool.Ping(r.t.Context()) == nil }, "the database is back")
}

// outageLines are what the workers have said about reaching the database, a worker.
func (r *rig) outageLines() (away, back int) {
	return len(r.log.matching("can't be reached")) + len(r.log.matching("refuses")), len(r.log.matching("the database is back"))
}

// N5: restarts under load, also by an immediate stop, as in a crash of the server.
func TestN5RestartsUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	r, server := private(t)
	s := r.drowsy(nil, "a")
	f := r.feed("a")
	for _, mode := range []string{"fast", "immediate", "fast"} {
		for range 50 {
			await(t, s.began)
		}
		require.NoError(t, server.Restart(mode))
		r.back()
	}
	r.pool.Reset()
	f.allSucceed()
	r.until(func() bool { away, back := r.outageLines(); return away == back }, "the last connection is back too")
	away, _ := r.outageLines()
	require.LessOrEqual(t, away, 3, "one line for each time that it went away")
}

// N5: backends that are killed (57P01) again and again cost no attempt and no job.
func TestN5KilledBackendsAreReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.drowsy(nil, "a")
	f := r.feed("a")
	for range 20 {
		for range 10 {
			await(t, s.began)
		}
		r.until(func() bool { // the pool's connections are killed as well
			_, err := r.pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
			return err == nil
		}, "they are killed")
	}
	r.pool.Reset()
	f.allSucceed()
	r.until(func() bool { away, back := r.outageLines(); return away == back }, "the last connection is back too")
}

// Q34: away at the start, and once more later: one line for each change, and no storm of
// connections.
func TestQ34AwayAtTheStartAndLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	proxy.Refuse(true)
	s := far.drowsy(nil, "a")
	far.until(func() bool { return len(far.log.matching("can't be reached")) == 1 }, "it is said")
	id := one(t)(r.q.Enqueue(t.Context(), "a", nil, nil))
	before, since := proxy.Accepted(), time.Now()
	far.until(func() bool { return proxy.Accepted() >= before+4 }, "it is tried again")
	require.Greater(t, time.Since(since), 2*time.Second)
	proxy.Refuse(false)
	s.starts(id)
	s.sleeps()
	require.Len(t, far.log.matching("the database is back"), 1)

	kill(proxy)
	s.RenewNow()
	far.until(func() bool { return len(far.log.matching("can't be reached")) == 2 }, "it is said again")
	before, since = proxy.Accepted(), time.Now()
	far.until(func() bool { return time.Since(since) > 5*time.Second }, "five seconds have passed")
	require.LessOrEqual(t, proxy.Accepted()-before, 9, "about one try a second, and one at once for each of three connections")
	proxy.Refuse(false)
	s.starts(one(t)(r.q.Enqueue(t.Context(), "a", nil, nil)))
	s.sleeps()
	away, back := far.outageLines()
	require.Equal(t, []int{2, 2}, []int{away, back})
	require.Empty(t, far.log.matching("LISTEN"), "that has been said already")
}

// N5: connections that broke while nobody used them are no outage: each is replaced when
// it is needed, and nothing is said.
func TestN5ConnectionsThatBrokeWhileIdleAreReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	s := far.sleeper(nil, "a")
	proxy.Cut()
	s.RenewNow()
	s.starts(one(t)(r.q.Enqueue(t.Context(), "a", nil, nil)))
	s.sleeps()
	require.Empty(t, far.log.matching("WARN"))
	require.Empty(t, far.log.matching("ERROR"))
}

// Q33: after a failover the connections lead to a read-only standby (25006). They are
// dropped and made anew until one leads to a primary.
func TestQ33AReadOnlyStandbyIsLeft(t *testing.T) {
	t.Parallel()
	r, server := private(t)
	s := r.drowsy(nil, "a")
	r.until(s.Asleep, "the worker is asleep")
	signal := filepath.Join(ask[string](r, `show data_directory`), "standby.signal")
	require.NoError(t, server.Stop("fast"))
	require.NoError(t, os.WriteFile(signal, nil, 0o644))
	require.NoError(t, server.Restart("fast"))
	r.back()
	require.True(t, ask[bool](r, `select pg_is_in_recovery()`))
	s.RenewNow()
	r.until(func() bool { return len(r.log.matching("can't be reached")) == 1 }, "it is noticed")
	logged := func(what string) int {
		log, err := server.Log()
		require.NoError(t, err)
		return strings.Count(log, what)
	}
	r.until(func() bool { return logged("cannot set transaction read-write mode during recovery") > 0 }, "the worker has tried the standby")
	before := logged("connection authorized")
	r.until(func() bool { return logged("connection authorized") > before+2 }, "it makes new connections, which may lead elsewhere")
	require.Empty(t, r.log.matching("ERROR rebase:"), "a standby is no error of the statements")
	require.Empty(t, r.log.matching("the database is back"))
	_, err := r.q.Enqueue(t.Context(), "a", nil, nil)
	require.ErrorContains(t, err, "25006")
	require.True(t, ask[bool](r, `select pg_promote()`))
	var id int64
	r.until(func() bool {
		done, err := r.q.Enqueue(t.Context(), "a", nil, nil)
		id = done.ID
		return err == nil
	}, "it can be written again")
	s.starts(id)
	s.sleeps()
	away, back := r.outageLines()
	require.Equal(t, []int{1, 1}, []int{away, back})
}

// N5: a server that refuses writes with 25006 is no place for a worker: that connection is closed,
// and new ones are tried until one can write. It is told as an outage, not as a fault of the statements.
func TestN5AReadOnlyTransactionEndsTheConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	far, proxy := r.behind()
	s := far.sleeper(nil, "a")
	r.exec(`create function refuse() returns trigger language plpgsql as
		$$ begin raise exception 'cannot execute UPDATE in a read-only transaction' using errcode = '25006'; end $$`)
	r.exec(`create trigger refuse before update on rebase.jobs for each row execute function refuse()`)
	before := proxy.Accepted()
	id := r.enqueue("a", nil)
	r.until(func() bool { return proxy.Accepted() >= before+3 }, "new connections are made, though none broke")
	require.Empty(t, far.log.matching("ERROR rebase:"))
	require.Empty(t, far.log.matching("the database is back"))
	r.exec(`drop trigger refuse on rebase.jobs`)
	s.starts(id)
	require.Equal(t, 1, r.ends(id, rebase.StatusSucceeded).Runs)
	s.sleeps()
}

// N5: somebody who has the table, or a row at the wrong instant, for a moment is no trouble: the
// claim that lock_timeout has ended is sent again, and nothing is said.
func TestN5AClaimThatMeetsALockIsSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.sleeper(nil, "a")
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	id := one(t)(r.q.EnqueueTx(t.Context(), tx, "a", nil, nil))
	_, err = tx.Exec(t.Context(), "lock table rebase.paused in access exclusive mode")
	require.NoError(t, err)
	r.q.Wake()
	pause(700 * time.Millisecond) // three times lock_timeout
	require.NoError(t, tx.Commit(t.Context()))
	s.starts(id)
	require.Empty(t, r.log.matching("WARN"))
	require.Empty(t, r.log.matching("ERROR"))
}

// N5, J17: nor does it say anything when the first to find it out is the deletion of old jobs.
func TestN5AConnectionThatBrokeWhileIdleIsNoSlowRetention(t *testing.T) {
	t.Parallel()
	far, proxy := newRig(t).behind()
	w := far.worker(nil)
	w.Register("a", succeed, nil)
	s := rebase.NewStepper(t.Context(), w)
	t.Cleanup(s.Close)
	require.NoError(t, s.Renew())
	proxy.Cut()
	require.Error(t, s.Purge())
	require.Empty(t, far.log.matching("WARN"))
	require.NoError(t, s.Purge())
}
