package webhook

// What came of an attempt, in words that can be stored. The invariant: a
// DeliveryError is built from fixed phrases, numbers and our own errors, never
// from the text of a foreign one. The errors of net/http quote the URL, those of
// the HTTP parser quote the response, and either may hold a token, a NUL or
// invalid UTF-8.

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

// DeliveryError says why an attempt failed. Its Code is one of:
//
//	status 503        the endpoint answered, but not 2xx
//	redirect 302      it answered with a 3xx (permanent)
//	blocked: private  the host is not a public one (permanent)
//	misconfigured     the endpoint can't be used; Detail says why (permanent)
//	dns               the host could not be looked up
//	refused           nobody listens there
//	unreachable       no way to the host
//	tls               the handshake failed, for instance on the certificate
//	timeout           the deadline passed, at whatever step
//	reset             the connection ended before the response did
//	protocol          the answer was not HTTP, or its headers were too large
//	cancelled         the caller's context ended otherwise; its cause is unwrapped
//	network           anything else
type DeliveryError struct {
	Code   string
	Detail string // for misconfigured: the field and the reason; else ""
	Status int    // the status of the response, 0 without one
	// Permanent means that another attempt would end the same.
	Permanent bool
	// RetryAfter is the least delay that the endpoint asked for, at most
	// [MaxRetryAfter]; 0 if it asked for none.
	RetryAfter time.Duration

	cause error // only what is safe to print: our own errors, the context's
}

func (e *DeliveryError) Error() string {
	if e.Detail != "" {
		return "webhook: " + e.Code + ": " + e.Detail
	}
	return "webhook: " + e.Code
}

// Unwrap returns the [*BlockedError], the [*EndpointError] or the cause of the
// context behind it, else nil. The errors of net/http are left out on purpose,
// and so is a cause that matches context.DeadlineExceeded, as
// [rebase.ErrTimeout] does: the code says it, and a worker would take it for a
// wait for its database.
func (e *DeliveryError) Unwrap() error { return e.cause }

// Outcome judges an attempt by what http.Client.Do returned, or by an error of
// reading the body: nil for a 2xx, else a [*DeliveryError]. ctx is the request's.
// It does not close the body.
func Outcome(ctx context.Context, resp *http.Response, err error) error {
	if err != nil {
		return failure(ctx, err)
	}
	status := resp.StatusCode
	switch status / 100 {
	case 2:
		return nil
	case 3:
		return &DeliveryError{Code: "redirect " + strconv.Itoa(status), Status: status, Permanent: true}
	}
	return &DeliveryError{
		Code:       "status " + strconv.Itoa(status),
		Status:     status,
		RetryAfter: retryAfter(resp.Header, time.Now()),
	}
}

func failure(ctx context.Context, err error) *DeliveryError {
	if e, ok := errors.AsType[*DeliveryError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*BlockedError](err); ok {
		return &DeliveryError{Code: "blocked: " + e.Kind, Permanent: true, cause: e}
	}
	if e, ok := errors.AsType[*EndpointError](err); ok {
		return &DeliveryError{Code: "misconfigured", Detail: e.Field + ": " + e.Reason, Permanent: true, cause: e}
	}
	// net/http returns the cause of a context in place of its error, which may
	// be any error at all: ask the context itself.
	if ctx.Err() != nil {
		code, cause := "cancelled", context.Cause(ctx)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(cause, context.DeadlineExceeded) {
			code = "timeout"
		}
		if errors.Is(cause, context.DeadlineExceeded) {
			cause = nil
		}
		return &DeliveryError{Code: code, cause: cause}
	}
	return &DeliveryError{Code: networkCode(err)}
}

// networkCode names an error by its type, the narrow ones first: a look-up that
// timed out is trouble with DNS, whatever else it is.
func networkCode(err error) string {
	if _, ok := errors.AsType[*lookupError](err); ok {
		return "dns"
	}
	if _, ok := errors.AsType[*tlsError](err); ok {
		return "tls"
	}
	if isTimeout(err) {
		return "timeout"
	}
	for _, known := range errnoCodes {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return "network"
	}
	// What is left comes from net/http itself, mostly untyped.
	return "protocol"
}

var errnoCodes = []struct {
	err  error
	code string
}{
	{syscall.ECONNREFUSED, "refused"},
	{syscall.ENETUNREACH, "unreachable"},
	{syscall.EHOSTUNREACH, "unreachable"},
	{syscall.ECONNRESET, "reset"},
	{syscall.EPIPE, "reset"},
	{io.ErrUnexpectedEOF, "reset"},
	{io.EOF, "reset"},
	{net.ErrClosed, "reset"},
	{context.Canceled, "cancelled"},
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
