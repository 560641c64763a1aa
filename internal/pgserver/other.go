//go:build !unix

// On systems without a POSIX shell there is no guard, and without a guard no
// server is started. Tests and examples then need a server that is named to
// them. This file keeps their packages compiling and their errors clear.

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
)

var errUnsupported = fmt.Errorf("pgserver: this system can't run a private server: name one by its URL: %w", errors.ErrUnsupported)

// Server can't be had on this system.
type Server struct{}

func Start(context.Context, Config) (*Server, error) { return nil, errUnsupported }

func StartDocker(context.Context, Config) (string, func() error, error) {
	return "", nil, errUnsupported
}

func Identity(int) (string, error) { return "", errUnsupported }

func (*Server) URL(string) string    { return "" }
func (*Server) BinDir() string       { return "" }
func (*Server) Port() int            { return 0 }
func (*Server) SocketDir() string    { return "" }
func (*Server) Log() (string, error) { return "", errUnsupported }
func (*Server) Stop(string) error    { return errUnsupported }
func (*Server) Restart(string) error { return errUnsupported }
func (*Server) Close() error         { return errUnsupported }

// TempDir returns the system's directory for temporary files.
func TempDir() string { return os.TempDir() }
