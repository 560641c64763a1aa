package pgserver

import "testing"

// FindIn is Find with a PATH and patterns of the test's own.
var FindIn = findIn

// HidePlaces makes Find look nowhere but in PATH until the test ends: the real
// places can't be emptied on a machine that has PostgreSQL. Not for parallel
// tests.
func HidePlaces(t *testing.T) {
	saved := places
	places = nil
	t.Cleanup(func() { places = saved })
}
