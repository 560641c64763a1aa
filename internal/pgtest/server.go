// Which server the tests run on: $REBASE_TEST_DATABASE_URL, else a private one
// from local binaries, else one in a container. $DATABASE_URL is never looked
// at: it may be the address of data that somebody needs. It is decided once per
// process, at the first test that asks.

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// findTimeout bounds the start of a server. Pulling an image is the slow case.
const findTimeout = 5 * time.Minute

// server is the PostgreSQL server that this process makes its databases on.
type server struct {
	url      string       // of a database that exists, for making others
	foreign  bool         // the user's: leave nothing behind
	mainRuns bool         // Main will call close
	stop     func() error // nil unless the server is this process's alone

	templateOnce sync.Once // guards the two below
	templateName string
	templateErr  error
}

var (
	// mainRuns says that Main runs the tests.
	mainRuns atomic.Bool
	// started is the server, once theServer has found it.
	started atomic.Pointer[server]
)

// theServer returns the process's server and finds it first if need be.
var theServer = sync.OnceValues(func() (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	s, err := find(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w\n(or set REBASE_TEST_DATABASE_URL to a server on which databases may be made)", err)
	}
	s.mainRuns = mainRuns.Load()
	started.Store(s)
	return s, nil
})

func find(ctx context.Context) (*server, error) {
	if url := os.Getenv("REBASE_TEST_DATABASE_URL"); url != "" {
		return &server{url: url, foreign: true}, nil
	}
	if run, ok := currentRun(); ok {
		url, err := run.server(ctx)
		return &server{url: url}, err
	}
	url, stop, err := pgserver.Any(ctx, pgserver.Config{})
	return &server{url: url, stop: stop}, err
}

// close takes back what this process alone has made on or for the server.
func (s *server) close() error {
	var err error
	if s.foreign {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		s.templateOnce.Do(func() {}) // nobody makes one from here on
		if s.templateName != "" {
			err = s.drop(ctx, s.templateName)
		}
	}
	if s.stop != nil {
		err = errors.Join(err, s.stop())
	}
	return err
}

// lacksBinaries reports whether a server could not be started because this
// machine has none.
func lacksBinaries(err error) bool {
	_, missing := errors.AsType[*pgserver.NotFoundError](err)
	return missing || errors.Is(err, errors.ErrUnsupported)
}
