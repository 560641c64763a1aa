package webhook_test

// The address rules: the exact lists, at both edges of every prefix, and the
// hook on the socket.

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

var deniedPrefixes = map[string]string{
	"0.0.0.0/8": "this network", "10.0.0.0/8": "private", "100.64.0.0/10": "carrier NAT", "127.0.0.0/8": "loopback",
	"169.254.0.0/16": "link-local", "172.16.0.0/12": "private", "192.0.0.0/24": "protocol assignment",
	"192.0.2.0/24": "documentation", "192.31.196.0/24": "AS112", "192.52.193.0/24": "multicast relay",
	"192.88.99.0/24": "6to4 relay", "192.168.0.0/16": "private", "192.175.48.0/24": "AS112",
	"198.18.0.0/15": "benchmarking", "198.51.100.0/24": "documentation", "203.0.113.0/24": "documentation",
	"224.0.0.0/4": "multicast", "168.63.129.16/32": "cloud metadata", "255.255.255.255/32": "broadcast",
	"240.0.0.0/5": "reserved", // the first half of 240/4, whose last address is the broadcast
	"2001::/32":   "Teredo", "2001:100::/24": "protocol assignment" /* 2001::/23 beside Teredo */, "2001:db8::/32": "documentation", "2002::/16": "6to4",
	"2620:4f:8000::/48": "AS112", "3fff::/20": "documentation",
	"::/128": "unspecified", "::1/128": "loopback", "64:ff9b::/96": "NAT64", "64:ff9b:1::/48": "NAT64",
	"fc00::/7": "private", "fe80::/10": "link-local", "fec0::/10": "site-local", "ff00::/8": "multicast",
	"4000::/3": "reserved", "1fff::/16": "reserved", "5f00::/16": "reserved", "100::/64": "reserved",
}

// lastOf is the highest address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func TestGuardDeniesBothEdgesOfEveryListedPrefix(t *testing.T) { // H3, W4
	t.Parallel()
	for text, kind := range deniedPrefixes {
		p := netip.MustParsePrefix(text)
		for _, addr := range []netip.Addr{p.Masked().Addr(), lastOf(p)} {
			e, ok := errors.AsType[*webhook.BlockedError](webhook.Check(addr))
			require.True(t, ok, "%v in %v passed", addr, p)
			require.Equal(t, kind, e.Kind, "%v", addr)
			require.Equal(t, addr, e.Addr)
			require.EqualError(t, e, "webhook: blocked: "+kind, "the text names the kind and not the address")
		}
	}
}

func TestGuardPassesTheNeighboursOfEveryDeniedPrefix(t *testing.T) { // H3: no wider than the list
	t.Parallel()
	for _, text := range []string{
		"1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
		"191.255.255.255", "192.0.1.0", "192.0.1.255", "192.0.3.0", "192.31.195.255", "192.31.197.0",
		"192.52.192.255", "192.52.194.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0",
		"192.175.47.255", "192.175.49.0", "198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0",
		"203.0.112.255", "203.0.114.0", "223.255.255.255", "8.8.8.8",
		"2000::", "2001:200::", "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::", "2003::",
		"2620:4f:7fff:ffff:ffff:ffff:ffff:ffff", "2620:4f:8001::", "3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:1000::",
		"2606:4700:4700::1111", "::ffff:8.8.8.8",
	} {
		require.NoError(t, webhook.Check(netip.MustParseAddr(text)), text)
	}
}

func TestGuardDeniesWhatTheStandardPredicatesLetThrough(t *testing.T) { // W4
	t.Parallel()
	for text, kind := range map[string]string{
		"0.1.2.3": "this network", "100.64.0.1": "carrier NAT", "192.0.0.192": "protocol assignment",
		"198.18.0.1": "benchmarking", "240.0.0.1": "reserved", "::127.0.0.1": "IPv4-compatible",
		"64:ff9b::7f00:1": "NAT64", "2002:7f00:1::": "6to4", "2001:0:4136:e378:8000:63bf:3fff:fdd2": "Teredo",
		"fec0::1": "site-local", "::ffff:169.254.169.254": "link-local", "::ffff:127.0.0.1": "loopback",
	} {
		addr := netip.MustParseAddr(text)
		e, ok := errors.AsType[*webhook.BlockedError](webhook.Check(addr))
		require.True(t, ok, "%s passed", text)
		require.Equal(t, kind, e.Kind, text)
	}
}

func TestGuardDeniesZonesAndTheZeroAddress(t *testing.T) { // W4
	t.Parallel()
	require.EqualError(t, webhook.Check(netip.MustParseAddr("2606:4700::1%eth0")), "webhook: blocked: zone")
	require.EqualError(t, webhook.Check(netip.Addr{}), "webhook: blocked: no address")
}

func TestGuardAllowsNoMoreThanThePrefixesGiven(t *testing.T) { // the option of H3
	t.Parallel()
	addr := netip.MustParseAddr
	for _, allow := range []string{"10.1.0.0/16", "10.1.2.3/16", "::ffff:10.1.0.0/112"} {
		p := netip.MustParsePrefix(allow)
		require.NoError(t, webhook.Check(addr("10.1.255.255"), p), allow)
		require.NoError(t, webhook.Check(addr("::ffff:10.1.0.1"), p), allow)
		require.Error(t, webhook.Check(addr("10.2.0.0"), p), allow)
		require.Error(t, webhook.Check(addr("::1"), p), allow)
	}
	require.Error(t, webhook.Check(addr("fe80::1%eth0"), netip.MustParsePrefix("fe80::/10")), "zones stay refused")
	require.Panics(t, func() { _ = webhook.Check(addr("10.0.0.1"), netip.Prefix{}) })
	require.Panics(t, func() { _ = webhook.Check(addr("10.0.0.1"), netip.MustParsePrefix("::ffff:0.0.0.0/95")) })
}

func TestGuardSaysOnceInTheLogWhatItAllows(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	client := newClient(t, webhook.ClientOptions{Allow: loopback, Logger: logger, Resolver: resolver(everywhere)})
	target := serve(t, thanks)
	for range 3 {
		_, err := post(t, client, "http://hooks.example:"+portOf(t, target))
		require.NoError(t, err)
	}
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "127.0.0.0/8")

	log.Reset()
	newClient(t, webhook.ClientOptions{Logger: logger})
	require.Empty(t, log.String(), "nothing allowed, nothing to say")
}

func TestW2TheSocketIsRefusedWhateverTheNameHadAnswered(t *testing.T) {
	t.Parallel()
	target := newTrap(t)
	d := net.Dialer{ControlContext: webhook.Control} // the guard's hook alone, no look-up checked before
	_, err := d.DialContext(t.Context(), "tcp", target.Addr().String())
	e, ok := errors.AsType[*webhook.BlockedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "loopback", e.Kind)
	target.requireUntouched(t)
}

func TestControlRefusesWhatIsNotATCPAddress(t *testing.T) {
	t.Parallel()
	for network, address := range map[string]string{"udp4": "8.8.8.8:53", "unix": "/run/x", "tcp4": "nonsense", "tcp6": "[fe80::1%eth0]:80"} {
		require.Error(t, webhook.Control(context.Background(), network, address, nil), "%s %s", network, address)
	}
	require.NoError(t, webhook.Control(context.Background(), "tcp4", "8.8.8.8:443", nil))
	require.NoError(t, webhook.Control(context.Background(), "tcp6", "[2606:4700::1]:443", nil))
}
