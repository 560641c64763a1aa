package webhook

// What the tests see beyond the exported names: the pure parts of the guard,
// whose boundaries can't be reached from a test's own network.

import (
	"context"
	"log/slog"
	"net/netip"
	"syscall"
)

// Check is the guard's verdict on an address.
func Check(addr netip.Addr, allow ...netip.Prefix) error {
	return newGuard(allow, slog.New(slog.DiscardHandler)).check(addr)
}

// Control is the guard's hook on a socket, nothing allowed.
func Control(ctx context.Context, network, address string, c syscall.RawConn) error {
	return guard{}.control(ctx, network, address, c)
}
