// Package exampledb finds a database for the example programs, so that each of
// them runs with a bare `go run`: the one that DATABASE_URL names, else a private
// server that lives as long as the program and leaves nothing behind.
package exampledb

import (
	"context"
	"fmt"
	"os"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// Open returns the address of a database and a function to call at the end of
// the program: $DATABASE_URL if it is set, as it is and left alone by close; else
// a new server from local binaries; else one in a container; else an error that
// says what to install.
func Open(ctx context.Context) (url string, close func(), err error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return url, func() {}, nil
	}
	url, stop, err := pgserver.Any(ctx, pgserver.Config{})
	if err != nil {
		return "", nil, fmt.Errorf("set DATABASE_URL to a PostgreSQL database for the example; %w", err)
	}
	return url, func() {
		// The example is over, and so is its server even if this fails: the
		// guard ends it with the process. But say it.
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "exampledb:", err)
		}
	}, nil
}
