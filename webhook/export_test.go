package webhook

// What the tests see beyond the exported names: the pure parts of the guard,
// whose boundaries can't be reached from a test's own network.

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// Check is the guard's verdict on an address.
func Check(addr netip.Addr, allow ...netip.Prefix) error {
	return newGuard(allow, slog.New(slog.DiscardHandler)).check(addr)
}

// OwnClient is the client that a dispatcher makes itself, apart from whom it may contact.
func OwnClient(timeout time.Duration, allow ...netip.Prefix) *http.Client {
	c := (&Options{Timeout: timeout}).clientOptions()
	c.Allow, c.Logger = allow, slog.New(slog.DiscardHandler)
	return NewClient(c)
}

// Control is the guard's hook on a socket, nothing allowed.
func Control(ctx context.Context, network, address string, c syscall.RawConn) error {
	return guard{}.control(ctx, network, address, c)
}
