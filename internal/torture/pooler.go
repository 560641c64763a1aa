//go:build unix

// A PgBouncer in transaction mode between the links and the server, for -pgbouncer. Its
// shell ends it when the pipe that it reads is closed, so also when this process is killed.

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

type pooler struct {
	addr string
	cmd  *exec.Cmd
	pipe io.Closer
}

const poolerIni = `[databases]
postgres = host=127.0.0.1 port=%d user=postgres
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

func startPooler(ctx context.Context, dir string, server int) (*pooler, error) {
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		if binary, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			return nil, fmt.Errorf("PgBouncer is missing: %w", err)
		}
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
	if err := os.WriteFile(ini, fmt.Appendf(nil, poolerIni, server, addr.Port), 0o644); err != nil {
		return nil, err
	}
	args := []string{binary, "-q", ini}
	if os.Geteuid() == 0 { // it refuses to run as root, and must be able to read its file
		args = []string{binary, "-q", "-u", "postgres", ini}
		if err := os.Chmod(dir, 0o755); err != nil {
			return nil, err
		}
	}
	p := &pooler{addr: addr.String()}
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", `"$@" </dev/null & p=$!; read _; kill -9 $p`, "sh"}, args...)...)
	log, err := os.Create(filepath.Join(dir, "pgbouncer.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.pipe, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
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

func (p *pooler) close() {
	_ = p.pipe.Close() // it is what ends the shell
	_ = p.cmd.Wait()   // it was killed
}
