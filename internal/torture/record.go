//go:build unix

// The record is what the checker believes instead of the queue: a file of each process,
// one line a note, written before what it tells of can have any effect (a handler's begin)
// or after it is certain (a commit's reply). Each line is one write to a file opened for
// appending, so it outlives SIGKILL of its process and every restart of the server; only
// the machine's own end could take it.
//
// All processes share the machine's wall clock, which is also the server's. Each note has
// the monotonic clock too, so that a clock that was set during a run is noticed.

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The kinds of notes.
const (
	noteBegin   = "begin"   // a handler has begun
	noteEnd     = "end"     // it is about to return What
	noteStall   = "stall"   // the process did not get to run between From and At
	noteEnqueue = "enqueue" // a transaction with job N has ended as What
	noteOperate = "operate" // an operation of an operator has ended as What
	noteFault   = "fault"   // the adversary did What to On, between From and At
	noteDud     = "dud"     // the fault What struck nobody
	noteStart   = "start"   // process On was started in slot What
	noteExit    = "exit"    // process On has ended, as What
	noteProbe   = "probe"   // job N was committed at At on a quiet queue
	noteEmpty   = "empty"   // a drain that began at From was over
	noteStuck   = "stuck"   // or was not
)

// A note is a line of the record. What its fields mean depends on the kind.
type note struct {
	Kind    string `json:"k"`
	At      int64  `json:"at"`             // µs by the wall clock
	Mono    int64  `json:"mono"`           // µs since the process began
	From    int64  `json:"from,omitempty"` // µs by the wall clock
	Job     int64  `json:"job,omitempty"`
	Fence   int64  `json:"fence,omitempty"`
	N       int64  `json:"n,omitempty"` // the enqueuer's own number of a job, never used twice
	Run     int    `json:"run,omitempty"`
	Task    string `json:"task,omitempty"`
	Key     string `json:"key,omitempty"`
	What    string `json:"what,omitempty"`
	On      string `json:"on,omitempty"`
	Text    string `json:"text,omitempty"`
	Process string `json:"-"` // from the file's name
}

// A record is the file of one process.
type record struct {
	process string
	begun   time.Time
	done    chan struct{} // closed with the file

	mu   sync.Mutex // guards the file
	file *os.File
}

const recordSuffix = ".record"

func newRecord(dir, process string) (*record, error) {
	file, err := os.OpenFile(filepath.Join(dir, process+recordSuffix), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return &record{process: process, begun: time.Now(), done: make(chan struct{}), file: file}, nil
}

// note writes a line. A record with gaps proves nothing, so a failure ends the process.
func (r *record) note(n note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if n.At == 0 {
		n.At = now.UnixMicro()
	}
	n.Mono = now.Sub(r.begun).Microseconds()
	line, err := json.Marshal(n)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture: the record can't be written:", err)
		os.Exit(5)
	}
}

func (r *record) close() error {
	close(r.done)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file.Close()
}

// readRecords reads the files of all processes of a run, in the order of time.
func readRecords(dir string) (all []note, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+recordSuffix))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		notes, err := readRecord(name)
		if err != nil {
			return nil, err
		}
		all = append(all, notes...)
	}
	slices.SortStableFunc(all, func(a, b note) int { return int(a.At - b.At) })
	return all, nil
}

func readRecord(name string) (notes []note, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() // it was only read
	process := strings.TrimSuffix(filepath.Base(name), recordSuffix)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		n := note{Process: process}
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
			return nil, fmt.Errorf("record %s: line %d: %w", name, len(notes)+1, err)
		}
		notes = append(notes, n)
	}
	return notes, lines.Err()
}

// watchStalls notes when this process did not get to run: by SIGSTOP, or because the
// machine had other things to do. It ends with the record.
func (r *record) watchStalls(patience time.Duration) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		if now := time.Now(); now.Sub(last) > patience {
			r.note(note{Kind: noteStall, From: last.UnixMicro(), At: now.UnixMicro()})
		}
	}
}
