package cron_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// What the tests of this package share: parsing that must succeed, and instants as
// short text.

const minuteLayout = "2006-01-02T15:04"

func mustParse(t testing.TB, expr string) *cron.Expr {
	t.Helper()
	e, err := cron.Parse(expr)
	require.NoError(t, err)
	return e
}

func mustZone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := cron.LoadZone(name)
	require.NoError(t, err)
	return loc
}

// instant reads a minute of UTC.
func instant(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(minuteLayout, s)
	require.NoError(t, err)
	return at
}

// minute writes a slot as instant reads it, and anything that is no slot in full.
func minute(at time.Time) string {
	if at.Location() != time.UTC || !at.Equal(at.Truncate(time.Minute)) || at.IsZero() {
		return at.String()
	}
	return at.Format(minuteLayout)
}

// requireRefused asserts a *ParseError that names the expression, the field and a
// part of the reason.
func requireRefused(t testing.TB, err error, expr, field, reason string) {
	t.Helper()
	pe, ok := errors.AsType[*cron.ParseError](err)
	require.True(t, ok, "%q: want a *ParseError, got %v", expr, err)
	require.Equal(t, expr, pe.Expr)
	require.Equal(t, field, pe.Field, "%v", err)
	require.Contains(t, pe.Reason, reason)
}

// long says whether the slow form of a test was asked for.
func long(t testing.TB) bool {
	t.Helper()
	return os.Getenv("REBASE_LONG") != ""
}
