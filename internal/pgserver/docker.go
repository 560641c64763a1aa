//go:build unix

// The way out for machines without the server's binaries: a container, by
// internal/devdb, which is a module of its own so that this one doesn't depend
// on Docker's libraries. It ends when its standard input closes; here that
// input is the guard's, so the container has the same life as a Server.

package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// devdb is started by its import path: go.work makes it known in this
// repository, which is the only place where it is wanted.
const devdb = "github.com/rebasejobs/rebase/internal/devdb"

// dockerScript: arguments as in guardScript, but $3 is the program. The shell
// that waits for the owner's end holds the other end of devdb's input. The empty
// line says that devdb has ended: the waiting shell keeps our pipe open, so we
// would not see that by end of file.
const dockerScript = identityScript + awaitScript + `
{
	await "$1" "$2"
	[ -z "$4" ] || rm -rf "$4"
} | {
	go run "$3"
	echo
}
`

// StartDocker runs PostgreSQL in a container and returns the address of its
// database postgres and a function that stops it. Of cfg it heeds Owner and
// AlsoRemove. Without a Docker engine that answers, the error says so.
func StartDocker(ctx context.Context, cfg Config) (url string, stop func() error, err error) {
	if err := dockerAnswers(ctx); err != nil {
		return "", nil, err
	}
	stdout, toStdout, err := os.Pipe()
	if err != nil {
		return "", nil, fmt.Errorf("pgserver: docker: %w", err)
	}
	defer stdout.Close()
	defer toStdout.Close()
	problems, err := os.CreateTemp("", "rebase-devdb-")
	if err != nil {
		return "", nil, fmt.Errorf("pgserver: docker: %w", err)
	}
	defer os.Remove(problems.Name())
	defer problems.Close()

	g, err := prepareGuard(cfg.Owner, dockerScript, devdb, cfg.AlsoRemove)
	if err != nil {
		return "", nil, err
	}
	g.cmd.Dir = "" // go run needs the workspace that we are in
	g.cmd.Stdout, g.cmd.Stderr = toStdout, problems
	if err := g.start(); err != nil {
		return "", nil, err
	}
	if url, err = firstLine(ctx, stdout); err != nil {
		detail, _ := os.ReadFile(problems.Name()) // only adds to an error
		return "", nil, errors.Join(fmt.Errorf("pgserver: docker: devdb gave no address: %w\n%s", err, detail), g.finish())
	}
	return url, g.finish, nil
}

// finish ends the container in the gentle way and waits for it.
func (g *guard) finish() error {
	if g.lifeline == nil {
		// The group is the shell, its subshell and devdb: all of them are ours.
		if err := syscall.Kill(-g.cmd.Process.Pid, syscall.SIGTERM); err != nil {
			return fmt.Errorf("pgserver: docker: %w", err)
		}
	}
	err := g.closeLifeline()
	g.lifeline = nil
	if _, ended := errors.AsType[*exec.ExitError](g.cmd.Wait()); ended {
		return err // its exit code has nothing to say to us any more
	}
	return err
}

// firstLine reads the address that devdb prints when the container is ready.
// Pulling the image can take minutes, so only ctx bounds it.
func firstLine(ctx context.Context, stdout *os.File) (string, error) {
	// A pipe has deadlines: this ends the read when ctx ends.
	defer context.AfterFunc(ctx, func() { stdout.SetReadDeadline(time.Unix(1, 0)) })()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", err
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", errors.New("it ended")
	}
	return line, nil
}

// dockerAnswers asks before anything is built: building devdb only to hear that
// there is no engine would cost a minute.
func dockerAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "info", "--format", "{{.ServerVersion}}").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgserver: docker: no engine answers: %w %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
