// Package cli is rebase's command line: a thin layer over rebase.Queue that parses flags,
// prints for people or for programs, and ends with an exit code that says what happened.
//
// What it prints goes to Out, what it says about itself to Err. Nothing that comes from a row
// reaches a terminal unescaped, and the database's address reaches none at all.
package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Streams are what a command has of the outside world.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Env      func(string) string
	// InTTY, OutTTY and ErrTTY say which of the three are terminals.
	InTTY, OutTTY, ErrTTY bool
	// Size is that of the terminal which Out is.
	Size func() (width, height int)
}

// Standard are the process's own.
func Standard() Streams {
	tty := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	return Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Getenv,
		InTTY: tty(os.Stdin), OutTTY: tty(os.Stdout), ErrTTY: tty(os.Stderr),
		Size: func() (int, int) {
			w, h, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 80, 24
			}
			return w, h
		},
	}
}

// An app is one run of the command line.
type app struct {
	Streams
	out     *bufio.Writer
	url     string
	json    bool
	timeout time.Duration
	yes     bool
	dryRun  bool
	began   bool // the command line was understood
}

// Run runs a command and returns the exit code. It returns soon after ctx has ended.
func Run(ctx context.Context, args []string, s Streams) int {
	a := &app{Streams: s, out: bufio.NewWriter(s.Out)}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if flushErr := a.out.Flush(); err == nil && flushErr != nil {
		a.began, err = true, fmt.Errorf("write the output: %w", flushErr)
	}
	return a.finish(ctx, cmd, err)
}

// Root is the tree of commands, for documentation.
func Root() *cobra.Command {
	return (&app{out: bufio.NewWriter(io.Discard)}).root()
}

const rootLong = `rebase operates a job queue that lives in PostgreSQL.

The database is the one that $DATABASE_URL or --database-url names. The environment is the
better place: other users of the machine can see a command line.

Exit codes: 0 done; 1 failed; 2 the command line can't be understood, or a value can't be
stored; 3 no such job or schedule; 4 the job's state doesn't allow it, or its key is taken;
5 not confirmed; 6 the schema is missing or doesn't fit, or the role lacks privileges; 130
interrupted. With several jobs the code is that of the first that failed; the others are done
all the same.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "rebase", Short: "Operate a job queue that lives in PostgreSQL", Long: rootLong,
		SilenceErrors: true, SilenceUsage: true, Version: version(),
		Args: cobra.NoArgs, Run: func(cmd *cobra.Command, _ []string) { _ = cmd.Help() }, // it only prints
	}
	root.SetIn(a.In)
	root.SetOut(a.out)
	root.SetErr(a.Err)
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "database-url", "", "address of the database (default $DATABASE_URL)")
	flags.BoolVar(&a.json, "json", false, "print JSON for programs: an object, or one a line")
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second, "how long one statement may take")
	root.AddCommand(
		a.migrateCommand(), a.checkCommand(),
		a.statsCommand(), a.watchCommand(), a.listCommand(), a.showCommand(),
		a.enqueueCommand(), a.retryCommand(), a.redriveCommand(), a.cancelCommand(), a.deleteCommand(), a.purgeCommand(),
		a.pauseCommand(), a.resumeCommand(), a.schedulesCommand(),
	)
	return root
}

// version is the module's, as the build recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// guarded adds the flags of commands that may change many rows.
func (a *app) guarded(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.yes, "yes", false, "don't ask for confirmation")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "say what would be done, and change nothing")
	return cmd
}

// with makes a command's function of one that needs the database.
func (a *app) with(f func(ctx context.Context, d *db, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		d, err := a.open()
		if err != nil {
			return err
		}
		defer d.pool.Close()
		a.began = true
		return f(cmd.Context(), d, args)
	}
}
