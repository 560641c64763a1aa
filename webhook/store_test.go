package webhook_test

// The fixed list: H1 asks it at each attempt, from many goroutines.

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

func TestStaticFindsItsEndpointsAndNoOthers(t *testing.T) { // H1
	t.Parallel()
	store := webhook.Static(map[string]webhook.Endpoint{"crm": endpointTo(t, "https://example.com/crm")})
	got, err := store.Endpoint(t.Context(), "crm")
	require.NoError(t, err)
	require.Equal(t, "https://example.com/crm", got.URL)
	require.NoError(t, got.Validate())

	_, err = store.Endpoint(t.Context(), "gone\x00")
	require.ErrorIs(t, err, webhook.ErrNotFound)
	require.EqualError(t, err, `webhook: no such endpoint: "gone\x00"`)
	_, err = webhook.Static(nil).Endpoint(t.Context(), "crm")
	require.ErrorIs(t, err, webhook.ErrNotFound)
}

func TestStaticSharesNothingThatCanBeChanged(t *testing.T) {
	t.Parallel()
	given := map[string]webhook.Endpoint{"crm": endpointTo(t, "https://example.com")}
	header := http.Header{"X-Key": {"1"}}
	e := given["crm"]
	e.Header = header
	given["crm"] = e
	store := webhook.Static(given)
	header.Set("X-Key", "2")
	delete(given, "crm")

	for range 2 {
		got, err := store.Endpoint(t.Context(), "crm")
		require.NoError(t, err)
		require.Equal(t, http.Header{"X-Key": {"1"}}, got.Header)
		require.False(t, got.Secrets[0].IsZero())
		got.Header.Set("X-Key", "3")
		got.Secrets[0] = webhook.Secret{}
	}
}

func TestStaticKeepsABadEndpointForItsUseToRefuse(t *testing.T) { // W8
	t.Parallel()
	store := webhook.Static(map[string]webhook.Endpoint{"bad": {URL: "ftp://example.com"}})
	got, err := store.Endpoint(t.Context(), "bad")
	require.NoError(t, err)
	require.Error(t, got.Validate())
}
