//go:build unix

// A child process without a goroutine. The children here may live as long as
// the test binary or longer, and a goroutine that waits for them would look
// like a leak of the package under test. So a child is asked, without blocking,
// whether it has ended.

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// launcher writes its pid, which stays the same over exec, and the program's
// name, and becomes the program unless the guard has been by ($2, see guard.go).
// Descriptor 3 is the guard's lifeline: holding it until then means that the
// guard doesn't see the owner's end before.
const launcher = `echo $$ "${3##*/}" >"$1" && [ ! -e "$2" ] && shift 2 && exec "$@" 3>&-`

// process is one child. It isn't safe for concurrent use; Server.mu guards it.
type process struct {
	pid    int
	status syscall.WaitStatus
	ended  bool
}

// launch starts a program of the server as the server's user, with its output
// appended to the log.
func (s *Server) launch(name string, args ...string) (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("pgserver: log: %w", err)
	}
	defer log.Close()
	argv := append([]string{"-c", launcher, "sh", s.pidFile(), s.goneFile(), name}, args...)
	cmd := exec.Command("/bin/sh", argv...)
	cmd.Dir, cmd.Env = s.runDir(), environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.account}
	if s.guard.lifeline != nil {
		cmd.ExtraFiles = []*os.File{s.guard.lifeline}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("pgserver: start %s: %w", name, err)
	}
	pid := cmd.Process.Pid
	// Waiting is by pid below; the handle would only be collected some day.
	if err := cmd.Process.Release(); err != nil {
		return nil, fmt.Errorf("pgserver: start %s: %w", name, err)
	}
	return &process{pid: pid}, nil
}

// exited reports whether the child has ended and reaps it if so.
func (p *process) exited() bool {
	for !p.ended {
		pid, err := syscall.Wait4(p.pid, &p.status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil: // ECHILD: somebody else reaped it
			p.ended = true
		case pid == 0:
			return false
		default:
			p.ended = true
		}
	}
	return true
}

// wait returns when the child has ended or ctx is done.
func (p *process) wait(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !p.exited() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// signal does nothing to a child that has ended: its pid may be another's now.
func (p *process) signal(sig syscall.Signal) error {
	if p.exited() {
		return nil
	}
	return syscall.Kill(p.pid, sig)
}

// environment is ours without what would lead the server or initdb astray:
// PGDATA, PGPORT, and locales that the machine may not have.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "LC_") || name == "LANG" || name == "LANGUAGE" {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "LC_ALL=C")
}

// serverAccount returns whom the server runs as: nil for ourselves. PostgreSQL
// refuses to run as root, so root needs the account that packages make.
func serverAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("pgserver: PostgreSQL doesn't run as root, and there is no user postgres to run it as: "+
			"make one (useradd --system postgres) or run as an ordinary user: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgserver: uid of postgres: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgserver: gid of postgres: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
