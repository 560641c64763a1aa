package webhook_test

// H4, W9, W13: what goes wrong is told in a few fixed words. The rig's ear has heard rows,
// events, the hook and logs; newRig's clean-up goes through all of it.

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

// W9, W13: whatever the failure, last_error is its code, and neither the token of the URL nor
// anything of the response's is anywhere.
func TestFailuresAreToldByTheirCodeAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	closed := listen(t)
	require.NoError(t, closed.Close())
	raw := func(answer string) string {
		return serveRaw(t, func(c net.Conn) { _, _ = c.Write([]byte(answer)) })
	}
	for want, addr := range map[string]string{
		"status 500": receive(t, func(_ int, w http.ResponseWriter) {
			w.Header().Set("X-Echo", pathToken)
			w.WriteHeader(500)
			_, _ = w.Write([]byte("\x00\xff" + pathToken + queryToken + headerToken))
		}).addr,
		"status 404": receive(t, status(404)).addr,
		"refused":    closed.Addr().String(),
		"reset":      raw(""),
		"protocol":   raw("HTTP/1.1 \x00\xff" + pathToken + "\r\n\r\n"),
		"timeout":    dead(t),
	} {
		d := r.to(addr, &webhook.Options{Timeout: 2 * time.Second})
		job := r.attempt(d, r.send(d).JobID)
		require.Equal(t, rebase.StatusPending, job.Status, want)
		require.Equal(t, "webhook: "+want, job.LastError)
		require.Equal(t, job.LastError, job.History[0].Error)
		require.Contains(t, r.said.String(), "webhook: "+want)
	}
}

// W9: dead letters are logged as errors and reported as events, with the code alone.
func TestDeadLettersAreToldByTheirCodeAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.to(receive(t, status(503)).addr, &webhook.Options{MaxAttempts: 1})
	r.requireEnd(d, "failed", "webhook: status 503")
	require.Eventually(t, func() bool { return strings.Contains(r.said.String(), "Kind:dead") }, patience, time.Millisecond)
	require.Contains(t, r.said.String(), "level=ERROR")
}

// H4: a ping is guarded, signed and told like any delivery, and makes no job.
func TestPing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	to := receive(t, func(n int, w http.ResponseWriter) {
		if n == 2 {
			w.WriteHeader(500)
		}
	})
	d := r.to(to.addr, nil)
	require.NoError(t, d.Ping(t.Context(), "shop"))
	requireCode(t, d.Ping(t.Context(), "shop"), "status 500", false)
	require.ErrorIs(t, d.Ping(t.Context(), "nobody"), webhook.ErrNotFound)
	requireCode(t, r.to("10.1.2.3", nil).Ping(t.Context(), "shop"), "blocked: private", true)
	require.JSONEq(t, `{"type":"ping"}`, string(to.all()[0].body))
	require.NoError(t, verify(t, to.all()[0], mustParse(t, vectorSecret)))
	_, err := r.q.Job(t.Context(), 1)
	require.ErrorIs(t, err, rebase.ErrNotFound)
}

// H4: nothing of the package's own prints a key.
func TestSealersAndStoresPrintNoKey(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef0123456789abcdef")
	sealer, err := webhook.AESGCM(key)
	require.NoError(t, err)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		require.Equal(t, "***", fmt.Sprintf(verb, sealer))
	}
}

// dead accepts connections and never answers.
func dead(t *testing.T) string {
	t.Helper()
	l := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var held []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			held = append(held, c)
		}
		for _, c := range held {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}
