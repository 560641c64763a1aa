package rebase_test

import (
	"testing"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

// TestMain takes the tests' server down at the end and then looks for goroutines that
// outlived the tests: whatever a worker starts must end with its Run.
func TestMain(m *testing.M) { pgtest.Main(m) }
