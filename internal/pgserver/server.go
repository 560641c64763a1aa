//go:build unix

// Starting, stopping and restarting the server. Its directory holds data (the
// cluster), run (the socket and the pid, writable by the server's user) and the
// log. The port is chosen once and kept over restarts.

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// stopTimeout bounds Stop. A smart shutdown waits for clients, so it needs an
// end that a test can live with.
const stopTimeout = time.Minute

// Server is a running (or stopped) private server. Its methods may be called
// from several goroutines.
type Server struct {
	cfg     Config
	bin     string
	dir     string
	account *syscall.Credential // nil: our own
	guard   *guard
	port    int

	mu     sync.Mutex // held over a whole start, stop or close
	proc   *process   // nil while stopped; guarded by mu
	closed bool       // guarded by mu
}

// Start makes a cluster in a directory of its own and starts a server on it,
// listening on 127.0.0.1 and on a unix socket. It returns once the server
// accepts connections. The superuser is postgres, without a password: only
// this machine's users can reach it. If ctx ends first, nothing is left behind.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	s := &Server{cfg: cfg, bin: cfg.BinDir}
	if s.bin == "" {
		s.bin, err = Find()
	} else if err = checkBinDir(s.bin); err != nil {
		err = fmt.Errorf("pgserver: BinDir %q: %w", s.bin, err)
	}
	if err != nil {
		return nil, err
	}
	if s.account, err = serverAccount(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// create goes all the way to a running server. What it leaves behind when it
// fails is remove's to clear.
func (s *Server) create(ctx context.Context) (err error) {
	parent := s.cfg.Dir
	if parent == "" && !s.cfg.Durable { // a durable server's commits are to reach a disk
		parent = ramDir()
	}
	if s.dir, err = os.MkdirTemp(cmp.Or(parent, TempDir()), "rebase-pg-"); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	// The server's user must pass through; nothing in here is secret.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	for dir, mode := range map[string]os.FileMode{s.dataDir(): 0o700, s.runDir(): 0o755} {
		if err := errors.Join(os.Mkdir(dir, mode), s.chown(dir)); err != nil {
			return fmt.Errorf("pgserver: %w", err)
		}
	}
	guard, err := prepareGuard(s.cfg.Owner, guardScript, s.dir, s.cfg.AlsoRemove)
	if err != nil {
		return err
	}
	if err := guard.start(); err != nil {
		return err
	}
	s.guard = guard
	if err := s.initdb(ctx); err != nil {
		return err
	}
	return s.startOnFreePort(ctx)
}

func (s *Server) initdb(ctx context.Context) error {
	proc, err := s.launch(filepath.Join(s.bin, "initdb"), "-D", s.dataDir(), "-U", "postgres",
		"-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	if err != nil {
		return err
	}
	if err := proc.wait(ctx); err != nil {
		return errors.Join(fmt.Errorf("pgserver: initdb: %w", err), s.abandonInitdb(proc))
	}
	if proc.status.ExitStatus() != 0 {
		return fmt.Errorf("pgserver: initdb failed (%s):\n%s", s.bin, s.logTail())
	}
	return s.forgetPID()
}

// abandonInitdb ends initdb, then waits for its children as the guard does.
func (s *Server) abandonInitdb(proc *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	err := errors.Join(proc.signal(syscall.SIGKILL), proc.wait(ctx))
	for ctx.Err() == nil && syscall.Kill(-proc.pid, 0) == nil {
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// startOnFreePort tries ports until the server gets one. Between our look and
// the server's bind somebody else may take it, hence the tries.
//
// The ports lie below the ranges that Linux and macOS hand out to outgoing
// connections. From those, a client that redials while the server is down can
// get the server's own port as its source, connect to itself, and keep the
// server from coming back.
func (s *Server) startOnFreePort(ctx context.Context) (err error) {
	for range 20 {
		s.port = 15000 + rand.IntN(17000)
		if !portFree(s.port) {
			continue
		}
		if err = s.start(ctx); err == nil || !s.portTaken() {
			return err
		}
	}
	return errors.Join(errors.New("pgserver: no free port in 20 tries"), err)
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// portTaken reports whether the last start failed for want of its port.
func (s *Server) portTaken() bool {
	return strings.Contains(s.logTail(), "could not create any TCP/IP sockets")
}

// start runs postgres and waits until it accepts connections. s.mu is held.
func (s *Server) start(ctx context.Context) error {
	conf := s.cfg.settings()
	conf["listen_addresses"] = "127.0.0.1"
	conf["port"] = strconv.Itoa(s.port)
	conf["unix_socket_directories"] = s.runDir()
	// A file of our own that includes initdb's, which holds what initdb found to
	// work on this machine. A second start writes it anew. ALTER SYSTEM works as ever.
	file := filepath.Join(s.dir, "postgresql.conf")
	include := fmt.Sprintf("include '%s'\n", filepath.Join(s.dataDir(), "postgresql.conf"))
	if err := os.WriteFile(file, []byte(include+render(conf)), 0o644); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	if err := os.Truncate(s.logFile(), 0); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	proc, err := s.launch(filepath.Join(s.bin, "postgres"), "-D", s.dataDir(), "-c", "config_file="+file)
	if err != nil {
		return err
	}
	s.proc = proc
	if err := s.awaitReady(ctx); err != nil {
		return errors.Join(err, s.stop(syscall.SIGQUIT))
	}
	return nil
}

// awaitReady asks over the unix socket, which can be no other server's.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	target := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/postgres", RawQuery: url.Values{
		"host": {s.runDir()}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}, "connect_timeout": {"5"},
	}.Encode()}
	for {
		if s.proc.exited() {
			return fmt.Errorf("pgserver: postgres ended while starting (%s):\n%s", s.bin, s.logTail())
		}
		conn, err := pgconn.Connect(ctx, target.String())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pgserver: not ready: %w: %w\n%s", context.Cause(ctx), err, s.logTail())
		case <-tick.C:
		}
	}
}

// URL returns the address of a database of this server, over TCP.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database,
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), RawQuery: "sslmode=disable"}
	return u.String()
}

// Port returns the TCP port, which stays the same over restarts.
func (s *Server) Port() int { return s.port }

// SocketDir returns the directory of the unix socket.
func (s *Server) SocketDir() string { return s.runDir() }

// Log returns what the server has logged since its last start.
func (s *Server) Log() (string, error) {
	log, err := os.ReadFile(s.logFile())
	return string(log), err
}

// Stop stops the server and keeps its data. The mode is "smart" (wait for
// clients to leave), "fast" (disconnect them) or "immediate" (like a crash:
// recovery at the next start). Stopping a stopped server does nothing.
func (s *Server) Stop(mode string) error {
	sig, err := signalFor(mode)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(sig)
}

// Restart stops the server, if it runs, and starts it again on the same port
// and data. The modes are those of Stop.
func (s *Server) Restart(mode string) error {
	sig, err := signalFor(mode)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("pgserver: restart of a closed server")
	}
	if err := s.stop(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return s.start(ctx)
}

func signalFor(mode string) (syscall.Signal, error) {
	switch mode {
	case "smart":
		return syscall.SIGTERM, nil
	case "fast":
		return syscall.SIGINT, nil
	case "immediate":
		return syscall.SIGQUIT, nil
	}
	return 0, fmt.Errorf("pgserver: stop mode %q: want smart, fast or immediate", mode)
}

// stop signals the postmaster and waits for its end. s.mu is held.
func (s *Server) stop(sig syscall.Signal) error {
	if s.proc == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.proc.signal(sig); err != nil {
		return fmt.Errorf("pgserver: stop: %w", err)
	}
	if err := s.proc.wait(ctx); err != nil {
		return fmt.Errorf("pgserver: stop (%s): %w\n%s", sig, err, s.logTail())
	}
	s.proc = nil
	return s.forgetPID()
}

// forgetPID keeps the guard from signalling a process that is no longer ours.
func (s *Server) forgetPID() error {
	if err := os.Remove(s.pidFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pgserver: %w", err)
	}
	return nil
}

// Close stops the server like a crash and removes its directory. A second
// Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove()
}

// remove takes everything back that create made, as far as it came.
func (s *Server) remove() error {
	if s.closed || s.dir == "" {
		return nil
	}
	s.closed = true
	if err := s.stop(syscall.SIGQUIT); err != nil {
		// The guard gets what we could not end: closing its lifeline starts it.
		return errors.Join(err, s.guard.closeLifeline())
	}
	err := os.RemoveAll(s.dir)
	if s.cfg.AlsoRemove != "" {
		err = errors.Join(err, os.RemoveAll(s.cfg.AlsoRemove))
	}
	if s.guard != nil {
		err = errors.Join(err, s.guard.end())
	}
	return err
}

func (s *Server) dataDir() string  { return filepath.Join(s.dir, "data") }
func (s *Server) runDir() string   { return filepath.Join(s.dir, "run") }
func (s *Server) pidFile() string  { return filepath.Join(s.runDir(), "pid") }
func (s *Server) logFile() string  { return filepath.Join(s.dir, "log") }
func (s *Server) goneFile() string { return filepath.Join(s.dir, "gone") }

// chown gives a directory to the server's user.
func (s *Server) chown(dir string) error {
	if s.account == nil {
		return nil
	}
	return os.Chown(dir, int(s.account.Uid), int(s.account.Gid))
}

// logTail returns the end of the log, for error messages.
func (s *Server) logTail() string {
	log, err := s.Log()
	if err != nil {
		return err.Error()
	}
	return log[max(0, len(log)-2000):]
}

// TempDir returns where servers live that have no other place: the system's
// directory for temporary files. Root uses /tmp, because the server's user may not see root's TMPDIR,
// and so does everybody whose TMPDIR is too long: a unix socket's path holds
// 103 bytes at most.
func TempDir() string {
	dir := os.TempDir()
	if os.Geteuid() == 0 || len(dir) > 60 {
		return "/tmp"
	}
	return dir
}
