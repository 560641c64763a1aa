package rebase_test

// N2: how often an idle worker looks. The plan of a day is computed, not waited for; what
// really goes over the wires is counted by the long test.

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

const day = 24 * time.Hour

// planner is an engine that isn't started.
func (r *rig) planner(opts *rebase.WorkerOptions) *rebase.Planner {
	w := r.worker(opts)
	w.Register("a", func(context.Context, *rebase.Job) error { return nil }, nil)
	return rebase.NewPlanner(w)
}

// waits are those between the next n looks that find nothing.
func waits(t *testing.T, p *rebase.Planner, n int) (all []time.Duration) {
	t.Helper()
	for range n {
		require.True(t, p.Look())
		p.Found(0)
		all = append(all, p.Wait())
		p.Now = p.Now.Add(p.Wait() - time.Nanosecond)
		require.False(t, p.Look(), "a look before its time")
		p.Now = p.Now.Add(time.Nanosecond)
	}
	return all
}

const sec = time.Second

// N2: 2 s, then twice as long each time, up to 30 s: 2,883 looks a day, not 43,200.
func TestN2WithoutListenLooksGetRarer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.planner(&rebase.WorkerOptions{PollOnly: true})
	began := p.Now
	require.Equal(t, []time.Duration{2 * sec, 4 * sec, 8 * sec, 16 * sec, 30 * sec, 30 * sec}, waits(t, p, 6))
	looks := 6
	for ; !p.Now.After(began.Add(day)); looks++ {
		waits(t, p, 1)
	}
	require.Equal(t, 1+2883, looks, "the first, and those of the day")
}

// N2: the poll interval can be chosen.
func TestN2ThePollIntervalIsTheFirstWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.planner(&rebase.WorkerOptions{PollOnly: true, PollInterval: 5 * sec})
	require.Equal(t, []time.Duration{5 * sec, 10 * sec, 20 * sec, 30 * sec}, waits(t, p, 4))
}

// N2: an EnqueueTx of this process, whose commit can't be seen, starts quick looks again.
func TestN2AnEnqueueInATransactionStartsQuickLooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.planner(&rebase.WorkerOptions{PollOnly: true})
	waits(t, p, 6)
	p.Expect("a")
	p.Now = time.Now().Add(20 * time.Millisecond)
	ms := time.Millisecond
	require.Equal(t, []time.Duration{20 * ms, 40 * ms, 80 * ms, 160 * ms}, waits(t, p, 4))
	p.Expect("unserved")
	require.Equal(t, 320*ms, waits(t, p, 1)[0])
}

// N2: work that is found starts the quick looks again.
func TestN2WorkStartsTheSeriesAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{PollOnly: true, PollInterval: 200 * time.Millisecond})
	began := make(chan int64, 1)
	w.Register("a", func(_ context.Context, job *rebase.Job) error { began <- job.ID; return nil }, nil)
	r.start(w)
	r.until(func() bool { return w.UntilLook() > 500*time.Millisecond }, "looks get rarer")
	id := one(t)(r.elsewhere(rebase.Never).Enqueue(t.Context(), "a", nil, nil))
	require.Equal(t, id, await(t, began))
	r.until(func() bool { d := w.UntilLook(); return d > 0 && d <= 200*time.Millisecond }, "the series begins anew")
}

// N2: with a live LISTEN every 30 s; until nobody can be on the way any more 50, 100,
// 200 ms.
func TestN2ASleeperLooksEvery30Seconds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.planner(nil)
	p.Sleep(10)
	ms := time.Millisecond
	require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms}, waits(t, p, 4))
	require.True(t, p.Look())
	p.Found(10)
	require.Equal(t, 800*ms, p.Wait(), "10 itself is open still")
	p.Now = p.Now.Add(p.Wait())
	require.True(t, p.Look())
	p.Found(11)
	require.Equal(t, 30*sec, p.Wait())
	p.Now = p.Now.Add(p.Wait())
	require.Equal(t, []time.Duration{30 * sec, 30 * sec}, waits(t, p, 2))
}

// N2: all duties of an idle worker together are six round trips a minute, once those of
// the start are done.
func TestN2AnIdleWorkerPlansSixRoundTripsAMinute(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.sleeper(nil, "a")
	var planned map[string]int
	r.until(func() bool {
		planned = w.RoundTrips(2 * time.Minute)
		return planned["orphans"] == 0 && planned["purge"] == 0
	}, "the duties of the start are done")
	t.Logf("in two minutes: %v", planned)
	require.LessOrEqual(t, planned["look"], 4)
	require.LessOrEqual(t, planned["renew"], 4)
	require.LessOrEqual(t, planned["reap"], 2)
	require.LessOrEqual(t, planned["alive"], 2)
	require.LessOrEqual(t, planned["fire"], 1)
	delete(planned, "unserved") // asked along with each look of the reaper's, which puts it off
	all := 0
	for _, n := range planned {
		all += n
	}
	require.LessOrEqual(t, all, 12)
}

// A meter counts the writes of a connection: pgx sends a round trip with one.
type meter struct {
	net.Conn
	writes *atomic.Int64
}

func (m meter) Write(b []byte) (int, error) {
	m.writes.Add(1)
	return m.Conn.Write(b)
}

// N2: what a sleeping worker really sends in 40 s.
func TestN2AnIdleWorkerSendsLittle(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("takes a minute: set REBASE_LONG=1")
	}
	var writes atomic.Int64
	r := newRigOn(t, pgtest.NewWith(t, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return meter{conn, &writes}, err
		}
	}))
	w := r.sleeper(nil, "a")
	r.until(func() bool { return w.RoundTrips(time.Minute)["orphans"] == 0 }, "the duties of the start are done")
	before := writes.Load()
	pause(40 * time.Second)
	n := writes.Load() - before
	t.Logf("%d in 40 s", n)
	require.LessOrEqual(t, n, int64(6), "two looks, two renewals, one sign of life, one for the reaper")
}

// N1: with three workers or more a notification sets the time of the next look; one that comes between
// the looks of a series may be for a task that was looked at already.
func TestN1AWakeBetweenTheLooksOfASeriesIsNotForgotten(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		w := newRig(t).worker(nil)
		w.Register("a", succeed, nil)
		w.Register("b", succeed, nil)
		require.Less(t, rebase.NewPlanner(w).Woken(after), time.Second, "after the first: %t", after)
	}
}
