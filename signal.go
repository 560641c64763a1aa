package rebase

import "time"

// A signal wakes one goroutine; setting it twice is setting it once.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wait returns when the signal was set, when d has passed (a negative d never
// passes), or when done is closed.
func (s signal) wait(d time.Duration, done <-chan struct{}) {
	var timeout <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-s:
	case <-timeout:
	case <-done:
	}
}

// sleep waits for d or until done is closed.
func sleep(d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}
