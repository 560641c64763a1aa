package webhook_test

// What the tests of the dispatcher share. A rig is a queue on a database of its own, an
// endless supply of attempts (each is a RunOnce, made due by SQL), and one ear for all that
// the library says: rows, logs, events, the hook and errors. When its test ends, whatever
// the test was about, none of that may hold a secret or a token of a URL.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/webhook"
)

// The tokens that stand in the rigs' URLs and headers, and must stand nowhere else.
const (
	pathToken   = "tok_path_5d1f"
	queryToken  = "tok_query_77ac"
	headerToken = "tok_header_e21b"
)

// unsafe is what may be said nowhere: tokens, and the secret's text without its prefix.
var unsafe = []string{pathToken, queryToken, headerToken, strings.TrimPrefix(vectorSecret, "whsec_")}

type rig struct {
	t    testing.TB
	pool *pgxpool.Pool
	q    *rebase.Queue
	said *ear
	log  *slog.Logger
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, pool: pgtest.New(t), said: &ear{}}
	r.log = slog.New(slog.NewTextHandler(r.said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.q = rebase.New(r.pool, &rebase.Options{Logger: r.log, OnEvent: func(e rebase.Event) {
		fmt.Fprintf(r.said, "event %+v %v\n", e, e.Err)
	}})
	t.Cleanup(r.requireSilence)
	return r
}

// An ear is a writer that many write to.
type ear struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (e *ear) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(p)
}

func (e *ear) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// requireSilence: H4, W9.
func (r *rig) requireSilence() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var rows string
	err := r.pool.QueryRow(ctx, `select coalesce(string_agg(j::text, e'\n'), '') from rebase.jobs j`).Scan(&rows)
	if err != nil {
		r.t.Errorf("the rows can't be read: %v", err)
	}
	for _, word := range unsafe {
		if strings.Contains(rows, word) {
			r.t.Errorf("rebase.jobs holds %q", word)
		}
		if said := r.said.String(); strings.Contains(said, word) {
			r.t.Errorf("%q was said: %s", word, said)
		}
	}
}

// client is a guarded client that may contact loopback, where every name leads.
func (r *rig) client() *http.Client {
	return r.guarded(loopback, everywhere)
}

func (r *rig) guarded(allow []netip.Prefix, names resolver) *http.Client {
	c := webhook.NewClient(&webhook.ClientOptions{Allow: allow, Resolver: names, Logger: r.log})
	r.t.Cleanup(c.CloseIdleConnections)
	return c
}

// dispatcher completes the options: a client for loopback, retries that are due when the
// test says so, and a hook that repeats everything it is told.
func (r *rig) dispatcher(store webhook.Store, opts *webhook.Options) *webhook.Dispatcher {
	o := webhook.Options{}
	if opts != nil {
		o = *opts
	}
	if o.Client == nil {
		o.Client = r.client()
	}
	if o.Backoff == nil {
		o.Backoff = func(int) time.Duration { return time.Hour }
	}
	hook := o.OnDelivery
	o.OnDelivery = func(ctx context.Context, a webhook.Attempt) {
		fmt.Fprintf(r.said, "attempt %+v %#v %v\n", a, a, a.Err)
		if hook != nil {
			hook(ctx, a)
		}
	}
	o.Logger = r.log
	return webhook.New(r.q, store, &o)
}

// to is a dispatcher with one endpoint, "shop", whose URL, header and secret hold tokens.
func (r *rig) to(hostport string, opts *webhook.Options) *webhook.Dispatcher {
	return r.dispatcher(webhook.Static(map[string]webhook.Endpoint{"shop": r.endpoint(hostport)}), opts)
}

func (r *rig) endpoint(hostport string) webhook.Endpoint {
	e := endpointTo(r.t, "http://"+hostport+"/hooks/"+pathToken+"?key="+queryToken)
	e.Header = http.Header{"X-Token": {headerToken}}
	return e
}

const paid = `{"z":1, "type":"order.paid","a":12345678901234567890}`

// send enqueues order.paid for the endpoint "shop".
func (r *rig) send(d *webhook.Dispatcher) webhook.Sent {
	r.t.Helper()
	sent, err := d.Send(r.t.Context(), nil, webhook.Delivery{Endpoint: "shop", Event: "order.paid", Body: []byte(paid)})
	require.NoError(r.t, err)
	return sent
}

// attempt makes the job due, runs what is due, and returns the job as it is then.
func (r *rig) attempt(d *webhook.Dispatcher, id int64) *rebase.Job {
	r.t.Helper()
	_, err := r.pool.Exec(r.t.Context(), `update rebase.jobs set run_at = now() where id = $1 and status = 'pending'`, id)
	require.NoError(r.t, err)
	r.once(d)
	return r.job(id)
}

func (r *rig) once(d *webhook.Dispatcher) int {
	r.t.Helper()
	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{PollOnly: true})
	d.Register(w)
	n, err := w.RunOnce(r.t.Context())
	require.NoError(r.t, err)
	return n
}

func (r *rig) job(id int64) *rebase.Job {
	r.t.Helper()
	job, err := r.q.Job(r.t.Context(), id)
	require.NoError(r.t, err)
	return job
}

// A receiver keeps the requests that it gets and answers by its function.
type receiver struct {
	addr string
	mu   sync.Mutex
	got  []received
}

type received struct {
	header http.Header
	body   []byte
	uri    string
	at     time.Time
}

// receive starts a receiver; answer gets the number of the request, from 1. If it is nil,
// the answer is 200.
func receive(t *testing.T, answer func(n int, w http.ResponseWriter)) *receiver {
	r := &receiver{}
	r.addr = serve(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.got = append(r.got, received{req.Header, body, req.RequestURI, time.Now()})
		n := len(r.got)
		r.mu.Unlock()
		if answer != nil {
			answer(n, w)
		}
	})
	return r
}

func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.got...)
}

// status answers always the same.
func status(code int) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) { w.WriteHeader(code) }
}
