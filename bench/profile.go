package main

// Where this process spends its time: a CPU profile of each measurement, on demand. What comes
// before the clock starts, the filling of the table above all, is in it too; pprof's -focus
// takes it out. A profile costs a few per cent, so figures are taken without it.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profiled runs f, with a profile if one is wanted: of the last round in the end, since each
// round writes the same file.
func (t *trial) profiled(f func() error) (err error) {
	if t.cfg.profile == "" {
		return f()
	}
	if err := os.MkdirAll(t.cfg.profile, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(t.cfg.profile, fmt.Sprintf("%s-%s.pprof", t.scenario.name, t.system.name)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}
