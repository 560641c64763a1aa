package webhook_test

// A store that a test changes while deliveries wait.

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rebasejobs/rebase/webhook"
)

// A shelf is a store that the test changes.
type shelf struct {
	mu       sync.Mutex
	endpoint webhook.Endpoint
	err      error
	disabled string
}

func (s *shelf) set(e webhook.Endpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoint, s.err = e, err
}

func (s *shelf) Endpoint(context.Context, string) (webhook.Endpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoint, s.err
}

func (s *shelf) Disable(_ context.Context, _, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disabled, s.err = reason, webhook.ErrDisabled
	return nil
}

// A stuckShelf can't disable.
type stuckShelf struct{ webhook.Store }

func (stuckShelf) Disable(context.Context, string, string) error { return errors.New("stuck") }

// A slowShelf answers in the next second but one.
type slowShelf struct{ shelf }

func (s *slowShelf) Endpoint(ctx context.Context, id string) (webhook.Endpoint, error) {
	now := time.Now()
	next := time.NewTimer(now.Truncate(time.Second).Add(2 * time.Second).Sub(now))
	defer next.Stop()
	select {
	case <-next.C:
		return s.shelf.Endpoint(ctx, id)
	case <-ctx.Done():
		return webhook.Endpoint{}, context.Cause(ctx)
	}
}
