package webhook_test

// A sender that is killed: a process of its own, this test binary started again, gets
// SIGKILL while its requests are in flight.

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
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

// senderVariable holds the database's address and the receiver's, with a space between.
const senderVariable = "REBASE_WEBHOOK_TEST_SENDER"

const senderConcurrency = 20

// sender is the process: it sends until it is killed, or until its input ends, so that it
// never outlives the test.
func sender() int {
	database, target, _ := strings.Cut(os.Getenv(senderVariable), " ")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sender:", err)
		return 1
	}
	defer pool.Close()
	secret, err := webhook.ParseSecret(vectorSecret)
	if err != nil {
		return 1
	}
	log := slog.New(slog.DiscardHandler)
	q := rebase.New(pool, &rebase.Options{Logger: log})
	d := webhook.New(q, webhook.Static(map[string]webhook.Endpoint{
		"shop": {URL: "http://" + target, Secrets: []webhook.Secret{secret}},
	}), &webhook.Options{
		Timeout: 900 * time.Millisecond, EndpointConcurrency: -1, MaxAttempts: 100,
		Client:  webhook.NewClient(&webhook.ClientOptions{Allow: loopback, MaxConnsPerHost: -1, Logger: log}),
		Backoff: func(int) time.Duration { return 50 * time.Millisecond },
	})
	w := rebase.NewWorker(q, &rebase.WorkerOptions{
		Concurrency: senderConcurrency, VisibilityTimeout: 3 * time.Second, PollInterval: 100 * time.Millisecond, PollOnly: true,
	})
	d.Register(w)
	if err := w.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sender:", err)
		return 1
	}
	return 0
}

func startSender(t *testing.T, database, target string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), senderVariable+"="+database+" "+target)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// A ledger is what a receiver has got. From the request number "before" on it holds its answers
// until whoever waits for them is dead.
type ledger struct {
	before       int
	amid, killed chan struct{}

	mu     sync.Mutex
	bodies map[string][32]byte // by the id of the delivery
	times  map[string]int
	total  int
	differ string // an id that came with two bodies
}

func newLedger(before int) *ledger {
	return &ledger{before: before, amid: make(chan struct{}), killed: make(chan struct{}), bodies: map[string][32]byte{}, times: map[string]int{}}
}

func (l *ledger) receive(_ http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // cut off in the middle
	}
	n := l.enter(req.Header.Get(webhook.HeaderDelivery), sha256.Sum256(body))
	if n == l.before {
		close(l.amid)
	}
	if n >= l.before {
		<-l.killed
	}
}

// enter returns how many requests there have been.
func (l *ledger) enter(id string, sum [32]byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, seen := l.bodies[id]; seen && old != sum {
		l.differ = id
	}
	l.bodies[id] = sum
	l.times[id]++
	l.total++
	return l.total
}

// H2, W7: the sender is killed amid 1,000 deliveries, with answers outstanding. Each arrives
// at least once, those that were cut off arrive again, and no id has two bodies.
func TestKilledSendersDeliveriesArriveAndNoIDHasTwoBodies(t *testing.T) {
	t.Parallel()
	const deliveries = 1000
	r := newRig(t)
	got := newLedger(300)
	target := serve(t, got.receive)
	var batch []webhook.Delivery
	for i := range deliveries {
		batch = append(batch, webhook.Delivery{Endpoint: "shop", Event: "n", Body: fmt.Appendf(nil, `{"n": %d}`, i)})
	}
	sent, err := r.to(target, &webhook.Options{MaxAttempts: 100}).SendAll(t.Context(), nil, batch)
	require.NoError(t, err)

	victim := startSender(t, pgtest.URL(t, r.pool), target)
	select {
	case <-got.amid:
	case <-time.After(2 * patience):
		require.Fail(t, "the sender does not get there")
	}
	require.NoError(t, victim.Process.Kill())
	_ = victim.Wait()
	close(got.killed)
	startSender(t, pgtest.URL(t, r.pool), target)
	require.Eventually(t, func() bool {
		var left int
		err := r.pool.QueryRow(t.Context(), `select count(*) from rebase.jobs where status <> 'succeeded'`).Scan(&left)
		return err == nil && left == 0
	}, 3*patience, 100*time.Millisecond)

	got.mu.Lock()
	defer got.mu.Unlock()
	require.Empty(t, got.differ, "an id with two bodies")
	twice := 0
	for i, s := range sent {
		sum, ok := got.bodies[s.ID]
		require.True(t, ok, "delivery %d never arrived", i)
		require.Equal(t, sha256.Sum256(batch[i].Body), sum)
		if got.times[s.ID] > 1 {
			twice++
		}
	}
	require.Len(t, got.bodies, deliveries)
	require.Positive(t, twice, "the kill hit nothing")
	t.Logf("%d requests for %d deliveries, %d of them more than once", got.total, deliveries, twice)
}
