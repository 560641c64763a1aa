package webhook_test

// A quiet service with dead endpoints: there is time and room for everything, so whatever
// delays a delivery is the lanes that are at their limit.

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

// runQuiet sends to one live endpoint, one delivery after the other, from another process as
// far as the queue can tell, and returns how long each took to arrive.
func runQuiet(t *testing.T, deads, backlog, n int) []time.Duration {
	t.Helper()
	r := newRig(t)
	arrived := make(chan time.Time, 1)
	addr := serve(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		arrived <- time.Now()
	})
	store := map[string]webhook.Endpoint{"shop": endpointTo(t, "http://"+addr)}
	var batch []webhook.Delivery
	for i := range deads {
		id := fmt.Sprintf("dead %d", i)
		store[id] = endpointTo(t, "http://"+dead(t))
		batch = append(batch, slices.Repeat([]webhook.Delivery{{Endpoint: id}}, backlog)...)
	}
	opts := &webhook.Options{Timeout: 20 * time.Second, EndpointConcurrency: flowLimit}
	d := r.dispatcher(webhook.Static(store), opts)
	_, err := d.SendAll(t.Context(), nil, batch)
	require.NoError(t, err)
	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{Concurrency: flowSlots, ShutdownTimeout: time.Second})
	d.Register(w)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	require.Eventually(t, func() bool {
		var busy int
		err := r.pool.QueryRow(t.Context(), `select count(*) from rebase.jobs where status = 'running'`).Scan(&busy)
		return err == nil && busy == deads*min(flowLimit, backlog)
	}, patience, 10*time.Millisecond)

	elsewhere := webhook.New(rebase.New(r.pool, &rebase.Options{Logger: r.log}), webhook.Static(store), opts)
	var took []time.Duration
	for range n {
		began := time.Now()
		_, err := elsewhere.Send(t.Context(), nil, webhook.Delivery{Endpoint: "shop"})
		require.NoError(t, err)
		select {
		case at := <-arrived:
			took = append(took, at.Sub(began))
		case <-time.After(patience):
			require.Fail(t, "it never arrives")
		}
	}
	cancel()
	require.NoError(t, <-done)
	slices.Sort(took)
	return took
}

// H5, W15, N1: while five dead endpoints with a backlog hold what they may hold, a delivery
// to another starts as soon as it would without them.
func TestADeliveryIsNotLateForOthersBacklog(t *testing.T) {
	without, with := runQuiet(t, 0, 0, 40), runQuiet(t, deadEndpoints, 20, 40)
	t.Logf("median and worst: %v and %v without the dead, %v and %v with", without[20], without[39], with[20], with[39])
	// The slack is for a busy machine; lanes that hinder show as the second between two looks.
	require.LessOrEqual(t, with[20], 2*without[20]+100*time.Millisecond)
}
