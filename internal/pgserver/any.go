// One answer to "give me a PostgreSQL": local binaries, else a container, else
// an error that says what to install.

package pgserver

import (
	"context"
	"errors"
	"fmt"
)

// Any starts a private server from local binaries or, if there are none, in a
// container. It returns the address of the database postgres and a function
// that ends the server. Binaries that are there but don't work are an error:
// falling back then would hide what is wrong.
func Any(ctx context.Context, cfg Config) (url string, stop func() error, err error) {
	s, err := Start(ctx, cfg)
	if err == nil {
		return s.URL("postgres"), s.Close, nil
	}
	if _, missing := errors.AsType[*NotFoundError](err); !missing {
		return "", nil, err
	}
	url, stop, dockerErr := StartDocker(ctx, cfg)
	if dockerErr != nil {
		return "", nil, fmt.Errorf("no PostgreSQL here: install its server "+
			"(Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql@18), "+
			"or set REBASE_PG_BIN to a directory with initdb and postgres, or start Docker:\n\t%w\n\t%w", err, dockerErr)
	}
	return url, stop, nil
}
