package rebase

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is pure: from the number of the attempt that failed to the time until
// the next one. Whatever a policy returns is brought into [minRetry, maxDelay], so that
// no policy makes a hot loop out of range values or an unstorable date.

// A Backoff says how long to wait after attempt number n (from 1) has failed.
// What it returns is used as it is, without jitter, but for 10 ms at least and ten years at most.
type Backoff func(attempt int) time.Duration

const (
	// maxDelay keeps run_at inside the years that PostgreSQL and Go both know.
	maxDelay = 10 * 365 * 24 * time.Hour
	// minRetry is the least delay of a failed attempt: a policy of zero must not
	// turn a broken handler into a loop that burns the database.
	minRetry = 10 * time.Millisecond
)

// Exponential returns base × factor^(attempt−1), at most limit, with jitter: times
// a random number in [1, 1.2), at the limit in (0.8, 1]. A base of zero or less is
// 1 s, a factor below 1 is 1, a limit of zero or less is 1 h.
func Exponential(base time.Duration, factor float64, limit time.Duration) Backoff {
	if base <= 0 {
		base = time.Second
	}
	if !(factor >= 1) { // also NaN
		factor = 1
	}
	if limit <= 0 {
		limit = time.Hour
	}
	limit = min(limit, maxDelay)
	return func(attempt int) time.Duration {
		d := float64(base) * math.Pow(factor, float64(max(attempt, 1)-1))
		if !(d < float64(limit)) { // also +Inf
			return time.Duration(float64(limit) * (1 - 0.2*rand.Float64()))
		}
		return time.Duration(min(d*(1+0.2*rand.Float64()), float64(limit)))
	}
}

// defaultBackoff: 1 s, 5 s, 25 s, 125 s, 625 s, 3,125 s, then 1 h.
var defaultBackoff = Exponential(time.Second, 5, time.Hour)

// delay runs the policy and makes its answer safe.
func (b Backoff) delay(attempt int) time.Duration {
	return min(max(b(attempt), minRetry), maxDelay)
}
