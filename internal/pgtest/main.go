// Main is every package's TestMain: it runs the tests, takes the process's
// server down, and then looks for goroutines that outlived the tests. Looking at
// the very end finds the leaks of all tests together, without the cost and the
// false alarms of looking after each of many parallel ones.

package pgtest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests and ends the process with their exit code, or with 1 if
// they passed but left goroutines or the server's remains behind.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M) {
	mainRuns.Store(true)
	code := m.Run()
	if s := started.Load(); s != nil {
		if err := s.close(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	// After a failure the leaks of what was left half-done would only distract.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: goroutines outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
