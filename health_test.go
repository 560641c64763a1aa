package rebase_test

// M2: health. Live is about the worker's own loops; Ready says that work gets done. The
// clocks that they go by are set back, so that no test waits for 90 s.

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// A patient is a running worker of two slots whose handlers hang until they are released.
type patient struct {
	*rig
	w       *rebase.Worker
	s       *running
	began   chan int64
	release chan struct{}
}

func newPatient(t *testing.T, r *rig, timeout time.Duration) *patient {
	p := &patient{rig: r, began: make(chan int64, 100), release: make(chan struct{})}
	p.w = r.worker(&rebase.WorkerOptions{Concurrency: 2, Timeout: timeout, Backoff: at(time.Hour), ShutdownTimeout: time.Minute})
	p.w.Register("x", func(_ context.Context, job *rebase.Job) error {
		p.began <- job.ID
		<-p.release // whatever the context says
		return nil
	}, nil)
	p.s = r.start(p.w)
	t.Cleanup(p.free) // before the worker is stopped
	return p
}

func (p *patient) free() {
	select {
	case <-p.release:
	default:
		close(p.release)
	}
}

// get asks the handler that an orchestrator would ask.
func (p *patient) get(path string) (code int, body string) {
	rec := httptest.NewRecorder()
	p.w.Health().ServeHTTP(rec, httptest.NewRequestWithContext(p.t.Context(), http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}

// ready waits until the worker is.
func (p *patient) ready() {
	p.t.Helper()
	p.until(func() bool { return p.w.Ready(p.t.Context()) == nil }, "the worker is ready")
}

// M2: red before Run, green in it, red while it ends and after it.
func TestM2HealthFollowsTheLifeOfRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(nil)
	w.Register("x", succeed, nil)
	require.ErrorContains(t, w.Ready(t.Context()), "not running")
	require.ErrorContains(t, w.Live(), "not running")

	p := newPatient(t, r, 0)
	p.ready()
	for path, want := range map[string]int{"/live": 200, "/ready": 200, "/": 200} {
		code, body := p.get(path)
		require.Equal(t, want, code)
		require.Equal(t, "ok\n", body)
	}
	p.enqueue("x", nil)
	await(t, p.began)
	p.s.cancel()
	p.until(func() bool { return p.w.Ready(t.Context()) != nil }, "it is not ready while it shuts down")
	require.ErrorContains(t, p.w.Ready(t.Context()), "shutting down")
	require.NoError(t, p.w.Live())
	p.free()
	await(t, p.s.done)
	code, body := p.get("/ready")
	require.Equal(t, 503, code)
	require.Contains(t, body, "not running")
	code, _ = p.get("/live")
	require.Equal(t, 503, code)
}

// M2: handlers that hang past their timeouts leave slots free and health red.
func TestM2ReadyIsRedWhenAsManyHandlersHangAsThereAreSlots(t *testing.T) {
	t.Parallel()
	p := newPatient(t, newRig(t), time.Second)
	p.enqueueMany("x", 2, &rebase.EnqueueOptions{MaxAttempts: 1})
	await(t, p.began) // one that times out before that leaves nobody hanging
	await(t, p.began)
	p.until(func() bool { return p.count("status = 'failed'") == 2 }, "both have timed out")
	err := p.w.Ready(t.Context())
	require.ErrorContains(t, err, "2 handlers run on")
	require.ErrorContains(t, err, "2 slots")
	require.NoError(t, p.w.Live(), "a restart is for the orchestrator to decide by Ready")
	p.free()
	p.ready()
}

// M2: all slots taken, jobs due, and nothing has begun for three looks. Long jobs with
// nothing behind them, or with a paused task behind them, are no sickness.
func TestM2ReadyIsRedWhenJobsAreDueAndNothingStarts(t *testing.T) {
	t.Parallel()
	p := newPatient(t, newRig(t), 0)
	p.enqueueMany("x", 2, nil)
	await(t, p.began)
	await(t, p.began)
	p.w.Age(91*time.Second, 0)
	require.NoError(t, p.w.Ready(t.Context()), "nothing is due")
	p.enqueue("x", &rebase.EnqueueOptions{Delay: time.Hour})
	require.NoError(t, p.w.Ready(t.Context()), "nothing is due yet")
	p.exec(`insert into rebase.jobs (task) values ('of somebody else')`)
	require.NoError(t, p.w.Ready(t.Context()), "nothing of its own is due")
	p.exec(`insert into rebase.jobs (task, crashes, attempts) values ('x', 1, 1)`)
	require.ErrorContains(t, p.w.Ready(t.Context()), "none has started")
	require.NoError(t, p.q.PauseTask(t.Context(), "x"))
	require.NoError(t, p.w.Ready(t.Context()), "nothing is meant to start")
	require.NoError(t, p.q.ResumeTask(t.Context(), "x"))
	code, body := p.get("/ready")
	require.Equal(t, 503, code)
	require.Contains(t, body, "none has started")
	p.w.Age(-80*time.Second, 0)
	require.NoError(t, p.w.Ready(t.Context()), "not for that long")
	p.w.Age(80*time.Second, 0)
	p.free()
	p.ready()
}

// M2: a loop that no longer goes round is what only a restart mends.
func TestM2LiveIsRedWhenTheLoopStandsStill(t *testing.T) {
	t.Parallel()
	p := newPatient(t, newRig(t), 0)
	p.ready()
	p.w.Age(0, time.Hour)
	code, body := p.get("/live")
	require.Equal(t, 503, code)
	require.Contains(t, body, "has not gone round")
	code, _ = p.get("/ready")
	require.Equal(t, 503, code)
}

// M2: a database that is away makes the worker not ready, and leaves it alive.
func TestM2ADatabaseThatIsAwayIsNoReasonToRestart(t *testing.T) {
	t.Parallel()
	far, proxy := newRig(t).behind()
	p := newPatient(t, far, 0)
	p.ready()
	kill(proxy)
	p.w.RenewNow()
	p.until(func() bool { return p.w.Ready(t.Context()) != nil }, "it is not ready")
	require.ErrorContains(t, p.w.Ready(t.Context()), "can't be reached")
	code, _ := p.get("/live")
	require.Equal(t, 200, code)
	proxy.Refuse(false)
	p.ready()
}

// M2: at its start, before it has reached the database.
func TestM2AWorkerThatWaitsForTheDatabaseIsAliveAndNotReady(t *testing.T) {
	t.Parallel()
	far, proxy := newRig(t).behind()
	kill(proxy)
	p := newPatient(t, far, 0)
	p.until(func() bool { return p.w.Live() == nil }, "it is alive")
	require.ErrorContains(t, p.w.Ready(t.Context()), "waiting for the database")
	proxy.Refuse(false)
	p.ready()
}

// J15: a worker with nothing to wait for ends at once, whatever its listener is doing at that
// moment, and not only when its time is up.
func TestJ15RunEndsAtOnceWhenNothingRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 40 {
		p := newPatient(t, r, 0)
		p.ready()
		asked := time.Now()
		require.NoError(t, p.s.stop())
		require.Less(t, time.Since(asked), 5*time.Second)
	}
}
