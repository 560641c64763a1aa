//go:build unix

package main

// The wire between a worker and the server: replies that are lost, packets that vanish.

import (
	"bytes"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/faultnet"
)

// proxied puts a proxy between the bed's workers and the server; the bed's own
// connections go past it.
func (b *bed) proxied() *faultnet.Proxy {
	b.Helper()
	c := b.pool.Config().ConnConfig
	proxy, err := faultnet.Listen(net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))))
	require.NoError(b, err)
	b.Cleanup(proxy.Close)
	b.fleet.config.URL = proxy.URL(b.fleet.config.URL)
	return proxy
}

// Q12, J8: the reply to a claim is lost after the server has committed it, ten times. The
// rows come back long before their lease ends, with their one attempt.
func TestLostClaimRepliesCostNoAttempt(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 1)
	proxy := b.proxied()
	p := b.start(1)[0]
	var claims, lost atomic.Int64
	// What carries a worker's id and no counters is a claim: the heartbeat has those.
	proxy.DropReplies(func(sent []byte) bool {
		claim := bytes.Contains(sent, []byte(p.Name+"-")) && !bytes.Contains(sent, []byte(`"claims"`))
		return claim && claims.Add(1)%5 == 0 && lost.Add(1) <= 10
	})
	made := b.produce(1000)
	require.NoError(t, <-made)
	b.await("all jobs to be done", "select not exists (select from rebase.jobs where finished_at is null)")
	require.GreaterOrEqual(t, lost.Load(), int64(5))
	var waited int
	require.NoError(t, b.pool.QueryRow(b.ctx, "select count(*) from rebase.jobs where runs > 1").Scan(&waited))
	require.NotZero(t, waited, "no claim that was lost had jobs in it")
	b.finish(Expect{Innocent: true})
}

// Q13, J10: all connections of a worker turn into black holes: nothing arrives any more, and
// nobody is told. It notices by its own deadlines, connects anew, and loses nothing.
func TestABlackHoleIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5, 1)
	proxy := b.proxied()
	b.start(1)
	b.make(5, Payload{For: 500 * time.Millisecond})
	b.make(200, Payload{For: 5 * time.Millisecond})
	b.await("some to be done", "select count(*) > 5 from crash.runs where ended_at is not null")
	before := proxy.Accepted()
	proxy.BlackHole(true)
	b.wait(lease / 2)
	proxy.BlackHole(false)
	b.finish(Expect{Innocent: true})
	require.Greater(t, proxy.Accepted(), before, "the connections in the hole can't come back")
}
