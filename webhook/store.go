package webhook

// Where endpoints come from. A delivery names its endpoint by id only and the
// store is asked at each attempt, so an edited endpoint is used as it is now
// and no secret is kept beside the delivery. The two sentinels end a delivery;
// any other error of a store is trouble, and the attempt is tried again.

import (
	"context"
	"errors"
	"fmt"
)

// What a [Store] returns, wrapped or bare, for an endpoint that must not be
// used. Neither makes sense to try again.
var (
	ErrNotFound = errors.New("webhook: no such endpoint")
	ErrDisabled = errors.New("webhook: endpoint is disabled")
)

// Store finds endpoints. It is called by many goroutines at once.
type Store interface {
	// Endpoint returns the endpoint as it is now, [ErrNotFound] or
	// [ErrDisabled] if it must not be used, or any other error if it can't be
	// told at the moment.
	Endpoint(ctx context.Context, id string) (Endpoint, error)
}

// Disabler is a [Store] that can switch an endpoint off, so that it returns
// [ErrDisabled] from then on. The reason is one of the fixed phrases of
// [DeliveryError]. Disabling what is disabled or gone already is no error.
type Disabler interface {
	Disable(ctx context.Context, id, reason string) error
}

// Static returns a Store with a fixed list, copied from endpoints. It does not
// validate them: like any other, a bad one is refused when it is used.
func Static(endpoints map[string]Endpoint) Store {
	fixed := make(static, len(endpoints))
	for id, e := range endpoints {
		fixed[id] = e.clone()
	}
	return fixed
}

type static map[string]Endpoint

func (s static) Endpoint(_ context.Context, id string) (Endpoint, error) {
	e, ok := s[id]
	if !ok {
		return Endpoint{}, fmt.Errorf("%w: %s", ErrNotFound, quoted(id))
	}
	// A copy, since the caller adds headers to it while others read it.
	return e.clone(), nil
}
