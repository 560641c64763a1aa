package webhook_test

// H4, W9: after deliveries of every outcome, the secret is in no row of the queue's tables, in no
// log, event, hook or error, in whatever spelling; nor are the tokens of the endpoints' URLs and
// headers.

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/webhook"
)

// spellings are the forms in which a key or a token could get out.
func spellings(t *testing.T) map[string]string {
	t.Helper()
	text := strings.TrimPrefix(vectorSecret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	all := map[string]string{
		"the secret":               text,
		"the secret without =":     strings.TrimRight(text, "="),
		"the secret in URL base64": base64.RawURLEncoding.EncodeToString(key),
		"the secret escaped":       url.QueryEscape(text),
		"the key":                  string(key),
		"the key in hex":           hex.EncodeToString(key),
		"the key in HEX":           strings.ToUpper(hex.EncodeToString(key)),
		"the key as %q":            strings.Trim(fmt.Sprintf("%q", key), `"`),
		"the key as %v":            strings.Trim(fmt.Sprint(key), "[]"),
		"the key as %#v":           strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", key), "[]byte{"), "}"),
	}
	for _, token := range []string{pathToken, queryToken, headerToken} {
		all["the token "+token] = token
		all["the token "+token+" in base64"] = base64.RawStdEncoding.EncodeToString([]byte(token))
		all["the token "+token+" in hex"] = hex.EncodeToString([]byte(token))
	}
	return all
}

// leaks are the spellings that stand in the text.
func leaks(t *testing.T, text string) (found []string) {
	t.Helper()
	for name, word := range spellings(t) {
		if strings.Contains(text, word) {
			found = append(found, name)
		}
	}
	return found
}

// An outcome is an endpoint and how a delivery to it must end, or the grep would be of nothing.
type outcome struct {
	endpoint webhook.Endpoint
	err      error // of the store
	status   rebase.Status
	reason   string
}

// everyOutcome has one endpoint for each code that a delivery can end with.
func everyOutcome(r *rig, t *testing.T) map[string]outcome {
	t.Helper()
	closed := listen(t)
	require.NoError(t, closed.Close())
	raw := func(answer string) string {
		return serveRaw(t, func(c net.Conn) { _, _ = c.Write([]byte(answer)) })
	}
	echo := func(code int) string { // what a rude receiver says back
		return receive(t, func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", "http://elsewhere.test/"+pathToken+"?key="+queryToken)
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(headerToken + vectorSecret))
		}).addr
	}
	at := func(addr string, status rebase.Status, reason string) outcome {
		return outcome{endpoint: r.endpoint(addr), status: status, reason: reason}
	}
	const pending, failed, cancelled = rebase.StatusPending, rebase.StatusFailed, rebase.StatusCancelled
	all := map[string]outcome{
		"good":        at(echo(200), rebase.StatusSucceeded, ""),
		"slow down":   at(echo(429), pending, "webhook: status 429"),
		"broken":      at(echo(500), pending, "webhook: status 500"),
		"moved":       at(echo(302), failed, "webhook: redirect 302"),
		"left":        at(echo(410), cancelled, "webhook: status 410: endpoint was disabled"),
		"private":     at("10.1.2.3", failed, "webhook: blocked: private"),
		"by name":     at("private.test", failed, "webhook: blocked: link-local"),
		"no name":     at("nowhere.test", pending, "webhook: dns"),
		"refused":     at(closed.Addr().String(), pending, "webhook: refused"),
		"reset":       at(raw(""), pending, "webhook: reset"),
		"no HTTP":     at(raw("HTTP/1.1 \x00\xff"+pathToken+headerToken+"\r\n\r\n"), pending, "webhook: protocol"),
		"silent":      at(dead(t), pending, "webhook: timeout"),
		"no TLS":      at(echo(200), pending, "webhook: tls"),
		"bad scheme":  at("any.test", failed, `webhook: misconfigured: URL: scheme "ftp" is not http or https`),
		"bad URL":     at("any.test", failed, "webhook: misconfigured: URL: is not a URL"),
		"user":        at("any.test", failed, "webhook: misconfigured: URL: has user information; use a header"),
		"bad header":  at("any.test", failed, `webhook: misconfigured: Header: value of "X-Token" contains the control character '\n'`),
		"zero secret": at("any.test", failed, "webhook: misconfigured: Secrets: number 2 is the zero Secret"),
		"gone":        {err: webhook.ErrNotFound, status: cancelled, reason: "webhook: no such endpoint"},
		"off":         {err: webhook.ErrDisabled, status: cancelled, reason: "webhook: endpoint is disabled"},
		"store":       {err: errors.New("the shelf is locked"), status: pending, reason: "webhook: store: the shelf is locked"},
	}
	change := func(id string, f func(e *webhook.Endpoint)) {
		o := all[id]
		f(&o.endpoint)
		all[id] = o
	}
	change("no TLS", func(e *webhook.Endpoint) { e.URL = strings.Replace(e.URL, "http:", "https:", 1) })
	change("bad scheme", func(e *webhook.Endpoint) { e.URL = strings.Replace(e.URL, "http:", "ftp:", 1) })
	change("bad URL", func(e *webhook.Endpoint) { e.URL = "http://\x00" + pathToken })
	change("user", func(e *webhook.Endpoint) { e.URL = "http://" + pathToken + ":" + queryToken + "@any.test" })
	change("bad header", func(e *webhook.Endpoint) { e.Header.Set("X-Token", headerToken+"\nX-B: 1") })
	change("zero secret", func(e *webhook.Endpoint) { e.Secrets = append(e.Secrets, webhook.Secret{}) })
	return all
}

// outcomes is a store of them.
type outcomes map[string]outcome

func (o outcomes) Endpoint(_ context.Context, id string) (webhook.Endpoint, error) {
	return o[id].endpoint, o[id].err
}

func (o outcomes) Disable(context.Context, string, string) error { return nil }

// capture is a rig whose ear hears all loggers there are: the queue's and the dispatcher's, in two
// formats, and, as far as this test runs alone, the process's default ones.
func capture(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, pool: pgtest.New(t), said: &ear{}}
	everything := &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}
	r.log = slog.New(slog.NewMultiHandler(slog.NewTextHandler(r.said, everything), slog.NewJSONHandler(r.said, everything)))
	r.q = rebase.New(r.pool, &rebase.Options{Logger: r.log, OnEvent: func(e rebase.Event) {
		fmt.Fprintf(r.said, "event %+v %#v %v\n", e, e, e.Err)
	}})
	usual, writer, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(r.log)
	t.Cleanup(func() {
		slog.SetDefault(usual)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	return r
}

// Not parallel: it takes over the default loggers.
func TestTheSecretIsNowhereAfterEveryOutcome(t *testing.T) {
	r := capture(t)
	all := everyOutcome(r, t)
	d := r.dispatcher(outcomes(all), &webhook.Options{
		Timeout: 2 * time.Second, DisableGone: true, MaxAttempts: 2,
		Client: r.guarded(loopback, names(map[string][]string{"private.test": {"169.254.169.254"}})),
	})
	hear := func(what string, err error) { fmt.Fprintf(r.said, "%s: %v %+v %#v %q\n", what, err, err, err, err) }
	jobs := map[string]int64{}
	for id := range all {
		sent, err := d.Send(t.Context(), nil, webhook.Delivery{Endpoint: id, Event: "order.paid", Body: []byte(paid)})
		require.NoError(t, err)
		jobs[id] = sent.JobID
		hear("ping "+id, d.Ping(t.Context(), id))
		hear("validate "+id, all[id].endpoint.Validate())
	}
	require.Equal(t, len(all), r.once(d))
	for id, o := range all {
		job := r.job(jobs[id])
		require.Equal(t, o.status, job.Status, "%s: %s", id, job.LastError)
		require.Equal(t, o.reason, job.LastError, id)
		hear("redeliver "+id, d.Redeliver(t.Context(), job.ID))
		why, err := r.q.Explain(t.Context(), job.ID)
		hear("explain "+id+" "+why.String(), err)
	}
	// Once more: dead letters, and what a redelivery leaves behind.
	_, err := r.pool.Exec(t.Context(), "update rebase.jobs set run_at = now() where status = 'pending'")
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.once(d), len(all))
	r.interrupt(d, "silent")

	said, rows := r.said.String(), r.dump()
	for _, want := range []string{"webhook: status 500", "Kind:dead", "level=ERROR", `"level":"ERROR"`, "ping broken: webhook: status 500"} {
		require.Contains(t, said, want, "the ear is deaf")
	}
	require.Contains(t, rows, "webhook: status 500", "nothing was dumped")
	require.Empty(t, leaks(t, said), "in logs, events, hooks and errors")
	require.Empty(t, leaks(t, rows), "in the tables")
}

// interrupt shuts a worker down while a delivery to the endpoint is under way, and cancels it.
func (r *rig) interrupt(d *webhook.Dispatcher, endpoint string) {
	r.t.Helper()
	sent, err := d.Send(r.t.Context(), nil, webhook.Delivery{Endpoint: endpoint, Body: []byte(paid)})
	require.NoError(r.t, err)
	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{ShutdownTimeout: 300 * time.Millisecond, PollOnly: true})
	d.Register(w)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	require.Eventually(r.t, func() bool { return r.job(sent.JobID).Status == rebase.StatusRunning }, patience, 5*time.Millisecond)
	cancel()
	fmt.Fprintf(r.said, "run: %v\n", <-done)
	fmt.Fprintf(r.said, "cancel: %v\n", r.q.Cancel(r.t.Context(), sent.JobID, "withdrawn"))
}

// dump is every row of every table of the queue's.
func (r *rig) dump() string {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), "select tablename from pg_tables where schemaname = 'rebase' order by 1")
	require.NoError(r.t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(r.t, err)
	require.Contains(r.t, tables, "jobs")
	var all strings.Builder
	for _, table := range tables {
		var text string
		err := r.pool.QueryRow(r.t.Context(), "select coalesce(string_agg(t::text, e'\\n'), '') from "+pgx.Identifier{"rebase", table}.Sanitize()+" t").Scan(&text)
		require.NoError(r.t, err)
		all.WriteString(text)
	}
	return all.String()
}

// The grep finds what it looks for, in each spelling.
func TestEverySpellingOfTheSecretIsFound(t *testing.T) {
	t.Parallel()
	words := spellings(t)
	for name, word := range words {
		require.Contains(t, leaks(t, "before "+word+" after"), name)
	}
	require.Empty(t, leaks(t, "*** v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= webhook: status 500"))
}
