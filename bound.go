package rebase

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A bound is how many jobs a round may have since one took too long, which in the same size would do
// so for ever: half as many as that, and more again after rounds that had time to spare. 0: no bound.
type bound int

func (b bound) of(n int) int {
	if b == 0 {
		return n
	}
	return min(n, int(b))
}

// shrink takes note of a round of n jobs that took too long.
func (b *bound) shrink(n int) { *b = bound(max(n/2, 1)) }

// grow takes note of a round of n jobs that went well. One that was far from the bound tells nothing.
// There is none any more when it is above most.
func (b *bound) grow(n int, took, limit time.Duration, most int) {
	switch {
	case *b == 0 || n < int(*b)/2:
		return
	case took < limit/4:
		*b *= 2
	case took < limit/2:
		*b += *b/4 + 1
	}
	if int(*b) > most {
		*b = 0
	}
}

// tookTooLong says whether a round failed for want of time: its payloads may be too many for the link,
// or its rows for the server.
func (e *engine) tookTooLong(began time.Time, err error) bool {
	_, unsent := errors.AsType[*connectError](err)
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return !unsent && (isLost(err) || ok && pgErr.Code == "57014") && time.Since(began) >= e.roundLimit()/2
}
