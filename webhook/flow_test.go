package webhook_test

// Endpoints that answer badly or not at all, beside those that are well. Who is dead holds
// its lane's share of slots and nothing else: not the others' time, and no memory,
// goroutine, descriptor or connection that grows with the number of deliveries.

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

const (
	endpoints     = 50
	deadEndpoints = 5
	flowSlots     = 40
	// Of 40 slots the dead hold ten at most.
	flowLimit = 2
)

// perEndpoint makes 1,000 deliveries in all, or 10,000.
func perEndpoint() int {
	if os.Getenv("REBASE_LONG") != "" {
		return 200
	}
	return 20
}

// A flow is a run of deliveries to many endpoints.
type flow struct {
	mu      sync.Mutex
	arrived []time.Duration // of the live ones, since the worker began
	began   time.Time
	all     chan struct{} // closed when every live delivery has arrived
	wanted  int
	conns   atomic.Int64 // open ones, of the live receivers
	peak    gauge
	middle  gauge // when half has arrived
}

// A gauge is what must not grow.
type gauge struct{ goroutines, files, conns int }

func (f *flow) measure() gauge {
	files, _ := os.ReadDir("/proc/self/fd") // none elsewhere: 0 grows by nothing
	return gauge{runtime.NumGoroutine(), len(files), int(f.conns.Load())}
}

func (f *flow) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrived = append(f.arrived, time.Since(f.began))
	n := len(f.arrived)
	if n%50 == 0 {
		g := f.measure()
		f.peak = gauge{max(f.peak.goroutines, g.goroutines), max(f.peak.files, g.files), max(f.peak.conns, g.conns)}
	}
	if n == f.wanted/2 {
		f.middle = f.peak
	}
	if n == f.wanted {
		close(f.all)
	}
}

func (f *flow) count(_ net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		f.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		f.conns.Add(-1)
	}
}

// runFlow sends to the live endpoints and to as many dead ones, and returns when all that
// can arrive has.
func runFlow(t *testing.T, deads int) *flow {
	t.Helper()
	r := newRig(t)
	live := endpoints - deadEndpoints
	f := &flow{all: make(chan struct{}), wanted: live * perEndpoint()}
	store, ids := map[string]webhook.Endpoint{}, []string{}
	for i := range live + deads {
		id, addr := fmt.Sprintf("endpoint %02d", (i*7)%100), "" // the dead stand among the others
		if i < live {
			srv := httptest.NewUnstartedServer(f)
			srv.Config.ConnState = f.count
			srv.Start()
			t.Cleanup(srv.Close)
			addr = srv.Listener.Addr().String()
		} else {
			addr = dead(t)
		}
		store[id], ids = endpointTo(t, "http://"+addr), append(ids, id)
	}
	d := r.dispatcher(webhook.Static(store), &webhook.Options{Timeout: 4 * time.Second, EndpointConcurrency: flowLimit})
	var batch []webhook.Delivery
	for range perEndpoint() {
		for _, id := range ids {
			batch = append(batch, webhook.Delivery{Endpoint: id, Body: []byte(paid)})
		}
	}
	_, err := d.SendAll(t.Context(), nil, batch)
	require.NoError(t, err)

	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{Concurrency: flowSlots, ShutdownTimeout: time.Second})
	d.Register(w)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	f.began = time.Now()
	go func() { done <- w.Run(ctx) }()
	select {
	case <-f.all:
	case <-time.After(10 * patience):
		require.Fail(t, "the live endpoints wait in vain")
	}
	cancel()
	require.NoError(t, <-done)
	return f
}

func (f *flow) p99() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.arrived)
	return f.arrived[len(f.arrived)*99/100]
}

// H5, W10, W15, W18: with five of fifty endpoints dead, 99 of 100 deliveries to the others arrive
// within twice the time that they take without the dead; and what the process holds is no more
// at the end than in the middle. Not parallel: it counts what the process holds. The best of
// three rounds counts, since the machine may be busy with something else in one of the runs.
func TestDeadEndpointsDoNotDelayTheOthers(t *testing.T) {
	best := 0.0
	for round := range 3 {
		with, without := runFlow(t, deadEndpoints), runFlow(t, 0)
		ratio := float64(with.p99()) / float64(without.p99())
		t.Logf("p99 %v with the dead, %v without: %.2f; held in the middle %+v, at most %+v",
			with.p99(), without.p99(), ratio, with.middle, with.peak)
		if round == 0 || ratio < best {
			best = ratio
		}
		require.LessOrEqual(t, with.peak.goroutines, with.middle.goroutines*3/2+50)
		require.LessOrEqual(t, with.peak.files, with.middle.files*3/2+50)
		require.LessOrEqual(t, with.peak.conns, endpoints*flowLimit)
		if best <= 2 {
			break
		}
	}
	require.LessOrEqual(t, best, 2.0)
}

// W10: whatever an endpoint does with its answer, the attempt is over soon, and the status
// decides: what comes behind it is not waited for.
func TestBadAnswersEndInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	endless := func(head string, chunk string) string {
		return serveRaw(t, func(c net.Conn) {
			_, err := io.WriteString(c, head)
			for ; err == nil; _, err = io.WriteString(c, chunk) {
				runtime.Gosched()
			}
		})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, c := range map[string]struct{ addr, want string }{
		"200 MiB":        {endless("HTTP/1.1 200 OK\r\nContent-Length: 209715200\r\n\r\n", string(make([]byte, 4096))), ""},
		"endless chunks": {endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1000\r\n"+string(make([]byte, 4096))+"\r\n"), ""},
		"endless, 500":   {endless("HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"), "webhook: status 500"},
		"huge headers":   {endless("HTTP/1.1 200 OK\r\n", "X-A: "+string(slices.Repeat([]byte("a"), 4000))+"\r\n"), "webhook: protocol"},
		"silence":        {dead(t), "webhook: timeout"},
	} {
		d := r.to(c.addr, &webhook.Options{Timeout: 2 * time.Second})
		began := time.Now()
		job := r.attempt(d, r.send(d).JobID)
		require.Equal(t, c.want, job.LastError, name)
		require.Less(t, time.Since(began), patience, name)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(64<<20))
}

// W10: a body that drips is not waited for; the delivery was taken.
func TestADrippingBodyIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	over := make(chan struct{})
	addr := serve(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select { // the rest never comes
		case <-req.Context().Done():
		case <-over:
		}
	})
	defer close(over)
	var took time.Duration
	d := r.to(addr, &webhook.Options{Timeout: 30 * time.Second, OnDelivery: func(_ context.Context, a webhook.Attempt) { took = a.Took }})
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, r.send(d).JobID).Status)
	require.Less(t, took, 10*time.Second)
}

// W10, W18: an answer that was read to its end leaves its connection for the next delivery.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var conns atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	d := r.to(srv.Listener.Addr().String(), &webhook.Options{EndpointConcurrency: 1})
	for range 50 {
		r.send(d)
	}
	require.Equal(t, 50, r.once(d))
	require.LessOrEqual(t, conns.Load(), int64(10)) // one, unless the machine paused for longer than connections are kept
}

// W15: the deliveries to a dead host come back spread over a fifth of the delay, no two
// seconds like the other, and never more at once than the endpoint's limit.
func TestRetriesOfADeadHostAreSpread(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 300 // done long before the first of them is due again
	refusing := listen(t)
	require.NoError(t, refusing.Close())
	d := webhook.New(r.q, webhook.Static(map[string]webhook.Endpoint{"shop": r.endpoint(refusing.Addr().String())}),
		&webhook.Options{Client: r.client(), Logger: r.log})
	_, err := d.SendAll(t.Context(), nil, slices.Repeat([]webhook.Delivery{{Endpoint: "shop", Body: []byte(paid)}}, n))
	require.NoError(t, err)
	require.Equal(t, n, r.once(d))
	var least, most float64
	var buckets int
	require.NoError(t, r.pool.QueryRow(t.Context(), `
		select extract(epoch from min(run_at - updated_at))::float8, extract(epoch from max(run_at - updated_at))::float8,
			count(distinct width_bucket(extract(epoch from run_at - updated_at), 9, 11, 10))
		from rebase.jobs where status = 'pending' and last_error = 'webhook: refused'`).Scan(&least, &most, &buckets))
	require.GreaterOrEqual(t, least, 9.0)
	require.LessOrEqual(t, most, 11.0)
	require.Equal(t, 10, buckets, "tenths of the window that are used")
}

// W15, H5: no endpoint has more deliveries under way than its limit, over two workers.
func TestAnEndpointNeverTakesMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var now, most atomic.Int64
	addr := serve(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		var one int
		_ = r.pool.QueryRow(req.Context(), "select 1 from pg_sleep(0.02)").Scan(&one)
	})
	d := r.to(addr, &webhook.Options{EndpointConcurrency: 3})
	for range 60 {
		r.send(d)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			w := rebase.NewWorker(r.q, &rebase.WorkerOptions{PollOnly: true, Concurrency: 10})
			d.Register(w)
			_, _ = w.RunOnce(t.Context())
		})
	}
	wg.Wait()
	require.EqualValues(t, 3, most.Load())
	var left int
	require.NoError(t, r.pool.QueryRow(t.Context(), `select count(*) from rebase.jobs where status <> 'succeeded'`).Scan(&left))
	require.Zero(t, left)
}
