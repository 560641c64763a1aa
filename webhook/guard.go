package webhook

// The rules for addresses, pure. The invariant: an address passes only if it is
// globally routable unicast, or the operator allowed it. The standard library's
// predicates (IsPrivate, IsLoopback …) let through 0.1.2.3, 100.64.0.1,
// 198.18.0.1, NAT64, 6to4 and more, so the lists are written out here: for IPv4
// what is denied; for IPv6 everything outside 2000::/3, and what is denied inside.

import (
	"context"
	"net/netip"
	"syscall"
)

// BlockedError says that an address must not be contacted. Its text names the
// kind of address and not the address: the endpoint's owner may read it, and
// would learn what names resolve to inside the network.
type BlockedError struct {
	Kind string     // "loopback", "private", "link-local", …
	Addr netip.Addr // for the operator
}

func (e *BlockedError) Error() string { return "webhook: blocked: " + e.Kind }

type rule struct {
	prefix netip.Prefix
	kind   string
}

// The first rule that contains an address names it.
var (
	denied4 = []rule{
		{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
		{netip.MustParsePrefix("10.0.0.0/8"), "private"},
		{netip.MustParsePrefix("100.64.0.0/10"), "carrier NAT"},
		{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
		// A public address, but the host's own agent and metadata in Azure.
		{netip.MustParsePrefix("168.63.129.16/32"), "cloud metadata"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
		{netip.MustParsePrefix("172.16.0.0/12"), "private"},
		{netip.MustParsePrefix("192.0.0.0/24"), "protocol assignment"},
		{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
		{netip.MustParsePrefix("192.31.196.0/24"), "AS112"},
		{netip.MustParsePrefix("192.52.193.0/24"), "multicast relay"},
		{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relay"},
		{netip.MustParsePrefix("192.168.0.0/16"), "private"},
		{netip.MustParsePrefix("192.175.48.0/24"), "AS112"},
		{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
		{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
		{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
		{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	}
	denied6 = []rule{
		{netip.MustParsePrefix("2001::/32"), "Teredo"},
		{netip.MustParsePrefix("2001::/23"), "protocol assignment"},
		{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
		{netip.MustParsePrefix("2002::/16"), "6to4"},
		{netip.MustParsePrefix("2620:4f:8000::/48"), "AS112"},
		{netip.MustParsePrefix("3fff::/20"), "documentation"},
	}
	global6 = netip.MustParsePrefix("2000::/3")
	// outside6 only names what is denied anyway for lying outside global6.
	outside6 = []rule{
		{netip.MustParsePrefix("::1/128"), "loopback"},
		{netip.MustParsePrefix("::/128"), "unspecified"},
		{netip.MustParsePrefix("::/96"), "IPv4-compatible"},
		{netip.MustParsePrefix("64:ff9b::/96"), "NAT64"},
		{netip.MustParsePrefix("64:ff9b:1::/48"), "NAT64"},
		{netip.MustParsePrefix("fc00::/7"), "private"},
		{netip.MustParsePrefix("fe80::/10"), "link-local"},
		{netip.MustParsePrefix("fec0::/10"), "site-local"},
		{netip.MustParsePrefix("ff00::/8"), "multicast"},
		{netip.MustParsePrefix("::/0"), "reserved"},
	}
)

// guard holds the prefixes that the operator allows in spite of the rules.
type guard struct {
	allow []netip.Prefix
}

// check returns nil or a *BlockedError.
func (g guard) check(addr netip.Addr) error {
	if !addr.IsValid() {
		return &BlockedError{Kind: "no address"}
	}
	if addr.Zone() != "" {
		return &BlockedError{Kind: "zone", Addr: addr}
	}
	// ::ffff:127.0.0.1 is the IPv4 address to the kernel, so it is to us.
	addr = addr.Unmap()
	for _, p := range g.allow {
		if p.Contains(addr) {
			return nil
		}
	}
	if kind := deniedKind(addr); kind != "" {
		return &BlockedError{Kind: kind, Addr: addr}
	}
	return nil
}

func deniedKind(addr netip.Addr) string {
	rules := denied4
	if addr.Is6() {
		rules = denied6
		if !global6.Contains(addr) {
			rules = outside6
		}
	}
	for _, r := range rules {
		if r.prefix.Contains(addr) {
			return r.kind
		}
	}
	return ""
}

// control is a net.Dialer's ControlContext: it sees the address that the socket
// is about to connect to, after which nothing can change it any more.
func (g guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return &BlockedError{Kind: "not TCP"}
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &BlockedError{Kind: "no address"}
	}
	return g.check(ap.Addr())
}
