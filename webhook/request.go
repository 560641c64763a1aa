package webhook

// Verifying an http.Request: the body is read once, up to a cap, and put back,
// so that the handler behind reads what was verified. The invariant: whatever
// the outcome, r.Body still yields every byte that the client sent, and closing
// it closes the original. The headers are judged before the body is read.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
)

const defaultMaxBody = 1 << 20

// VerifyRequest is [Verifier.Verify] for a request. It reads the body, up to
// MaxBody, and puts it back. The error is a [*VerifyError].
func (v *Verifier) VerifyRequest(r *http.Request) (Verified, error) {
	e, err := v.envelope(r.Header)
	if err != nil {
		return Verified{}, err
	}
	if err := v.checkSecrets(); err != nil {
		return Verified{}, err
	}
	body, err := v.readBody(r)
	if err != nil {
		return Verified{}, err
	}
	return v.match(e, body)
}

func (v *Verifier) readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil // a request made by hand; the server never leaves it nil
	}
	limit := cmp.Or(v.MaxBody, defaultMaxBody)
	if limit < 0 || limit == math.MaxInt64 {
		limit = math.MaxInt64 - 1
	}
	original := r.Body
	// One byte more than allowed tells "full" from "too large".
	body, err := io.ReadAll(io.LimitReader(original, limit+1))
	if err != nil {
		r.Body = restored{io.MultiReader(bytes.NewReader(body), failed{err}), original}
		// The cause is the reader's own (a lost client, a MaxBytesReader); only
		// its kind is kept, since its text is not ours to vouch for.
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, &VerifyError{Field: "body", Err: ErrBodyTooLarge}
		}
		return nil, &VerifyError{Field: "body", Err: ErrBodyRead}
	}
	if int64(len(body)) > limit {
		r.Body = restored{io.MultiReader(bytes.NewReader(body), original), original}
		return nil, &VerifyError{Field: "body", Err: ErrBodyTooLarge}
	}
	r.Body = restored{bytes.NewReader(body), original}
	return body, nil
}

// restored is a body that was read and put back.
type restored struct {
	io.Reader
	io.Closer
}

// failed ends a partly read body with the error that ended it the first time.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

type verifiedKey struct{}

// FromContext returns what [Verifier.Middleware] has verified for this request.
// Don't change its Body: r.Body reads the same bytes.
func FromContext(ctx context.Context) (Verified, bool) {
	got, ok := ctx.Value(verifiedKey{}).(Verified)
	return got, ok
}

// Middleware lets only verified deliveries through to next, with the body put
// back and the [Verified] in the request's context. The others get 401 (no
// signature matches, too old, too new), 413 (body too large) or 400 (headers
// missing or malformed, body unreadable), with no more words than the status
// has. It panics at once if the Verifier has no usable secret.
func (v *Verifier) Middleware(next http.Handler) http.Handler {
	if err := v.checkSecrets(); err != nil {
		panic(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := v.VerifyRequest(r)
		if err != nil {
			status := refusal(err)
			http.Error(w, http.StatusText(status), status)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), verifiedKey{}, got)))
	})
}

func refusal(err error) int {
	switch {
	case errors.Is(err, ErrNoSecret):
		return http.StatusInternalServerError // secrets taken away since the start
	case errors.Is(err, ErrSignature), errors.Is(err, ErrTooOld), errors.Is(err, ErrTooNew):
		return http.StatusUnauthorized
	case errors.Is(err, ErrBodyTooLarge):
		return http.StatusRequestEntityTooLarge
	default:
		return http.StatusBadRequest
	}
}
