package main

// What the kernel knows of a process, read from /proc. Where there is none, or where the server
// is on another machine or in a container, what needs it is left out, aloud.

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc: USER_HZ, which Linux gives as 100 everywhere.
const tick = 10 * time.Millisecond

// A procStat is what is needed of /proc/PID/stat.
type procStat struct {
	name       string
	parent     int
	own, ended time.Duration // CPU time: its own, and that of its children which have ended
}

func readStat(pid int) (s procStat, err error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return s, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	return parseStat(string(data))
}

// parseStat: the name stands in parentheses and may hold anything, so the fields are counted
// from the last one on.
func parseStat(line string) (s procStat, err error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return s, fmt.Errorf("not a line of /proc/PID/stat: %q", line)
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 15 {
		return s, fmt.Errorf("not a line of /proc/PID/stat: %q", line)
	}
	s.name = line[open+1 : end]
	var ticks [4]int64 // utime, stime, cutime, cstime
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return s, err
		}
	}
	s.own, s.ended = time.Duration(ticks[0]+ticks[1])*tick, time.Duration(ticks[2]+ticks[3])*tick
	return s, nil
}

// processTime is the CPU time of a process.
func processTime(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.own, err
}

// serverTime is the CPU time of the server that has the backend: of its first process, of all
// that live, and of all that have ended.
func serverTime(backend int) (time.Duration, error) {
	b, err := readStat(backend)
	if err != nil {
		return 0, err
	}
	if !strings.HasPrefix(b.name, "postgres") {
		return 0, fmt.Errorf("%w: process %d is %q here, not PostgreSQL: the server runs elsewhere", errUnsupported, backend, b.name)
	}
	for {
		first, err := readStat(b.parent)
		if err != nil {
			return 0, err
		}
		own, err := childrenTime(b.parent)
		if err != nil {
			return 0, err
		}
		again, err := readStat(b.parent)
		if err != nil || again.ended == first.ended {
			return first.own + first.ended + own, err
		}
		// One has ended meanwhile, and may be in neither sum.
	}
}

// childrenTime is the CPU time of all children of the process that live.
func childrenTime(parent int) (sum time.Duration, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended just now
		}
		if s, err := parseStat(string(data)); err == nil && s.parent == parent {
			sum += s.own
		}
	}
	return sum, nil
}

// peakMemory is the most that was resident of a process, in MiB.
func peakMemory(pid int) (float64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("%w: no VmHWM in /proc", errUnsupported)
}
