// The proxy is the ground under the tests of outages (SPEC J9, J24, N4, N5), so each promise of its methods is proved
// against a plain echo server: here what opens and closes connections, in faults_test.go what happens to their bytes.
package faultnet_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rebasejobs/rebase/internal/faultnet"
)

const (
	patience = 20 * time.Second       // for what must happen
	quiet    = 30 * time.Millisecond  // for what must not: a fault that leaks shows at once on loopback
	oneWay   = 10 * time.Millisecond  // the delay that is tested
	early    = 500 * time.Microsecond // by which Delay aims early
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a target that counts; handle serves one connection, which is closed after it.
type server struct {
	addr           string
	live, accepted atomic.Int64
	mu             sync.Mutex // guards conns
	conns          []net.Conn
}

func serve(t testing.TB, network, addr string, handle func(net.Conn)) *server {
	t.Helper()
	ln, err := net.Listen(network, addr)
	require.NoError(t, err)
	s := &server{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			s.live.Add(1)
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			wg.Go(func() {
				defer s.live.Add(-1)
				defer func() { _ = c.Close() }()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		s.reset()
		wg.Wait()
	})
	return s
}

// reset kills the server's connections the way a crashed backend does.
func (s *server) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// proxied is a proxy in front of an echo server.
func proxied(t testing.TB) (*faultnet.Proxy, *server) {
	t.Helper()
	s := serve(t, "tcp", "127.0.0.1:0", echo)
	return proxyTo(t, s.addr), s
}

func proxyTo(t testing.TB, target string) *faultnet.Proxy {
	t.Helper()
	p, err := faultnet.Listen(target)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func dial(t testing.TB, p *faultnet.Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

func send(t testing.TB, c net.Conn, s string) {
	t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(t, err)
}

func expect(t testing.TB, c net.Conn, want string) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	got := make([]byte, len(want))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func ping(t testing.TB, c net.Conn) {
	t.Helper()
	send(t, c, "ping")
	expect(t, c, "ping")
}

// expectNothing reads until the quiet time is over: no byte, no end, no error.
func expectNothing(t testing.TB, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(quiet)))
	n, err := c.Read(make([]byte, 1))
	require.Zero(t, n, "a byte got through")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// expectReset wants the end of c, by RST and with no byte before it.
func expectReset(t testing.TB, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	n, err := c.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// expectRefusal wants a new connection to be reset, which may be before connect has looked.
func expectRefusal(t testing.TB, p *faultnet.Proxy) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
		return
	}
	expectReset(t, c)
	require.NoError(t, c.Close())
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, time.Millisecond, what)
}

func TestBytesAndHalfClosePassUnchangedWithoutFaults(t *testing.T) {
	t.Parallel()
	p, s := proxied(t)
	c := dial(t, p)
	want := make([]byte, 4<<20)
	for i := 0; i < len(want); i += 8 {
		binary.LittleEndian.PutUint64(want[i:], rand.Uint64())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = c.Write(want)
		_ = c.CloseWrite() // the echo's end must still come back
	})
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(c)
	wg.Wait()
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%d bytes of %d came back, or changed", len(got), len(want))
	eventually(t, "the link is forgotten", func() bool { return p.Conns() == 0 && s.live.Load() == 0 })
	require.Equal(t, 1, p.Accepted())
}

func TestTargetMayBeAUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	serve(t, "unix", path, echo)
	p := proxyTo(t, path)
	c := dial(t, p)
	ping(t, c)
	require.NoError(t, c.CloseWrite())
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestBadTargetIsATypedErrorWithItsValue(t *testing.T) {
	t.Parallel()
	_, err := faultnet.Listen("nowhere")
	var addr *net.AddrError
	require.ErrorAs(t, err, &addr)
	require.Equal(t, "nowhere", addr.Addr)
}

func TestClientIsResetWhenTheTargetIsDownAndServedWhenItIsBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := proxyTo(t, path)
	expectRefusal(t, p)
	serve(t, "unix", path, echo)
	ping(t, dial(t, p))
}

func TestRedirectLeadsNewConnectionsElsewhereAndSparesOpenOnes(t *testing.T) {
	t.Parallel()
	p, s := proxied(t)
	old := dial(t, p)
	ping(t, old)
	other := serve(t, "unix", filepath.Join(t.TempDir(), "s"), echo)
	require.NoError(t, p.Redirect(other.addr))
	ping(t, dial(t, p))
	ping(t, old)
	require.Equal(t, []int64{1, 1}, []int64{s.accepted.Load(), other.accepted.Load()})
	var addr *net.AddrError
	require.ErrorAs(t, p.Redirect("nowhere"), &addr)
	ping(t, dial(t, p))
	require.EqualValues(t, 2, other.accepted.Load(), "a bad target changes nothing")
}

func TestURLPutsTheProxyInThePlaceOfTheHost(t *testing.T) {
	t.Parallel()
	p := proxyTo(t, "127.0.0.1:1")
	for in, want := range map[string]string{
		"postgres://u:p%40w@db:5432/x?sslmode=disable":     "postgres://u:p%40w@" + p.Addr() + "/x?sslmode=disable",
		"postgresql://a:1,b:2/x":                           "postgresql://" + p.Addr() + "/x",
		"postgres:///x?host=/run/postgresql&port=5433&a=b": "postgres://" + p.Addr() + "/x?a=b",
	} {
		require.Equal(t, want, p.URL(in), in)
	}
	for _, in := range []string{"host=db password=secret", "http://u:secret@db/", "postgres://u:secret@db:x/"} {
		require.PanicsWithValue(t, "faultnet: URL: dsn is not a postgres:// URL", func() { p.URL(in) }, in)
	}
}

func TestCutResetsBothSidesAtOnceAndNewConnectionsWork(t *testing.T) {
	t.Parallel()
	p, s := proxied(t)
	conns := []net.Conn{dial(t, p), dial(t, p), dial(t, p)}
	for _, c := range conns {
		ping(t, c)
	}
	require.Equal(t, 3, p.Conns())
	p.Cut()
	require.Zero(t, p.Conns(), "closed when Cut returns")
	for _, c := range conns {
		expectReset(t, c)
	}
	eventually(t, "the server has seen it", func() bool { return s.live.Load() == 0 })
	ping(t, dial(t, p))
	require.Equal(t, 4, p.Accepted())
	require.Equal(t, 1, p.Conns())
}

func TestRefuseResetsNewConnectionsAndSparesOpenOnes(t *testing.T) {
	t.Parallel()
	p, s := proxied(t)
	old := dial(t, p)
	ping(t, old)
	p.Refuse(true)
	for range 3 {
		expectRefusal(t, p)
	}
	ping(t, old)
	eventually(t, "refused ones are counted", func() bool { return p.Accepted() == 4 })
	require.Equal(t, 1, p.Conns())
	p.Refuse(false)
	ping(t, dial(t, p))
	require.EqualValues(t, 2, s.accepted.Load(), "the server never saw the refused ones")
}

func TestCloseIsFinalAndMayBeRepeated(t *testing.T) {
	t.Parallel()
	p, s := proxied(t)
	c := dial(t, p)
	ping(t, c)
	p.Stall(true) // Close must not wait for it
	send(t, c, "ping")
	expectNothing(t, c)
	p.Close()
	p.Close()
	expectReset(t, c)
	_, err := net.Dial("tcp", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Zero(t, p.Conns())
	eventually(t, "the server has seen it", func() bool { return s.live.Load() == 0 })
}
