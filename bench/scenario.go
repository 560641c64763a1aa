package main

// How scenarios are run: each for all its systems, n rounds, the order turned round with every
// round. A system that fails is reported and left out of the rest of the scenario; the others
// go on, and the program's exit code tells.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A scenario is one question.
type scenario struct {
	name    string
	about   string
	asks    string // the question
	systems []*system
	warm    bool // drain once, unmeasured, before anything else
	// setup, if not nil, is done once for each system, before the first round.
	setup func(ctx context.Context, t *trial) error
	run   func(ctx context.Context, t *trial) error
}

// allScenarios in order of importance.
var allScenarios = []*scenario{
	drain, drain5, held, enqueue, insert, wake, work1ms, work100ms, retained, backlog, fair, latency20,
	payload, multi, idle, memory, price,
}

func scenarioNames() []string {
	names := make([]string, len(allScenarios))
	for i, s := range allScenarios {
		names[i] = s.name
	}
	return names
}

func describeScenarios() string {
	var b strings.Builder
	for _, s := range allScenarios {
		fmt.Fprintf(&b, "%-10s %s\n", s.name, s.about)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// list says which scenario answers what, and of whom.
func list(out io.Writer) {
	for _, s := range allScenarios {
		var who []string
		for _, sys := range s.systems {
			who = append(who, sys.name)
		}
		fmt.Fprintf(out, "%-10s %s\n%-10s %s\n%-10s %s\n\n", s.name, s.asks, "", s.about, "", strings.Join(who, ", "))
	}
}

// A bench is one run of the program.
type bench struct {
	cfg   *config
	out   io.Writer
	url   string
	admin *pgx.Conn
	report
}

// A trial is one system in one scenario, over all rounds.
type trial struct {
	*bench
	scenario *scenario
	system   *system
	db       *database
	other    *database // a second one, if the scenario's setup makes it
	children []*child  // if the scenario's setup starts some
	round    int
	failed   bool
}

func (t *trial) Close() {
	for _, c := range t.children {
		c.close()
	}
	for _, db := range []*database{t.db, t.other} {
		if db != nil {
			db.Close()
		}
	}
}

// scaled applies -scale to a size. The result is a multiple of five, so that a run can be cut
// into fifths.
func (t *trial) scaled(n int) int { return max(int(float64(n)*t.scale())/5*5, 5) }

func (t *trial) scale() float64 { return t.cfg.scale.of(t.scenario.name) }

// slots is the concurrency at which the system is at its best.
func (t *trial) slots() int {
	if slices.Contains(loopSystems, t.system) {
		return t.cfg.batch
	}
	return t.cfg.slots[t.system.name]
}

// measured records a value. part says what of the scenario it is; "" is the scenario itself.
func (t *trial) measured(part string, value float64, unit string, curve ...float64) {
	name := t.scenario.name
	if part != "" {
		name += "." + part
	}
	t.add(t.out, measurement{Scenario: name, System: t.system.name, Value: value, Unit: unit, Round: t.round, Load: loadAverage(), Curve: curve})
}

func (b *bench) play(ctx context.Context, s *scenario) error {
	fmt.Fprintf(b.out, "\n# %s: %s\n", s.name, s.about)
	var trials []*trial
	defer func() {
		for _, t := range trials {
			t.Close()
		}
	}()
	for _, sys := range s.systems {
		if !slices.Contains(b.cfg.systems, sys.name) {
			continue
		}
		t := &trial{bench: b, scenario: s, system: sys}
		trials = append(trials, t)
		if err := t.begin(ctx); err != nil {
			t.fail(err)
		}
	}
	for round := 1; round <= int(b.cfg.rounds.of(s.name)); round++ {
		order := slices.Clone(trials)
		if round%2 == 0 {
			slices.Reverse(order)
		}
		for _, t := range order {
			if t.round = round; t.failed {
				continue
			}
			if err := t.profiled(func() error { return s.run(ctx, t) }); err != nil {
				t.fail(err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *trial) begin(ctx context.Context) (err error) {
	if t.db, err = t.newDatabase(ctx, t.scenario.name, t.system); err != nil {
		return err
	}
	if t.scenario.warm {
		if err := t.warm(ctx); err != nil {
			return err
		}
	}
	if t.scenario.setup != nil {
		return t.scenario.setup(ctx, t)
	}
	return nil
}

// warmJobs are drained before the first round: caches fill, and a Node.js child compiles what
// it runs often, which in its first second makes it several times slower.
const warmJobs = 20_000

func (t *trial) warm(ctx context.Context) error {
	n := t.scaled(warmJobs)
	if err := t.db.prepare(ctx, n, 0); err != nil {
		return err
	}
	if _, err := t.db.drain(ctx, n, t.slots(), nil); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	return t.db.empty(ctx)
}

// fail takes the system out of the scenario.
func (t *trial) fail(err error) {
	t.failed = true
	if errors.Is(err, errUnsupported) {
		fmt.Fprintf(t.out, "SKIPPED scenario=%s system=%s: %v\n", t.scenario.name, t.system.name, err)
		return
	}
	fmt.Fprintf(t.out, "FAILED scenario=%s system=%s round=%d: %v\n", t.scenario.name, t.system.name, t.round, err)
	t.failures++
}
