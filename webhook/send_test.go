package webhook_test

// Enqueueing: in the caller's transaction, idempotent by endpoint and key, and refused by
// name before any SQL.

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

// J2, H1: a delivery is as durable as the transaction that it was sent in.
func TestSendIsPartOfTheCallersTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.to(to.addr, nil)
	for _, commit := range []bool{false, true} {
		tx, err := r.pool.Begin(t.Context())
		require.NoError(t, err)
		sent, err := d.SendAll(t.Context(), tx, []webhook.Delivery{{Endpoint: "shop", Body: []byte("1")}, {Endpoint: "shop", Body: []byte("2")}})
		require.NoError(t, err)
		require.NotEqual(t, sent[0].ID, sent[1].ID)
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
		}
		require.Equal(t, map[bool]int{true: 2}[commit], r.once(d))
	}
	require.Len(t, to.all(), 2)
}

// W6: any bytes at all, of any type, arrive as they were given.
func TestBodiesArriveByteForByte(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.to(to.addr, nil)
	bodies := []string{"", "\x00\xff\xfe", `{"b":1,"a":2,"a":1e400}`, "  {} \n", strings.Repeat("\xf0", 700_000)}
	for i, body := range bodies {
		_, err := d.Send(t.Context(), nil, webhook.Delivery{Endpoint: "shop", Body: []byte(body), ContentType: "application/x-test"})
		require.NoError(t, err)
		require.Equal(t, 1, r.once(d))
		got := to.all()[i]
		require.True(t, bytes.Equal([]byte(body), got.body), "body %d", i)
		require.Equal(t, "application/x-test", got.header.Get("Content-Type"))
		require.NoError(t, verify(t, got, mustParse(t, vectorSecret)))
	}
}

// J4: one unfinished delivery for each endpoint and key; the key of one endpoint is none of
// another's.
func TestKeyIsPerEndpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.to("127.0.0.1:1", nil)
	sent, err := d.SendAll(t.Context(), nil, []webhook.Delivery{
		{Endpoint: "a", Key: "order 1"}, {Endpoint: "a", Key: "order 1"}, {Endpoint: "b", Key: "order 1"}, {Endpoint: "a:order 1", Key: ""}, {Endpoint: "a"},
	})
	require.NoError(t, err)
	require.Equal(t, webhook.Sent{JobID: sent[0].JobID, Duplicate: true}, sent[1])
	for _, i := range []int{0, 2, 3, 4} {
		require.False(t, sent[i].Duplicate)
		require.Regexp(t, `^msg_[A-Z2-7]{26}$`, sent[i].ID)
	}
}

// W8: what can't be enqueued is named, and the transaction lives.
func TestBadDeliveriesAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.to("127.0.0.1:1", nil)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	for field, bad := range map[string]webhook.Delivery{
		"endpoint":        {},
		"endpoint ":       {Endpoint: strings.Repeat("x", 256)},
		"endpoint  ":      {Endpoint: "a\x00"},
		"content_type":    {Endpoint: "a", ContentType: "text/plain\r\nX-Forged: 1"},
		"idempotency_key": {Endpoint: "a", Key: "\xff"},
		"meta":            {Endpoint: "a", Meta: map[string]string{"": "x"}},
		"payload":         {Endpoint: "a", Event: "\xff"},
		"payload ":        {Endpoint: "a", Body: make([]byte, 1<<20)},
	} {
		_, err := d.SendAll(t.Context(), tx, []webhook.Delivery{{Endpoint: "good"}, bad})
		e, ok := errors.AsType[*rebase.PayloadError](err)
		require.True(t, ok, "%s: %v", field, err)
		require.Equal(t, strings.TrimSpace(field), e.Field)
		require.Equal(t, 1, e.Index)
		require.Equal(t, webhook.Task, e.Task)
	}
	_, err = d.Send(t.Context(), tx, webhook.Delivery{Endpoint: "good"})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
}

// J1: what a delivery carries for tracing is in its job, for the worker's middleware, and not sent.
func TestADeliverysMetaTravelsWithItsJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.to(to.addr, nil)
	meta := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	sent, err := d.Send(t.Context(), nil, webhook.Delivery{Endpoint: "shop", Body: []byte("1"), Meta: meta})
	require.NoError(t, err)
	j := r.attempt(d, sent.JobID)
	require.Equal(t, rebase.StatusSucceeded, j.Status)
	require.Equal(t, meta, j.Meta)
	got := to.all()[0]
	require.Equal(t, "1", string(got.body))
	require.Empty(t, got.header.Values("traceparent"))
}

// J23: a delivery that a trigger has enqueued is sent, too; its job's id is its id.
func TestADeliveryEnqueuedBySQLIsSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, nil)
	d := r.to(to.addr, nil)
	var id int64
	require.NoError(t, r.pool.QueryRow(t.Context(), `
		insert into rebase.jobs (task, lane, payload) values ('webhook-delivery', 'shop',
		jsonb_build_object('endpoint', 'shop', 'event', 'by.sql', 'body', encode(convert_to(repeat('long ', 40), 'UTF8'), 'base64')))
		returning id`).Scan(&id))
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, id).Status)
	require.Equal(t, "job_1", to.all()[0].header.Get(webhook.HeaderDelivery))
	require.Equal(t, strings.Repeat("long ", 40), string(to.all()[0].body))
}

// H4: told at start what can't work.
func TestNewAndRegisterPanicOnWhatCanNotWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	store := webhook.Static(nil)
	require.PanicsWithValue(t, "webhook: New: nil queue or store", func() { webhook.New(nil, store, nil) })
	require.PanicsWithValue(t, "webhook: New: nil queue or store", func() { webhook.New(r.q, nil, nil) })
	for text, o := range map[string]webhook.Options{
		"option Timeout -1s is negative":                         {Timeout: -time.Second},
		"option MaxAttempts -1 is negative":                      {MaxAttempts: -1},
		"option Concurrency -1 is negative":                      {Concurrency: -1},
		`option UserAgent "a\r\nb" contains a control character`: {UserAgent: "a\r\nb"},
	} {
		require.PanicsWithValue(t, "webhook: New: "+text, func() { webhook.New(r.q, store, &o) })
	}
	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{VisibilityTimeout: 30 * time.Second})
	require.PanicsWithValue(t, "webhook: Register: the timeout 10s is not below a third of the visibility timeout 30s",
		func() { webhook.New(r.q, store, nil).Register(w) })
	require.NotPanics(t, func() { webhook.New(r.q, store, &webhook.Options{Timeout: 9 * time.Second}).Register(w) })
}
