//go:build unix

// One server for all test binaries of a `go test` run. They are separate
// processes, at the same time and one after the other; what they share is their
// parent, the go command. So the run is keyed by the parent's pid and start
// time, and the server's owner is the parent: it lives as long as the run does,
// also when that is killed.
//
// The run's directory holds a lock file and the server's address. Whoever gets
// the lock and finds no address starts the server.

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// run is a `go test` run that this process is part of.
type run struct {
	pid int // of the go command
	dir string
}

// currentRun returns the run, or false if the test binary was started by hand,
// by a debugger or by anything else than the go command.
func currentRun() (run, bool) {
	pid := os.Getppid()
	if commandName(pid) != "go" {
		return run{}, false
	}
	id, err := pgserver.Identity(pid)
	if err != nil {
		return run{}, false // it has ended meanwhile
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	name := fmt.Sprintf("rebase-test-%d-%d-%x", os.Geteuid(), pid, h.Sum64())
	return run{pid: pid, dir: filepath.Join(pgserver.TempDir(), name)}, true
}

// commandName returns the name of a process's program, "" if it can't be told.
func commandName(pid int) string {
	if comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm")); err == nil {
		return strings.TrimSpace(string(comm))
	}
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSpace(string(out)))
}

// server returns the address of the run's server and starts it if nobody has.
func (r run) server(ctx context.Context) (url string, err error) {
	if err := r.makeDir(); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(r.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // gives the lock back
	if err := flock(lock); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	address := filepath.Join(r.dir, "url")
	content, err := os.ReadFile(address)
	// The end of the line proves that its writer was not killed halfway.
	if url, whole := strings.CutSuffix(string(content), "\n"); err == nil && whole {
		return url, nil
	}
	// Not stopped by us: it is the run's.
	url, _, err = pgserver.Any(ctx, pgserver.Config{Owner: r.pid, AlsoRemove: r.dir})
	if err != nil {
		return "", err
	}
	return url, os.WriteFile(address, []byte(url+"\n"), 0o600)
}

// makeDir makes the run's directory, or accepts the one that is there if it is
// ours: others can write to the directory that it lies in.
func (r run) makeDir() error {
	err := os.Mkdir(r.dir, 0o700)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(r.dir)
	if err != nil {
		return err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !known || int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of ours", r.dir)
	}
	return nil
}

// flock waits for the exclusive lock on a file.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
