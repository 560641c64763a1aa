//go:build unix

// A PgBouncer of the run's own, in transaction mode. Its shell ends it when the pipe that it reads
// is closed, so also when this process is killed.

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

type pooler struct {
	url    string
	dir    string
	cmd    *exec.Cmd
	in     io.Closer
	output bytes.Buffer // to be read after its end
}

// A missingError says that the machine has no PgBouncer.
type missingError struct {
	binary string // as -pgbouncer names it; "" if it was looked for
	err    error
}

func (e *missingError) Error() string {
	return fmt.Sprintf("PgBouncer is missing (-pgbouncer %q): install the package pgbouncer, or name its binary with -pgbouncer: %v", e.binary, e.err)
}

func (e *missingError) Unwrap() error { return e.err }

// findPooler looks in PATH and where Debian puts it, which is in root's PATH only.
func (b *bench) findPooler() (string, error) {
	path, err := exec.LookPath(cmp.Or(b.pgbouncer, "pgbouncer"))
	if err != nil && b.pgbouncer == "" {
		path, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		return "", &missingError{b.pgbouncer, err}
	}
	return path, nil
}

const poolerINI = `[databases]
%[1]s = host=%[2]s port=%[3]d user=%[4]s%[5]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[6]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %[7]d
max_client_conn = %[8]d
log_connections = 0
log_disconnections = 0
log_stats = 0
`

// startPooler returns once the pooler lets clients through.
func (b *bench) startPooler(ctx context.Context) (_ *pooler, err error) {
	binary, err := b.findPooler()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &pooler{}
	if p.dir, err = os.MkdirTemp("", "rebase-pooler-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	cc := b.pool.Config().ConnConfig
	password := ""
	if cc.Password != "" {
		password = " password=" + cc.Password
	}
	ini := filepath.Join(p.dir, "pgbouncer.ini")
	config := fmt.Appendf(nil, poolerINI, cc.Database, cc.Host, cc.Port, cc.User, password, port, b.serverConns, b.clients+20)
	// Its user must be able to read it; whoever can may connect to the server anyway.
	if err := errors.Join(os.Chmod(p.dir, 0o755), os.WriteFile(ini, config, 0o644)); err != nil {
		return nil, err
	}
	if err := p.start(binary, ini); err != nil {
		return nil, err
	}
	p.url = fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", cc.User, port, cc.Database)
	return p, p.ready(ctx)
}

func (p *pooler) start(binary, ini string) error {
	args := []string{"-c", `"$@" </dev/null & p=$!; read _; kill -9 $p`, "sh", binary}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "postgres") // it refuses to run as root
	}
	cmd := exec.Command("/bin/sh", append(args, ini)...)
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.in = cmd, in
	return nil
}

// ready waits until a statement goes through.
func (p *pooler) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, p.url)
		if err == nil {
			_, err = conn.Exec(ctx, "select 1", pgx.QueryExecModeExec)
			err = errors.Join(err, conn.Close(ctx))
		}
		if err == nil {
			return nil
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("PgBouncer does not come up: %w", err)
		}
	}
}

// close ends the pooler. Its error is what the pooler said, if it never came up.
func (p *pooler) close() error {
	if p.cmd != nil {
		_ = p.in.Close() // it is what ends the shell; Wait tells how
		_ = p.cmd.Wait()
	}
	err := os.RemoveAll(p.dir)
	if p.url == "" || p.output.Len() == 0 {
		return err
	}
	return errors.Join(err, fmt.Errorf("PgBouncer said: %s", bytes.TrimSpace(p.output.Bytes())))
}

// freePort is one that nobody listens on right now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
