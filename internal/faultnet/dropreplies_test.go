// DropReplies (the ground under SPEC J24) against a scripted server that talks like PostgreSQL where it matters: it
// answers with CommandComplete and ReadyForQuery, "in transaction" or "idle", and remembers what it has committed.
package faultnet_test

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/faultnet"
)

// The server reads words of six bytes and answers by this script.
const (
	begun    = "C\x00\x00\x00\x0aBEGIN\x00Z\x00\x00\x00\x05T"
	done     = "C\x00\x00\x00\x0bCOMMIT\x00Z\x00\x00\x00\x05I"
	prepared = "1\x00\x00\x00\x04n\x00\x00\x00\x04Z\x00\x00\x00\x05I" // idle, but nothing has run
	failed   = "E\x00\x00\x00\x16SFEHLER\x00VERROR\x00\x00Z\x00\x00\x00\x05I"
)

var script = map[string]string{"begin;": begun, "commit": done, "parse;": prepared, "wrong;": failed}

func postgres(t *testing.T) (p *faultnet.Proxy, committed *atomic.Int64) {
	committed = new(atomic.Int64)
	s := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		word := make([]byte, 6)
		for _, err := io.ReadFull(c, word); err == nil; _, err = io.ReadFull(c, word) {
			if string(word) == "commit" {
				committed.Add(1)
			}
			_, _ = c.Write([]byte(script[string(word)]))
		}
	})
	return proxyTo(t, s.addr), committed
}

func commits(b []byte) bool { return bytes.Contains(b, []byte("commit")) }

func TestDropRepliesCutsAfterTheServerCommittedAndBeforeTheClientKnows(t *testing.T) {
	t.Parallel()
	p, committed := postgres(t)
	c := dial(t, p)
	p.DropReplies(commits)
	send(t, c, "begin;")
	expect(t, c, begun) // a statement that doesn't match is untouched
	send(t, c, "commit")
	expectReset(t, c)
	require.EqualValues(t, 1, committed.Load())

	p.DropReplies(nil)
	c = dial(t, p)
	send(t, c, "commit")
	expect(t, c, done)
}

func TestDropRepliesWaitsForTheEndOfAPipelinedTransaction(t *testing.T) {
	t.Parallel()
	p, committed := postgres(t)
	p.DropReplies(commits)
	c := dial(t, p)
	send(t, c, "begin;begin;commit") // matches before the server has answered the first
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Contains(t, []string{"", begun, begun + begun}, string(got)) // as the pieces fall
	require.EqualValues(t, 1, committed.Load())
}

// An idle server that has only prepared the statement has committed nothing yet: the cut waits until it has run.
func TestDropRepliesIsNotFooledByPrepare(t *testing.T) {
	t.Parallel()
	p, committed := postgres(t)
	p.DropReplies(func(b []byte) bool { return bytes.Contains(b, []byte("parse;")) })
	c := dial(t, p)
	send(t, c, "parse;")
	expect(t, c, prepared)
	require.Zero(t, committed.Load())
	send(t, c, "commit")
	expectReset(t, c)
	require.EqualValues(t, 1, committed.Load())
}

func TestDropRepliesLosesTheReplyToAFailureToo(t *testing.T) {
	t.Parallel()
	p, _ := postgres(t)
	p.DropReplies(func(b []byte) bool { return bytes.Contains(b, []byte("wrong;")) })
	c := dial(t, p)
	send(t, c, "wrong;")
	expectReset(t, c)
}

func TestDropRepliesUnderDelayAndForOneVictimOnly(t *testing.T) {
	t.Parallel()
	p, committed := postgres(t)
	p.Delay(oneWay)
	asked := 0 // no lock: calls come one at a time
	p.DropReplies(func(b []byte) bool {
		if commits(b) {
			asked++
		}
		return asked == 1
	})
	first, second := dial(t, p), dial(t, p)
	send(t, first, "commit")
	expectReset(t, first)
	send(t, second, "commit")
	expect(t, second, done)
	require.EqualValues(t, 2, committed.Load())
}

// Both the statement and the report come in two pieces that the proxy passes on apart.
func TestDropRepliesSeesAcrossPieces(t *testing.T) {
	t.Parallel()
	half, rest := make(chan struct{}), make(chan struct{})
	s := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 3))
		close(half)
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write([]byte(done[:15]))
		<-rest
		_, _ = c.Write([]byte(done[15:]))
		_, _ = c.Read(make([]byte, 1))
	})
	p := proxyTo(t, s.addr)
	p.DropReplies(commits)
	c := dial(t, p)
	send(t, c, "com")
	<-half
	send(t, c, "mit")
	expect(t, c, done[:15])
	close(rest)
	expectReset(t, c)
}

// What an earlier rule was shown must not set off the next one: only then would the reply to "wrong;" be lost.
func TestDropRepliesLooksOnlyAtWhatFollowsTheCall(t *testing.T) {
	t.Parallel()
	p, _ := postgres(t)
	p.DropReplies(func([]byte) bool { return false })
	c := dial(t, p)
	send(t, c, "commit")
	expect(t, c, done)
	p.DropReplies(commits)
	send(t, c, "wrong;")
	expect(t, c, failed)
	send(t, c, "commit")
	expectReset(t, c)
}

func TestDropRepliesCallsMatchOneAtATime(t *testing.T) {
	t.Parallel()
	p, _ := postgres(t)
	var inside, overlaps atomic.Int64
	p.DropReplies(func([]byte) bool {
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		runtime.Gosched() // let another in, if it can
		inside.Add(-1)
		return false
	})
	var wg sync.WaitGroup
	for range 8 {
		c := dial(t, p)
		wg.Go(func() {
			for range 50 {
				_, _ = c.Write([]byte("parse;"))
				_, _ = io.ReadFull(c, make([]byte, len(prepared)))
			}
		})
	}
	wg.Wait()
	require.Zero(t, overlaps.Load())
}
