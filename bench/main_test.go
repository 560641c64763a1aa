package main

// The test's own program is what the scenarios start as a child: then it is no test but the
// child that it is asked to be.

import (
	"context"
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if isChild, err := beChild(context.Background(), os.Args[1:]); isChild {
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
