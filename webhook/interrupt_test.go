package webhook_test

// A request that is under way when its worker stops or its job is cancelled.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

// underWay runs a worker whose only delivery is with an endpoint that never answers.
func (r *rig) underWay(addr string) (id int64, stop func() error) {
	r.t.Helper()
	d := r.to(addr, &webhook.Options{Timeout: 60 * time.Second})
	id = r.send(d).JobID
	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{ShutdownTimeout: 600 * time.Millisecond})
	d.Register(w)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	r.t.Cleanup(cancel)
	require.Eventually(r.t, func() bool { return r.job(id).Status == rebase.StatusRunning }, patience, 5*time.Millisecond)
	return id, func() error { cancel(); return <-done }
}

// J15: a request that the shutdown cut off was no attempt: it is made again at once.
func TestAShutdownUsesNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id, stop := r.underWay(dead(t))
	require.NoError(t, stop())
	job := r.job(id)
	require.Equal(t, rebase.StatusPending, job.Status)
	require.Zero(t, job.Attempts)
	require.Equal(t, 1, job.Runs)
}

// J18: cancelling a delivery cuts its request off.
func TestACancelledDeliveryIsCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id, stop := r.underWay(dead(t))
	require.NoError(t, r.q.Cancel(t.Context(), id, "the order was withdrawn"))
	require.Eventually(t, func() bool {
		var claims int
		err := r.pool.QueryRow(t.Context(), `select count(*) from rebase.claims`).Scan(&claims)
		return err == nil && claims == 0
	}, patience, 10*time.Millisecond)
	require.NoError(t, stop())
	job := r.job(id)
	require.Equal(t, rebase.StatusCancelled, job.Status)
	require.Equal(t, "the order was withdrawn", job.LastError)
}
