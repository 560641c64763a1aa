// Bench measures rebase beside other job queues on PostgreSQL, and beside its own ceiling: the
// same statements in a bare loop.
//
// The rule behind every part: all systems meet the same server, in databases of their own that
// are emptied, filled and vacuumed before each measurement, in an order that turns round with
// each round. Nothing is averaged away: every single value is printed and kept, with the load
// of the machine at the time.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// A config is what the flags say. The sizes are those of scale 1.
type config struct {
	rounds    amount
	scale     amount
	url, bin  string
	json      string
	plot      string
	profile   string
	anatomy   bool
	list      bool
	from      []string
	scenarios []string
	systems   []string
	batch     int            // of the ceiling and the bare prototypes
	slots     map[string]int // by system
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	isChild, err := beChild(ctx, os.Args[1:])
	if !isChild {
		var cfg *config
		switch cfg, err = parse(os.Args[1:], os.Stderr); {
		case errors.Is(err, flag.ErrHelp):
			return
		case err != nil:
			os.Exit(2)
		case cfg.list:
			list(os.Stdout)
			return
		case cfg.from != nil:
			err = again(cfg, os.Stdout)
		default:
			err = run(ctx, cfg, os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// beChild does what a child is to do, if this process is one.
func beChild(ctx context.Context, args []string) (bool, error) {
	switch {
	case len(args) != 3:
		return false, nil
	case args[0] == enqueuerArg:
		return true, enqueueOnDemand(ctx, args[1], args[2])
	case args[0] == peerArg:
		return true, servePeer(ctx, args[1], args[2], os.Stdin, os.Stdout)
	}
	return false, nil
}

// parse reads the flags. Names of scenarios and systems that don't exist are refused: a run of
// an hour must not end without what was asked for.
func parse(args []string, out io.Writer) (*config, error) {
	cfg := &config{slots: map[string]int{}}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	cfg.rounds = amount{all: 5, whole: true}
	f.Var(&cfg.rounds, "n", "rounds: how often everything is measured, or some scenarios: 5,idle=1 (default 5)")
	cfg.scale = amount{all: 1}
	f.Var(&cfg.scale, "scale", "multiplies the number of jobs, in all scenarios or in some: 0.01 is a quick look, whose figures mean little;\n1,retained=0.2 is everything, but fewer finished jobs (default 1)")
	f.BoolVar(&cfg.list, "list", false, "list the scenarios, with the question that each answers, and measure nothing")
	f.BoolVar(&cfg.anatomy, "anatomy", false, "instead of the scenarios: what a job costs each statement of drain, payload.10k, insert and insert.keys, and what it leaves in the WAL:\nrow versions, row locks, index entries, bytes; on a private server of PostgreSQL 15 or newer with its contrib modules")
	from := f.String("from", "", "comma-separated files of -json: measure nothing, but make the tables and the pictures of them together")
	f.StringVar(&cfg.url, "url", "", "PostgreSQL to use (a superuser's address; databases named bench_* are dropped and made); if empty, a private durable server is started")
	f.StringVar(&cfg.bin, "bin", "", "directory of the private server's binaries; if empty, they are looked for")
	f.StringVar(&cfg.json, "json", "", "file for all values, settings and loads")
	f.StringVar(&cfg.plot, "plot", "", "directory for pictures (SVG)")
	f.StringVar(&cfg.profile, "profile", "", "directory for CPU profiles of this process, one for each scenario and system")
	f.IntVar(&cfg.batch, "ceiling-batch", 1000, "jobs in a claim of the ceiling and of the bare prototypes")
	which := f.String("scenarios", "", "comma-separated; if empty, all:\n"+describeScenarios())
	who := f.String("systems", "", "comma-separated; if empty, all: "+strings.Join(systemNames(), ", "))
	slots := map[string]*int{}
	for _, s := range allSystems {
		if s.slots > 0 {
			slots[s.name] = f.Int(s.name+"-slots", s.slots, "concurrency of "+s.name+" where it has a choice")
		}
	}
	err := f.Parse(args)
	if err == nil {
		err = cfg.choose(*which, *who, f.Args())
		if err != nil {
			fmt.Fprintln(out, "bench:", err)
		}
	}
	if *from != "" {
		cfg.from = strings.Split(*from, ",")
	}
	for name, n := range slots {
		cfg.slots[name] = *n
	}
	return cfg, err
}

func (c *config) choose(which, who string, rest []string) (err error) {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if c.anatomy && (c.url != "" || c.json != "" || c.plot != "") {
		return errors.New("-anatomy starts a server of its own and prints tables: no -url, -json or -plot")
	}
	if c.batch < 1 {
		return fmt.Errorf("-ceiling-batch %d must be positive", c.batch)
	}
	if c.scenarios, err = pick("scenario", which, scenarioNames()); err != nil {
		return err
	}
	c.systems, err = pick("system", who, systemNames())
	return err
}

// pick returns the names in list, in the order of all.
func pick(kind, list string, all []string) ([]string, error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("unknown %s %q; there are %s", kind, name, strings.Join(all, ", "))
		}
	}
	slices.SortFunc(wanted, func(a, b string) int { return cmp.Compare(slices.Index(all, a), slices.Index(all, b)) })
	return slices.Compact(wanted), nil
}
