// A logger whose lines belong to a test. Goroutines may log when their test is
// over, an abandoned handler for example; testing panics then. So a lock makes
// the end of the test and the writing of a line exclude each other, and later
// lines are dropped.

package pgtest

import (
	"io"
	"log/slog"
	"sync"
	"testing"
)

// Logger returns a logger that writes everything, Debug included, to the test's
// output, which is shown if the test fails or with -v. It can be used after the
// test has ended; it then does nothing.
func Logger(t testing.TB) *slog.Logger {
	w := &testWriter{out: t.Output()}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	mu  sync.Mutex
	out io.Writer // nil once the test has ended; guarded by mu
}

func (w *testWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		return len(line), nil
	}
	return w.out.Write(line)
}

func (w *testWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = nil
}
