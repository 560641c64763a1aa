package webhook_test

// The store in the database: what it gives back, what it refuses, and that nothing of an
// endpoint's stands in it readable.

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
	"github.com/rebasejobs/rebase/webhook"
)

func newSealer(t testing.TB, key byte, former ...byte) webhook.Sealer {
	t.Helper()
	var old [][]byte
	for _, k := range former {
		old = append(old, []byte(strings.Repeat(string(k), 32)))
	}
	s, err := webhook.AESGCM([]byte(strings.Repeat(string(key), 32)), old...)
	require.NoError(t, err)
	return s
}

func (r *rig) pgStore() *webhook.PGStore {
	r.t.Helper()
	s := webhook.NewPGStore(r.pool, newSealer(r.t, 'k'))
	require.NoError(r.t, s.Migrate(r.t.Context()))
	return s
}

// H1: what was put comes back whole, and is replaced whole.
func TestPGStoreGivesBackWhatWasPut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.pgStore()
	first := r.endpoint("a.test")
	first.Secrets = append(first.Secrets, webhook.NewSecret())
	second := endpointTo(t, "https://b.test:8443")
	for _, want := range []webhook.Endpoint{first, second} {
		require.NoError(t, s.Put(t.Context(), "shop", want))
		got, err := s.Endpoint(t.Context(), "shop")
		require.NoError(t, err)
		require.Equal(t, want.URL, got.URL)
		require.Equal(t, want.Header, got.Header)
		require.Len(t, got.Secrets, len(want.Secrets))
		for i := range want.Secrets {
			require.True(t, want.Secrets[i].Equal(got.Secrets[i]))
		}
	}
	var target string
	require.NoError(t, r.pool.QueryRow(t.Context(), `select target from rebase.webhook_endpoints`).Scan(&target))
	require.Equal(t, "https://b.test:8443", target)
}

// H4: neither a secret nor a token of the URL or of a header stands in the table.
func TestPGStoreHoldsNoSecretReadable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.pgStore()
	e := r.endpoint("a.test")
	require.NoError(t, s.Put(t.Context(), "shop", e))
	var text string
	var sealed []byte
	require.NoError(t, r.pool.QueryRow(t.Context(), `select e::text, e.sealed from rebase.webhook_endpoints e`).Scan(&text, &sealed))
	text += string(sealed)
	require.Contains(t, text, "http://a.test")
	for _, word := range append([]string{"whsec_"}, unsafe...) {
		require.NotContains(t, text, word)
	}
}

// W12: unknown, deleted and disabled ones are told by the sentinels; Put enables again; both
// verbs may be repeated, and the first reason stays.
func TestPGStoreDeleteAndDisable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.pgStore()
	ctx := t.Context()
	_, err := s.Endpoint(ctx, "shop")
	require.ErrorIs(t, err, webhook.ErrNotFound)
	require.NoError(t, s.Disable(ctx, "shop", "status 410"))
	require.NoError(t, s.Delete(ctx, "shop"))

	require.NoError(t, s.Put(ctx, "shop", r.endpoint("a.test")))
	for _, reason := range []string{"status 410\x00\xff", "later"} {
		require.NoError(t, s.Disable(ctx, "shop", reason))
	}
	_, err = s.Endpoint(ctx, "shop")
	require.ErrorIs(t, err, webhook.ErrDisabled)
	var reason string
	require.NoError(t, r.pool.QueryRow(ctx, `select disabled_reason from rebase.webhook_endpoints`).Scan(&reason))
	require.Equal(t, "status 410\ufffd\ufffd", reason)

	require.NoError(t, s.Put(ctx, "shop", r.endpoint("a.test")))
	_, err = s.Endpoint(ctx, "shop")
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, s.Delete(ctx, "shop"))
	}
	_, err = s.Endpoint(ctx, "shop")
	require.ErrorIs(t, err, webhook.ErrNotFound)
}

// H1, W8, W14: what could not be used, or not be kept as it is, is not put; the error names the
// field.
func TestPGStoreRefusesWhatCanNotBeUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.pgStore()
	good := r.endpoint("a.test")
	binary := r.endpoint("a.test")
	binary.Header = http.Header{"X-A": {"\xff"}}
	for _, c := range []struct {
		id, field string
		e         webhook.Endpoint
	}{
		{"", "ID", good},
		{strings.Repeat("x", 256), "ID", good},
		{"a\x00", "ID", good},
		{"\xff", "ID", good},
		{"shop", "URL", endpointTo(t, "ftp://a.test")},
		{"shop", "URL", endpointTo(t, "http://a.test/caf\xe9")},
		{"shop", "URL", endpointTo(t, "http://a.test/?k=\xff")},
		{"shop", "Secrets", webhook.Endpoint{URL: "http://a.test"}},
		{"shop", "Header", withHeader(good.Secrets, "a.test", "Host", "b")},
		{"shop", "Header", binary},
	} {
		e, ok := errors.AsType[*webhook.EndpointError](s.Put(t.Context(), c.id, c.e))
		require.True(t, ok, "%q", c.id)
		require.Equal(t, c.field, e.Field)
		_, err := s.Endpoint(t.Context(), c.id)
		require.ErrorIs(t, err, webhook.ErrNotFound)
		require.NoError(t, s.Delete(t.Context(), c.id))
		require.NoError(t, s.Disable(t.Context(), c.id, ""))
	}
	require.Panics(t, func() { webhook.NewPGStore(nil, newSealer(t, 'k')) })
	require.Panics(t, func() { webhook.NewPGStore(r.pool, nil) })
}

// H4: a sealed text opens with its keys only, and in its own row only.
func TestSealedTextOpensWithItsKeysAndInItsRowOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	s := r.pgStore()
	require.NoError(t, s.Put(ctx, "shop", r.endpoint("a.test")))
	require.NoError(t, s.Put(ctx, "other", r.endpoint("b.test")))
	_, err := webhook.NewPGStore(r.pool, newSealer(t, 'n', 'k')).Endpoint(ctx, "shop")
	require.NoError(t, err, "a former key")
	_, err = webhook.NewPGStore(r.pool, newSealer(t, 'n')).Endpoint(ctx, "shop")
	require.EqualError(t, err, `webhook: endpoint "shop": webhook: seal: sealed with a key that is not known here`)

	for _, c := range []struct{ sql, reason string }{
		{`update rebase.webhook_endpoints set sealed = (select sealed from rebase.webhook_endpoints where id = 'other') where id = 'shop'`, "damaged, or of another row"},
		{`update rebase.webhook_endpoints set sealed = set_byte(sealed, length(sealed) - 1, get_byte(sealed, length(sealed) - 1) # 1)`, "damaged, or of another row"},
		{`update rebase.webhook_endpoints set sealed = substr(sealed, 1, 9)`, "damaged, or of another row"},
		{`update rebase.webhook_endpoints set sealed = '{}'`, "not sealed by AESGCM"},
		{`update rebase.webhook_endpoints set sealed = ''`, "not sealed by AESGCM"},
	} {
		_, err := r.pool.Exec(ctx, c.sql)
		require.NoError(t, err)
		_, err = s.Endpoint(ctx, "shop")
		e, ok := errors.AsType[*webhook.SealError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, c.reason, e.Reason)
	}
	_, err = webhook.AESGCM([]byte("short"))
	require.EqualError(t, err, "webhook: seal: a key has 5 bytes, not 32")
	_, err = webhook.AESGCM(make([]byte, 32), make([]byte, 31))
	require.Error(t, err)
}

// J25: any number of processes migrate at once, before or after or beside the queue's own.
func TestPGStoreMigratesFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	s := webhook.NewPGStore(pool, newSealer(t, 'k'))
	q := rebase.New(pool, nil)
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for i := range 8 {
		wg.Go(func() {
			if i%2 == 0 {
				errs <- q.Migrate(context.WithoutCancel(t.Context()))
			} else {
				errs <- s.Migrate(context.WithoutCancel(t.Context()))
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, s.Put(t.Context(), "shop", endpointTo(t, "http://a.test")))
	_, err := pool.Exec(t.Context(), `insert into rebase.webhook_migrations (version) values (99)`)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()), "a newer one is left alone")
	_, err = s.Endpoint(t.Context(), "shop")
	require.NoError(t, err)
}

// H1, W12, W16: the store and the dispatcher together.
func TestDeliveriesByPGStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.pgStore()
	to := receive(t, func(n int, w http.ResponseWriter) {
		if n == 2 {
			w.WriteHeader(http.StatusGone)
		}
	})
	d := r.dispatcher(s, &webhook.Options{DisableGone: true})
	r.requireEnd(d, "cancelled", webhook.ErrNotFound.Error())
	require.NoError(t, s.Put(t.Context(), "shop", r.endpoint(to.addr)))
	require.Equal(t, rebase.StatusSucceeded, r.attempt(d, r.send(d).JobID).Status)
	r.requireEnd(d, "cancelled", "webhook: status 410: endpoint was disabled")
	r.requireEnd(d, "cancelled", webhook.ErrDisabled.Error())
	require.Len(t, to.all(), 2)

	_, err := r.pool.Exec(t.Context(), `update rebase.webhook_endpoints set disabled_at = null, sealed = ''`)
	require.NoError(t, err)
	job := r.attempt(d, r.send(d).JobID)
	require.Equal(t, rebase.StatusPending, job.Status, "another process may be able to open it")
	require.Equal(t, `webhook: store: webhook: endpoint "shop": webhook: seal: not sealed by AESGCM`, job.LastError)
}

// As Queue.Migrate does, it says who may.
func TestPGStoreMigrateTellsWhoMay(t *testing.T) {
	t.Parallel()
	for name, pool := range map[string]*pgxpool.Pool{"beside the queue": pgtest.New(t), "in an empty database": pgtest.Empty(t)} {
		cfg := pool.Config()
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "set role pg_read_all_stats") // a role of every server's that may do nothing here
			return err
		}
		weak, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(weak.Close)
		err = webhook.NewPGStore(weak, newSealer(t, 'k')).Migrate(t.Context())
		require.ErrorContains(t, err, "webhook: migrate: the role may not make the table; let the owner of schema rebase migrate", name)
		require.ErrorContains(t, err, "permission denied", name)
	}
}

// The table is made by a Migrate of its own, which is easily forgotten beside the queue's.
func TestPGStoreWithoutItsTableSaysWhatToDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := webhook.NewPGStore(r.pool, newSealer(t, 'k'))
	ctx := t.Context()
	_, err := s.Endpoint(ctx, "shop")
	for verb, err := range map[string]error{
		"endpoint": err,
		"put":      s.Put(ctx, "shop", r.endpoint("a.test")),
		"disable":  s.Disable(ctx, "shop", "gone"),
		"delete":   s.Delete(ctx, "shop"),
	} {
		require.ErrorContains(t, err, `webhook: `+verb+` "shop": the table is missing, call PGStore.Migrate: `)
	}
}
