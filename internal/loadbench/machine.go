//go:build unix

// What the machine itself says: how busy it is, and for how long it has been. Only Linux tells;
// elsewhere a figure is said to be unknown and never a made-up zero.

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// load is the machine's load average.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}

// A cpu is the time that all processors have spent so far, in the kernel's ticks.
type cpu struct {
	busy, all int64
	known     bool
}

func readCPU() cpu {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpu{}
	}
	return parseCPU(string(raw))
}

// parseCPU reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq …
func parseCPU(stat string) (c cpu) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return cpu{}
	}
	for i, field := range fields[1:8] { // guest time, further on, is in user's already
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return cpu{}
		}
		c.all += n
		if i != 3 && i != 4 { // idle, and waiting for the disk
			c.busy += n
		}
	}
	c.known = true
	return c
}

// busySince is how many processors were busy on average.
func (c cpu) busySince(before cpu) string {
	if !c.known || !before.known || c.all <= before.all {
		return "unknown"
	}
	return fmt.Sprintf("%.2f", float64(runtime.NumCPU())*float64(c.busy-before.busy)/float64(c.all-before.all))
}

// processors is how many of them a CPU time kept busy.
func processors(used, took time.Duration) string {
	return fmt.Sprintf("%.2f", used.Seconds()/took.Seconds())
}

// A usage is what the machine and the server have used so far.
type usage struct {
	at      time.Time
	machine cpu
	server  time.Duration // negative if unknown
}

// used reads both. The server's processes are this machine's.
func (b *bench) used(ctx context.Context) (u usage, err error) {
	var pid int
	if err := b.pool.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return usage{}, err
	}
	u = usage{at: time.Now(), machine: readCPU(), server: -1}
	if backend, err := readProcess(pid); err == nil && backend.name == "postgres" {
		u.server, err = familyCPU(backend.parent)
		return u, err
	}
	return u, nil
}

// since says how many processors were busy: in all, and with the server.
func (u usage) since(before usage) string {
	server := "unknown"
	if u.server >= 0 && before.server >= 0 {
		server = processors(u.server-before.server, u.at.Sub(before.at))
	}
	return fmt.Sprintf("%s, of which the server %s", u.machine.busySince(before.machine), server)
}

// familyCPU is the CPU time of a process, its children, and those that have ended.
func familyCPU(pid int) (sum time.Duration, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		other, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return 0, err
		}
		p, err := readProcess(other)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH): // it has ended just now
		case err != nil:
			return 0, err
		case other == pid:
			sum += p.own + p.ended
		case p.parent == pid:
			sum += p.own
		}
	}
	return sum, nil
}

// A processStat is what /proc tells of a process.
type processStat struct {
	name       string
	parent     int
	own, ended time.Duration // CPU time of its own, and of its children that have ended
}

func readProcess(pid int) (processStat, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return processStat{}, err
	}
	return parseProcess(string(raw))
}

// parseProcess reads /proc/PID/stat: pid (name) state ppid …, with the times as fields 14 to 17. The
// name may have spaces and brackets of its own.
func parseProcess(stat string) (p processStat, err error) {
	const tick = 10 * time.Millisecond // as the kernel shows it on all of Go's architectures
	open, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
	var fields []string
	if open >= 0 && end > open {
		fields = strings.Fields(stat[end+1:])
	}
	if len(fields) < 15 {
		return p, fmt.Errorf("loadbench: %q is not the state of a process", stat)
	}
	numbers := [5]int64{}
	for i, at := range []int{1, 11, 12, 13, 14} {
		if numbers[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return p, fmt.Errorf("loadbench: the state of a process: %w", err)
		}
	}
	return processStat{
		name: stat[open+1 : end], parent: int(numbers[0]),
		own: time.Duration(numbers[1]+numbers[2]) * tick, ended: time.Duration(numbers[3]+numbers[4]) * tick,
	}, nil
}
