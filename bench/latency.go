package main

// A database 20 ms away: a proxy delays every byte by 10 ms each way between the worker and the
// server, while the jobs are put there without it. The clean rate, through no proxy, is measured
// in the same round. The transactions of the drain, which the server counts, are a lower bound
// of its round trips: a worker that pipelines has one for each, others have more.
//
// A worker needs some thirty round trips before its first job, so there are enough jobs that the
// share is about the work; .start tells the rest. Gue, with four trips a job on each connection,
// would take ten minutes a round, and is left out.

import (
	"context"
	"net"
	"net/url"
	"time"

	"github.com/rebasejobs/rebase/internal/faultnet"
)

const (
	latencyJobs   = 200_000
	latencyOneWay = 10 * time.Millisecond
)

var latency20 = &scenario{
	name:    "latency20",
	about:   "200,000 no-op jobs over a round trip of 20 ms; .clean at 0 ms, .share of it, .trips: transactions a job, .start: until the first handler",
	asks:    "What if the database is 20 ms away?",
	systems: []*system{rebaseSystem, riverSystem},
	warm:    true,
	run: func(ctx context.Context, t *trial) error {
		n := t.scaled(latencyJobs)
		rates := map[time.Duration]float64{}
		var trips, start float64
		for i := range 2 {
			delay := time.Duration((i+t.round)%2) * latencyOneWay
			d, transactions, err := t.distantDrain(ctx, n, delay)
			if err != nil {
				return err
			}
			if rates[delay] = d.rate(n); delay > 0 {
				trips, start = transactions/float64(n), float64(d.begun.Load())/float64(time.Millisecond)
			}
		}
		t.measured("", rates[latencyOneWay], "jobs/s")
		t.measured("clean", rates[0], "jobs/s")
		t.measured("share", rates[latencyOneWay]/rates[0], "×")
		t.measured("trips", trips, "a_job")
		t.measured("start", start, "ms")
		return nil
	},
}

// distantDrain drains with the worker's connections delayed, and counts the transactions.
func (t *trial) distantDrain(ctx context.Context, n int, oneWay time.Duration) (d *drained, transactions float64, err error) {
	if err := t.db.prepare(ctx, n, 0); err != nil {
		return nil, 0, err
	}
	address := t.db.url
	if oneWay > 0 {
		u, err := url.Parse(address)
		if err != nil {
			return nil, 0, err
		}
		port := u.Port()
		if port == "" {
			port = "5432"
		}
		proxy, err := faultnet.Listen(net.JoinHostPort(u.Hostname(), port))
		if err != nil {
			return nil, 0, err
		}
		defer proxy.Close()
		proxy.Delay(oneWay)
		address = proxy.URL(address)
	}
	c, err := t.system.open(ctx, address, fillConns)
	if err != nil {
		return nil, 0, err
	}
	defer c.close()
	before, err := t.db.commits(ctx)
	if err != nil {
		return nil, 0, err
	}
	d, err = (&database{client: c, admin: t.db.admin}).drain(ctx, n, t.slots(), nil)
	if err != nil {
		return nil, 0, err
	}
	after, err := t.db.commits(ctx)
	return d, after - before, err
}

// commits is how many transactions this database has seen. Backends tell when they end, and
// the worker's have, at the latest a second after their last one.
func (db *database) commits(ctx context.Context) (n float64, err error) {
	time.Sleep(1100 * time.Millisecond)
	err = db.admin.QueryRow(ctx, "select xact_commit::float8 from pg_stat_database where datname = current_database()").Scan(&n)
	return n, err
}
