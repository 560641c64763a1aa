//go:build !unix

// Without private servers there is nothing that test binaries could share.

package pgtest

import (
	"context"
	"errors"
)

type run struct{}

func currentRun() (run, bool) { return run{}, false }

func (run) server(context.Context) (string, error) { return "", errors.ErrUnsupported }
