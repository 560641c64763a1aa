// What the proxy costs and how exact it is: throughput one way, and the error of the delay over round trips.
package faultnet_test

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func BenchmarkThroughput(b *testing.B) {
	for _, delay := range []time.Duration{0, oneWay, 10 * oneWay} {
		b.Run(delay.String(), func(b *testing.B) {
			s := serve(b, "tcp", "127.0.0.1:0", func(c net.Conn) {
				_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
				_, _ = c.Write([]byte("all"))
			})
			p := proxyTo(b, s.addr)
			p.Delay(delay)
			c := dial(b, p)
			mebibyte := make([]byte, 1<<20)
			b.SetBytes(1 << 20)
			for b.Loop() {
				_, err := c.Write(mebibyte)
				require.NoError(b, err)
			}
			require.NoError(b, c.CloseWrite())
			expect(b, c, "all") // the last byte counts too
		})
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, delay := range []time.Duration{0, oneWay / 10, oneWay} {
		b.Run(delay.String(), func(b *testing.B) {
			p, _ := proxied(b)
			p.Delay(delay)
			c := dial(b, p)
			var off []time.Duration
			for b.Loop() {
				start := time.Now()
				ping(b, c)
				off = append(off, (time.Since(start) - 2*delay))
			}
			slices.Sort(off)
			for name, q := range map[string]int{"p10": 10, "p50": 50, "p90": 90, "p99": 99} {
				b.ReportMetric(float64(off[len(off)*q/100].Microseconds()), name+"-off-µs")
			}
		})
	}
}
