package webhook_test

// What arrives: the same id and bytes at every attempt, signed anew with what the endpoint
// has now, numbered on over redeliveries.

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

func verify(t *testing.T, got received, secret webhook.Secret) error {
	t.Helper()
	v := &webhook.Verifier{Secrets: []webhook.Secret{secret}}
	_, err := v.Verify(got.header, got.body)
	return err
}

// H2, W6, W7: id and body are the same bytes at every attempt, attempt and timestamp are the
// attempt's own, and each verifies by itself.
func TestEveryAttemptSendsTheSameIDAndBytesAndIsSignedAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, func(n int, w http.ResponseWriter) {
		if n < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	d := r.to(to.addr, nil)
	sent := r.send(d)
	for n := 1; n <= 3; n++ {
		if n > 1 { // the claim's clock is the only one that counts, so it is moved, not waited for
			require.Eventually(t, func() bool { return time.Now().Unix() > to.all()[n-2].at.Unix() }, patience, 10*time.Millisecond)
		}
		job := r.attempt(d, sent.JobID)
		require.Equal(t, map[bool]rebase.Status{true: "succeeded", false: "pending"}[n == 3], job.Status)
	}
	all := to.all()
	require.Len(t, all, 3)
	seen := map[string]bool{}
	for i, got := range all {
		require.Equal(t, paid, string(got.body))
		require.Equal(t, sent.ID, got.header.Get(webhook.HeaderDelivery))
		require.Equal(t, sent.ID, got.header.Get(webhook.HeaderID))
		require.Equal(t, strconv.Itoa(i+1), got.header.Get(webhook.HeaderAttempt))
		require.Equal(t, "application/json", got.header.Get("Content-Type"))
		require.Equal(t, "rebase-webhook", got.header.Get("User-Agent"))
		require.Equal(t, headerToken, got.header.Get("X-Token"))
		require.Equal(t, "/hooks/"+pathToken+"?key="+queryToken, got.uri)
		require.NoError(t, verify(t, got, mustParse(t, vectorSecret)))
		seen[got.header.Get(webhook.HeaderTimestamp)] = true
	}
	require.Len(t, seen, 3, "timestamps")
}

// W7, J22: the timestamp is the database's: that of the claim, as the row has it, and not the
// host's clock, which has moved on while the store took its time.
func TestTimestampIsTheDatabasesClock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.dispatcher(&slowShelf{shelf{endpoint: r.endpoint(to.addr)}}, nil)
	job := r.attempt(d, r.send(d).JobID)
	require.Equal(t, strconv.FormatInt(job.StartedAt.Unix(), 10), to.all()[0].header.Get(webhook.HeaderTimestamp))
}

// H2: a redelivery is the same delivery, whose attempts go on counting.
func TestRedeliveryKeepsTheIDAndGoesOnCounting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.to(to.addr, nil)
	sent := r.send(d)
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, sent.JobID).Status)
	for range 2 {
		require.NoError(t, d.Redeliver(t.Context(), sent.JobID))
		require.Equal(t, rebase.StatusSucceeded, r.attempt(d, sent.JobID).Status)
	}
	all := to.all()
	require.Len(t, all, 3)
	for i, got := range all {
		require.Equal(t, sent.ID, got.header.Get(webhook.HeaderDelivery))
		require.Equal(t, paid, string(got.body))
		require.Equal(t, strconv.Itoa(i+1), got.header.Get(webhook.HeaderAttempt))
	}
}

func TestRedeliverRefusesWhatIsNoFinishedDelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.to("127.0.0.1:1", nil)
	waiting := r.send(d)
	_, ok := errors.AsType[*rebase.StateError](d.Redeliver(t.Context(), waiting.JobID))
	require.True(t, ok, "one that waits")
	other, err := r.q.Enqueue(t.Context(), "another", nil, nil)
	require.NoError(t, err)
	require.NoError(t, r.q.Cancel(t.Context(), other.ID, ""))
	require.ErrorIs(t, d.Redeliver(t.Context(), other.ID), rebase.ErrNotFound)
	require.ErrorIs(t, d.Redeliver(t.Context(), 1<<40), rebase.ErrNotFound)
	require.Equal(t, rebase.StatusCancelled, r.job(other.ID).Status)
}

// H1: an endpoint that is edited while a delivery waits is used as it is now, and the row
// holds its id only.
func TestAnEditedEndpointIsSentAsItIsNow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before, after := receive(t, status(500)), receive(t, nil)
	store := &shelf{endpoint: r.endpoint(before.addr)}
	d := r.dispatcher(store, nil)
	sent := r.send(d)
	require.Equal(t, rebase.StatusPending, r.attempt(d, sent.JobID).Status)
	store.set(r.endpoint(after.addr), nil)
	job := r.attempt(d, sent.JobID)
	require.Equal(t, rebase.StatusSucceeded, job.Status)
	require.Equal(t, webhook.Task, job.Task)
	require.Equal(t, "shop", job.Lane)
	require.Len(t, before.all(), 1)
	require.Len(t, after.all(), 1)
}

// W14: during a rotation both signatures, then only the new one, also for a delivery that was
// enqueued before either.
func TestRotationHoldsForDeliveriesEnqueuedBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, status(500))
	e := r.endpoint(to.addr)
	older, newer := e.Secrets[0], webhook.NewSecret()
	store := &shelf{endpoint: e}
	d := r.dispatcher(store, nil)
	sent := r.send(d)
	for _, secrets := range [][]webhook.Secret{{older}, {newer, older}, {newer}} {
		e.Secrets = secrets
		store.set(e, nil)
		r.attempt(d, sent.JobID)
	}
	all := to.all()
	require.Len(t, all, 3)
	for i, want := range []struct{ older, newer bool }{{true, false}, {true, true}, {false, true}} {
		require.Equal(t, want.older, verify(t, all[i], older) == nil, "attempt %d, old secret", i+1)
		require.Equal(t, want.newer, verify(t, all[i], newer) == nil, "attempt %d, new secret", i+1)
	}
}
