package webhook_test

// W10: whatever an endpoint does, the attempt ends at the deadline, little is
// held in memory, and the other endpoints keep flowing.

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

const bodyCap = 64 << 10

var discardLog = log.New(io.Discard, "", 0)

// impatient is a client with a deadline that a test can wait for.
func impatient(t *testing.T, o webhook.ClientOptions) *http.Client {
	t.Helper()
	o.Allow, o.Timeout = loopback, 300*time.Millisecond
	return newClient(t, o)
}

// requireDeadline asserts that the attempt ended by the deadline of impatient.
func requireDeadline(t *testing.T, client *http.Client, url string) {
	t.Helper()
	began := time.Now()
	_, err := post(t, client, url)
	requireCode(t, err, "timeout", false)
	require.GreaterOrEqual(t, time.Since(began), 250*time.Millisecond)
	require.Less(t, time.Since(began), patience)
}

func TestW10AnEndpointThatNeverAnswersEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server see the client go
		<-r.Context().Done()
	})
	requireDeadline(t, impatient(t, webhook.ClientOptions{}), "http://"+hang)
}

func TestW10ABodyThatDripsEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	drip := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
				_, _ = io.WriteString(w, ".")
				_ = http.NewResponseController(w).Flush()
			}
		}
	})
	requireDeadline(t, impatient(t, webhook.ClientOptions{}), "http://"+drip)
}

func TestW10ASilentTLSHandshakeEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	silent := listen(t) // the kernel accepts, nobody answers
	requireDeadline(t, impatient(t, webhook.ClientOptions{}), "https://"+silent.Addr().String())
}

func TestW10ALookUpThatHangsEndsAtTheDeadlineAndIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	client := impatient(t, webhook.ClientOptions{Resolver: resolver(func(ctx context.Context, _ string) ([]netip.Addr, error) {
		defer close(ended)
		<-ctx.Done()
		return nil, ctx.Err()
	})})
	requireDeadline(t, client, "http://slow.example")
	// net/http lets a dial outlive its request; ours has an end of its own.
	select {
	case <-ended:
	case <-time.After(patience):
		require.Fail(t, "the look-up goes on after the request")
	}
}

func TestW10WaitingForAConnectionCountsAgainstTheDeadline(t *testing.T) {
	t.Parallel()
	var busy sync.WaitGroup
	entered := make(chan struct{})
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(entered)
		<-r.Context().Done()
	})
	client := newClient(t, webhook.ClientOptions{Allow: loopback, MaxConnsPerHost: 1})
	ctx, cancel := context.WithCancel(t.Context())
	busy.Go(func() { _, _ = postContext(ctx, t, client, "http://"+hang) })
	<-entered
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	_, err := postContext(short, t, client, "http://"+hang)
	requireCode(t, err, "timeout", false)
	cancel()
	busy.Wait()
}

func TestW10AHugeBodyIsReadUpTo64KiB(t *testing.T) {
	t.Parallel()
	const size = 200 << 20
	for name, header := range map[string]string{"with its length": "209715200", "in endless chunks": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written := make(chan int64, 1)
			huge := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if header != "" {
					w.Header().Set("Content-Length", header)
				}
				var n int64
				block := make([]byte, 32<<10)
				for r.Context().Err() == nil && (header == "" || n < size) {
					m, err := w.Write(block)
					n += int64(m)
					if err != nil {
						break
					}
				}
				written <- n
			})
			resp, err := newClient(t, webhook.ClientOptions{Allow: loopback}).Post("http://"+huge, "application/json", nil)
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.EqualValues(t, bodyCap, n)
			require.NoError(t, resp.Body.Close())
			require.NoError(t, webhook.Outcome(t.Context(), resp, nil), "2xx is success")
			// The rest never crosses: the server finds the connection closed.
			require.Less(t, <-written, int64(size/4))
		})
	}
}

func TestW10HugeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	const lines = 20 << 10 // of 1 KiB
	var sent atomic.Int64
	huge := serveRaw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		line := []byte("X-Big: " + strings.Repeat("a", 1015) + "\r\n")
		for range lines {
			if _, err := c.Write(line); err != nil {
				return
			}
			sent.Add(1)
		}
	})
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	_, err := post(t, client, "http://"+huge)
	requireCode(t, err, "protocol", false)
	require.Less(t, sent.Load(), int64(lines), "the client hung up long before the end")
}

func TestW10TheCapOnHeadersLiesAt64KiB(t *testing.T) { // no higher and no lower than promised
	t.Parallel()
	client := newClient(t, webhook.ClientOptions{Allow: loopback})
	of := func(kib int) error {
		_, err := post(t, client, "http://"+serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("a", kib<<10))
		}))
		return err
	}
	require.NoError(t, of(60))
	requireCode(t, of(70), "protocol", false)
}

func TestW10AGzipBombStaysPacked(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(make([]byte, 16<<20))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.Less(t, packed.Len(), bodyCap)
	asked := make(chan string, 1)
	bomb := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	})
	resp, err := newClient(t, webhook.ClientOptions{Allow: loopback}).Post("http://"+bomb, "application/json", nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, packed.Bytes(), body)
	require.Empty(t, <-asked)
}

func TestW10OtherEndpointsKeepFlowingBesideAHangingOne(t *testing.T) {
	t.Parallel()
	var stuck sync.WaitGroup
	entered := make(chan struct{}, 100)
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-r.Context().Done()
	})
	good := serve(t, thanks)
	client := newClient(t, webhook.ClientOptions{Allow: loopback, Timeout: time.Minute, Resolver: resolver(everywhere)})
	ctx, cancel := context.WithCancel(t.Context())
	for range 30 {
		stuck.Go(func() { _, _ = postContext(ctx, t, client, "http://hang.example:"+portOf(t, hang)) })
	}
	for range 8 { // all that the limit lets through
		<-entered
	}
	for range 20 {
		quick, stop := context.WithTimeout(t.Context(), patience)
		_, err := postContext(quick, t, client, "http://good.example:"+portOf(t, good))
		stop()
		require.NoError(t, err)
	}
	require.Empty(t, entered, "the limit of 8 connections a host holds")
	cancel()
	stuck.Wait()
}

// H5, W15: the lanes alone say how many deliveries are under way. If connections to a host were
// few, dead endpoints would hold up the others at theirs.
func TestDeliveriesToOneHostDoNotWaitForEachOthersConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const endpoints, each = 4, 4
	var arrived atomic.Int32
	all := make(chan struct{})
	addr := serve(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if arrived.Add(1) == endpoints*each {
			close(all)
		}
		select { // nobody is answered before all have come
		case <-all:
		case <-req.Context().Done():
		}
	})
	store := map[string]webhook.Endpoint{}
	var batch []webhook.Delivery
	for i := range endpoints {
		id := strconv.Itoa(i)
		store[id] = endpointTo(t, "http://"+addr+"/"+id)
		batch = append(batch, slices.Repeat([]webhook.Delivery{{Endpoint: id}}, each)...)
	}
	const timeout = 8 * time.Second
	client := webhook.OwnClient(timeout, loopback...)
	t.Cleanup(client.CloseIdleConnections)
	d := r.dispatcher(webhook.Static(store), &webhook.Options{Client: client, Timeout: timeout, EndpointConcurrency: each})
	sent, err := d.SendAll(t.Context(), nil, batch)
	require.NoError(t, err)
	w := rebase.NewWorker(r.q, &rebase.WorkerOptions{PollOnly: true, Concurrency: len(batch)})
	d.Register(w)
	_, err = w.RunOnce(t.Context())
	require.NoError(t, err)
	for _, s := range sent {
		require.Equal(t, rebase.StatusSucceeded, r.job(s.JobID).Status, r.job(s.JobID).LastError)
	}
}
