//go:build unix

// The guard keeps the package's invariant. It is a shell in a session of its
// own, so that neither Ctrl-C nor the death of our process group reaches it. It
// waits for the owner's end, then takes the server down and removes its
// directory. A server that is just being started can't slip through: the guard
// first leaves a file "gone", then looks for a pid; the launcher first writes its
// pid, then looks for that file. One of them sees the other.

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// identityScript tells one life of a pid from the next one. On Linux it is the
// start time in /proc, elsewhere what ps says. A zombie counts as dead: in a
// container nobody may ever reap it.
const identityScript = `
identity() {
	if [ -r "/proc/$1/stat" ]; then
		read -r line <"/proc/$1/stat" || return 1
		# The name in brackets may hold spaces. After it: state, …, start time as the 20th.
		set -- ${line##*) }
		case $1 in Z|X) return 1 ;; esac
		echo "${20}"
	else
		case $(ps -o stat= -p "$1" 2>/dev/null) in Z*|'') return 1 ;; esac
		ps -o lstart= -p "$1" 2>/dev/null
	fi
}
`

// awaitScript returns when the owner has ended. A process that we are the child
// of can be watched by a pipe: end of file is its end, at once and for certain.
// Any other is looked at once a second.
//
// Arguments: $1 owner's pid or empty, $2 the owner's identity.
const awaitScript = `
await() {
	if [ -n "$1" ]; then
		while [ "$(identity "$1")" = "$2" ]; do sleep 1; done
	else
		read -r _
	fi
}
`

// guardScript: $1 owner's pid or empty, $2 its identity, $3 the server's
// directory, $4 one more directory to remove or empty. What runs is postgres or
// initdb. An immediate shutdown takes milliseconds; after three seconds the
// postmaster is killed, upon which its children end by themselves. initdb can be
// killed at once, but not its children, which would leave shared memory behind
// if they were, or if they lost their files: they end with their input, so wait
// for the process group. (-s 0, because dash doesn't know -0 with --.)
const guardScript = identityScript + awaitScript + `
await "$1" "$2"
[ -z "$4" ] || rm -rf "$4"
{ : >"$3/gone"; } 2>/dev/null || exit 0
pid=
[ ! -e "$3/run/pid" ] || read -r pid program <"$3/run/pid"
if [ -n "$pid" ]; then
	signal=KILL
	[ "$program" != postgres ] || signal=QUIT
	kill -$signal "$pid" 2>/dev/null
	tries=0
	while [ $tries -lt 30 ] && kill -s 0 -- "-$pid" 2>/dev/null &&
		{ [ $signal = KILL ] || identity "$pid" >/dev/null; }; do
		sleep 0.1
		tries=$((tries + 1))
	done
	kill -KILL "$pid" 2>/dev/null
fi
# The last backends may still be writing their files.
for _ in 1 2 3; do
	rm -rf "$3" && exit 0
	sleep 0.2
done
exit 1
`

// Identity returns a string that only this life of the process pid has, and an
// error if there is no such process.
func Identity(pid int) (string, error) {
	out, err := exec.Command("/bin/sh", "-c", identityScript+`identity "$1"`, "sh", strconv.Itoa(pid)).Output()
	id := strings.TrimSpace(string(out))
	if err != nil || id == "" {
		return "", fmt.Errorf("pgserver: no live process %d", pid)
	}
	return id, nil
}

// guard is a running guard process.
type guard struct {
	cmd *exec.Cmd
	// lifeline is the writing end of the pipe that the guard reads; nothing is
	// ever written. Nil when the owner is another process.
	lifeline *os.File
}

// prepareGuard makes a shell with the given script, not yet started. The
// script's first two arguments are owner and identity as await wants them; args
// follow.
func prepareGuard(owner int, script string, args ...string) (*guard, error) {
	g := &guard{}
	pid, id := "", ""
	if owner != 0 {
		var err error
		if id, err = Identity(owner); err != nil {
			return nil, err
		}
		pid = strconv.Itoa(owner)
	}
	g.cmd = exec.Command("/bin/sh", append([]string{"-c", script, "sh", pid, id}, args...)...)
	g.cmd.Dir = "/"
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if owner == 0 {
		stdin, lifeline, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("pgserver: guard: %w", err)
		}
		g.cmd.Stdin, g.lifeline = stdin, lifeline
	}
	return g, nil
}

// start lets the guard begin to wait.
func (g *guard) start() error {
	err := g.cmd.Start()
	if stdin, ours := g.cmd.Stdin.(*os.File); ours {
		err = errors.Join(err, stdin.Close()) // the child has its own
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pgserver: guard: %w", err), g.closeLifeline())
	}
	return nil
}

// end dismisses the guard. Its work must have been done before, or must not be
// wanted.
func (g *guard) end() error {
	if err := g.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("pgserver: guard: %w", err)
	}
	err := g.cmd.Wait()
	if _, killed := errors.AsType[*exec.ExitError](err); killed {
		err = nil
	}
	return errors.Join(err, g.closeLifeline())
}

func (g *guard) closeLifeline() error {
	if g.lifeline == nil {
		return nil
	}
	return g.lifeline.Close()
}
