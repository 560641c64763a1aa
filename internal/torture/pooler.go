//go:build unix

// A PgBouncer in transaction mode between the links and the server, for -pgbouncer. When
// it ends it is started again, as a service manager would; the adversary kills it too. Its
// shell ends it when the pipe that it reads is closed, so also when this process is killed.

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

type pooler struct {
	addr string
	args []string
	log  string // file

	mu     sync.Mutex // guards what follows
	pipe   io.Closer  // of the one that runs
	closed bool
	ended  sync.WaitGroup // the supervisor's
}

const (
	poolerIni = `[databases]
postgres = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
application_name_add_host = 0
`
	// Whichever comes first, the end of the pipe or that of the pooler, is the other's end.
	poolerScript = `exec 3<&0; "$@" </dev/null 3<&- & p=$!; { read _ <&3; kill -9 $p; } & r=$!; wait $p; kill $r`
)

func startPooler(ctx context.Context, dir, server string) (*pooler, error) {
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		if binary, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			return nil, fmt.Errorf("PgBouncer is missing: %w", err)
		}
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := free.Addr().(*net.TCPAddr)
	if err := free.Close(); err != nil {
		return nil, err
	}
	ini := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(ini, fmt.Appendf(nil, poolerIni, host, port, addr.Port), 0o644); err != nil {
		return nil, err
	}
	p := &pooler{addr: addr.String(), args: []string{binary, ini}, log: filepath.Join(dir, "pgbouncer.log")}
	if os.Geteuid() == 0 { // it refuses to run as root, and must be able to read its file
		p.args = []string{binary, "-u", "postgres", ini}
		if err := os.Chmod(dir, 0o755); err != nil {
			return nil, err
		}
	}
	p.ended.Go(p.supervise)
	for {
		c, err := net.Dial("tcp", p.addr)
		if err == nil {
			return p, c.Close()
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			p.close()
			return nil, fmt.Errorf("PgBouncer does not come up: %w", err)
		}
	}
}

func (p *pooler) supervise() {
	for {
		cmd, err := p.start()
		if err != nil {
			fmt.Fprintln(os.Stderr, "torture: PgBouncer can't be started:", err)
		}
		if cmd == nil {
			return
		}
		_ = cmd.Wait() // it was killed, or ended by itself; either way another follows
		time.Sleep(50 * time.Millisecond)
	}
}

// start starts one more; nil if there is to be none.
func (p *pooler) start() (*exec.Cmd, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command("/bin/sh", append([]string{"-c", poolerScript, "sh"}, p.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if p.pipe, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return cmd, cmd.Start()
}

// kill ends the one that runs.
func (p *pooler) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pipe != nil {
		_ = p.pipe.Close() // it may have ended by itself
	}
}

func (p *pooler) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.kill()
	p.ended.Wait()
}

// killPooler cuts everybody off at once.
func (a *adversary) killPooler(context.Context, *rand.Rand) (string, error) {
	if a.pooler == nil {
		return "", nil
	}
	a.pooler.kill()
	return "server", nil
}
