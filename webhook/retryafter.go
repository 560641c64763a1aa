package webhook

// Retry-After: a wish of the endpoint's, never an order. It only makes the next
// attempt later, within a cap, and what makes no sense is ignored. A date is
// compared with the Date of the same response, so the endpoint's clock is
// compared with itself and neither host's needs to be right.

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter caps the delay that an endpoint can ask for.
const MaxRetryAfter = 24 * time.Hour

// retryAfter returns the delay asked for, at most MaxRetryAfter; 0 if there is
// none, or none that makes sense: negative, in the past, not a number or date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		return secondsCapped(value)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}

// secondsCapped reads digits. The comparison stands before the multiplication:
// 9999999999 s overflow a time.Duration.
func secondsCapped(digits string) time.Duration {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > int64(MaxRetryAfter/time.Second) {
		return MaxRetryAfter // digits only, so the error can only be the range
	}
	return time.Duration(n) * time.Second
}
