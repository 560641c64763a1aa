// Command rebase operates a queue from a terminal or a script: it looks at jobs, moves
// them, and watches. Everything is in internal/cli, so that tests run it in their own
// process; here is only what belongs to a process: its signals and its exit code.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // zones of schedules, also on a host that has none

	"github.com/rebasejobs/rebase/cmd/rebase/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	return cli.Run(ctx, os.Args[1:], cli.Standard())
}
