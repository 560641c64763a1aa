//go:build unix

// The proof of the checker: faults are planted in the queue, one at a time, and the checker
// must find each. Most are in the library's code, which is built with some words of it
// exchanged (go build -overlay), so that nothing of this stands in the library itself; two are in
// the schema (plants.go). Seeds are tried until one run finds it. The same short runs without a
// fault must find nothing: a checker that always cries proves nothing either.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A planted fault is built in or made in the schema.
type planted struct {
	name, what string
	swaps      []swap   // in the library's code
	plant      string   // of the schema
	only       string   // what harm it takes; "": any
	rules      []string // that may find it; another that cries has cried at something else
}

// A swap exchanges words of a file of the root package, all of them.
type swap struct{ file, old, new string }

var proofs = []planted{
	{name: "none", what: "the queue as it is"},
	{"fence", "a result is written whoever has the job", []swap{
		{"renew.go", "p.id = u.id and p.fence = u.fence", "p.id = u.id and p.fence > 0"},
		{"result.go", "p.id = u.id and p.fence = u.fence", "p.id = u.id and p.fence > 0"},
	}, "", "stall,freeze,lost reply,terminate", []string{"rows", "results", "overlaps"}}, // a result must be late, and its job at work again
	{"renewal", "leases are not renewed", []swap{
		{"renew.go", "r.tokens = append(r.tokens, token)", "_ = token\n\t\tcontinue"},
	}, "", "", []string{"leases", "drains"}},
	{"reaper", "jobs are taken back before their lease is over", []swap{
		{"reaper.go", "locked_until < now()", "locked_until < now() + interval '2 s'"},
	}, "", "", []string{"leases"}},
	{"result", "a result that is sent again is written again", []swap{
		{"result.go", "p.id = u.id and p.fence = u.fence", "p.id = u.id and abs(p.fence) = u.fence"},
		{"result.go", "-j.fence", "-abs(j.fence)"},
	}, "", "", []string{"rows"}},
	{"sleep", "a worker sleeps on although a transaction is open that has asked before", []swap{
		{"idle.go", "min(now.Sub(k.slept)+rampFirst, listenPoll)", "listenPoll"},
	}, "", "", []string{"wakes"}},
	{"notify", "nobody is told of a new job", nil, "notify", "", []string{"wakes"}},
	{"key", "the unique index of keys is not one", nil, "key", "", []string{"keys"}},
}

const (
	proofSeeds    = 10
	proofClean    = 3 // runs without a fault
	proofDuration = 25 * time.Second
)

// prove plants all of them. It fails if one is not found.
func prove(ctx context.Context, p plan, names string) error {
	dir, err := os.MkdirTemp("", "rebase-proof-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // a temporary directory
	var failed error
	fmt.Printf("%-8s %-8s %5s  %-10s %s\n", "planted", "found", "seed", "rule", "by")
	for _, fault := range proofs {
		if names != "" && !slices.Contains(strings.Split(names, ","), fault.name) {
			continue
		}
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
	if len(f.swaps) == 0 {
		return os.Executable()
	}
	overlay, err := f.overlay(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("plant %s: %w", f.name, err)
	}
	program := filepath.Join(dir, f.name)
	out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", program, module+"/internal/torture").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build with %s planted: %w\n%s", f.name, err, out)
	}
	return program, nil
}

const module = "github.com/rebasejobs/rebase"

// overlay writes the changed files, and the list of them that the go command reads. Words that
// are not there any more are an error: the fault would not be planted.
func (f planted) overlay(ctx context.Context, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", err
	}
	root := strings.TrimSpace(string(out))
	sources, replace := map[string]string{}, map[string]string{}
	for _, s := range f.swaps {
		path := filepath.Join(root, s.file)
		if sources[path] == "" {
			source, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			sources[path] = string(source)
		}
		if !strings.Contains(sources[path], s.old) {
			return "", fmt.Errorf("%s has no %q", s.file, s.old)
		}
		sources[path] = strings.ReplaceAll(sources[path], s.old, s.new)
		replace[path] = filepath.Join(dir, f.name+"_"+s.file)
	}
	for path, source := range sources {
		if err := os.WriteFile(replace[path], []byte(source), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, f.name+".json")
	return file, os.WriteFile(file, list, 0o600)
}

// finding is a line of a report that names a broken promise.
var finding = regexp.MustCompile(`(?m)^  (\w+): (job \d+: .*)$`)

// hunt runs seeds until the fault is found, or, where there is none, a few.
func (f planted) hunt(ctx context.Context, program, dir string, p plan) error {
	clean := len(f.swaps) == 0 && f.plant == ""
	seeds := proofSeeds
	if clean {
		seeds = proofClean
	}
	for seed := 1; seed <= seeds; seed++ {
		cmd := exec.CommandContext(ctx, program, "-seed", strconv.Itoa(seed), "-duration", proofDuration.String(), "-plant", f.plant, "-only", f.only,
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
