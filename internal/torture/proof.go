//go:build unix

// The proof of the checker: faults are planted in the queue, one at a time, and the checker
// must find each. Four are in the library, behind build tags (plant.go at the root); two
// are in the schema, planted by the harness (plants.go). Seeds are tried until one run
// finds it. The same short runs without a fault must find nothing: a checker that always
// cries proves nothing either.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// A planted fault is built in or made in the schema.
type planted struct {
	name, what string
	tag        string   // of the build; "": the program as it is
	plant      string   // of the schema
	rules      []string // that may find it; another that cries has cried at something else
}

var proofs = []planted{
	{name: "none", what: "the queue as it is"},
	{"fence", "a result is written whoever has the job", "rebase_plant_fence", "", []string{"rows", "results"}},
	{"renewal", "leases are not renewed", "rebase_plant_renewal", "", []string{"leases", "drains"}},
	{"reaper", "jobs are taken back before their lease is over", "rebase_plant_reaper", "", []string{"leases"}},
	{"result", "a result that is sent again is written again", "rebase_plant_result", "", []string{"rows"}},
	{"notify", "nobody is told of a new job", "", "notify", []string{"wakes"}},
	{"key", "the unique index of keys is not one", "", "key", []string{"keys"}},
}

const (
	proofSeeds    = 10
	proofClean    = 3 // runs without a fault
	proofDuration = 25 * time.Second
)

// prove plants all of them. It fails if one is not found.
func prove(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "rebase-proof-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // a temporary directory
	var failed error
	fmt.Printf("%-8s %-8s %5s  %-10s %s\n", "planted", "found", "seed", "rule", "by")
	for _, fault := range proofs {
		program, err := fault.build(ctx, dir)
		if err != nil {
			return err
		}
		if err := fault.hunt(ctx, program, dir, p); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// build returns the program with the fault in it.
func (f planted) build(ctx context.Context, dir string) (string, error) {
	if f.tag == "" {
		return os.Executable()
	}
	program := filepath.Join(dir, f.name)
	out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags", f.tag, "-o", program, "github.com/rebasejobs/rebase/internal/torture").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build with the tag %s: %w\n%s", f.tag, err, out)
	}
	return program, nil
}

// finding is a line of a report that names a broken promise.
var finding = regexp.MustCompile(`(?m)^  (\w+): (job \d+: .*)$`)

// hunt runs seeds until the fault is found, or, where there is none, a few.
func (f planted) hunt(ctx context.Context, program, dir string, p plan) error {
	clean := f.tag == "" && f.plant == ""
	seeds := proofSeeds
	if clean {
		seeds = proofClean
	}
	for seed := 1; seed <= seeds; seed++ {
		cmd := exec.CommandContext(ctx, program, "-seed", strconv.Itoa(seed), "-duration", proofDuration.String(), "-plant", f.plant,
			"-workers", strconv.Itoa(p.Workers), "-concurrency", strconv.Itoa(p.Concurrency), "-visibility", p.Visibility.String(), "-pg", p.Binaries)
		cmd.Env = append(os.Environ(), "TMPDIR="+dir) // what it keeps goes with the rest
		out, err := cmd.CombinedOutput()
		all := finding.FindAllSubmatch(out, -1)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case len(all) == 0 && err != nil:
			return fmt.Errorf("planted %s, seed %d: %w\n%s", f.name, seed, err, out)
		case len(all) > 0 && clean:
			return fmt.Errorf("nothing was planted, and seed %d found something:\n%s", seed, out)
		}
		for _, found := range all {
			if slices.Contains(f.rules, string(found[1])) {
				fmt.Printf("%-8s %-8s %5d  %-10s %.150s\n", f.name, "yes", seed, found[1], found[2])
				return nil
			}
		}
	}
	if clean {
		fmt.Printf("%-8s %-8s %5s  %-10s in %d seeds\n", f.name, "nothing", "", "", seeds)
		return nil
	}
	fmt.Printf("%-8s %-8s\n", f.name, "NO")
	return fmt.Errorf("planted %s (%s): not found in %d seeds", f.name, f.what, seeds)
}
