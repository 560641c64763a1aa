//go:build unix

// One run of one seed: a server, a fleet, enqueuers, operators and the adversary, in
// rounds of chaos and quiet, and at the end the checker. In each quiet no harm is done and
// nothing is enqueued: the queue must get empty, and then each single job must start at
// once (probes.go).

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/faultnet"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

// A plan says how large a run is.
type plan struct {
	Duration             time.Duration // of chaos and quiet; the last drain comes on top
	Workers, Concurrency int
	Visibility           time.Duration
	Rate                 int    // jobs a second
	Binaries             string // of PostgreSQL; "": found
	PgBouncer            bool
	Failover             bool   // to an asynchronous standby
	Plant                string // a fault of the harness's own, see plants.go
	Keep                 bool   // the directory with the record
	Only                 string // the adversary's faults, by name; "": all
}

// A run is one seed under way.
type run struct {
	plan
	seed    uint64
	dir     string
	record  *record
	server  *pgserver.Server
	front   *faultnet.Proxy  // before the server, if another may take its place; nil without
	standby *standby         // nil without
	old     *pgserver.Server // the primary that has been replaced, nil before
	pooler  *pooler          // nil without
	watch   sync.WaitGroup   // the record's
	proxies []*faultnet.Proxy
	direct  *pgxpool.Pool // past all links, for the harness itself
	app     *pgxpool.Pool // the enqueuers'
	desk    *pgxpool.Pool // the operators'
	fleet   *fleet
	jobs    *enqueuers
	ops     *operators
	adv     *adversary
}

// run runs a seed on a server of its own.
func (p plan) run(ctx context.Context, seed uint64) (_ *report, err error) {
	begun := time.Now()
	dir, err := os.MkdirTemp("", "rebase-torture-")
	if err != nil {
		return nil, err
	}
	r := &run{plan: p, seed: seed, dir: dir}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.rounds(ctx); err != nil {
		return nil, err
	}
	if err := r.fleet.end(ctx); err != nil {
		return nil, err
	}
	report, err := r.check(ctx)
	if err != nil {
		return nil, err
	}
	report.Seed, report.Took = seed, time.Since(begun)
	if report.violations() == 0 && !p.Keep {
		return report, os.RemoveAll(dir)
	}
	report.Dir = dir
	return report, nil
}

// open sets everything up.
func (r *run) open(ctx context.Context) (err error) {
	if r.record, err = newRecord(r.dir, "harness"); err != nil {
		return err
	}
	r.watch.Go(func() { r.record.watchStalls(r.Visibility / 8) })
	if err := r.openServer(ctx); err != nil {
		return err
	}
	if r.direct, err = r.directPool(ctx); err != nil {
		return err
	}
	if err := prepare(ctx, r.direct); err != nil {
		return err
	}
	if err := r.plantOwn(ctx); err != nil {
		return err
	}
	front := r.home()
	if r.PgBouncer {
		if r.pooler, err = startPooler(ctx, r.dir, front); err != nil {
			return err
		}
		front = r.pooler.addr
	}
	appLink, err := r.link(front)
	if err != nil {
		return err
	}
	if r.app, err = newPool(ctx, r.url(appLink), "app", 12); err != nil {
		return err
	}
	r.jobs = &enqueuers{record: r.record, pool: r.app, queue: rebase.New(r.app, nil)}
	if r.desk, err = newPool(ctx, r.url(appLink), "app", 4); err != nil {
		return err
	}
	r.ops = &operators{record: r.record, queue: rebase.New(r.desk, nil), jobs: r.jobs}
	slots, err := r.slots(front)
	if err != nil {
		return err
	}
	r.fleet = startFleet(r.record, r.dir, slots)
	kinds, err := only(r.Only)
	if err != nil {
		return err
	}
	if r.Failover { // its end could be lost, and everybody would be refused for ever
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(f fault) bool { return f.name == "read-only" })
	}
	r.adv = &adversary{kinds: kinds, record: r.record, server: r.server, fleet: r.fleet, app: appLink, direct: r.direct, pool: r.app, pooler: r.pooler, lease: r.Visibility}
	return nil
}

// openServer starts the server, and before it what leads to its successor.
func (r *run) openServer(ctx context.Context) (err error) {
	if r.server, err = pgserver.Start(ctx, pgserver.Config{BinDir: r.Binaries, Settings: r.serverSettings()}); err != nil || !r.Failover {
		return err
	}
	if r.front, err = r.link(address(r.server)); err != nil {
		return err
	}
	return r.follow(ctx)
}

// home is where the server is found, whichever it is.
func (r *run) home() string {
	if r.front != nil {
		return r.front.Addr()
	}
	return address(r.server)
}

func (r *run) homeURL() string {
	if r.front != nil {
		return r.front.URL(r.server.URL("postgres"))
	}
	return r.server.URL("postgres")
}

// directPool is the harness's own: no fault strikes it, apart from those of the server.
func (r *run) directPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(r.homeURL())
	if err != nil {
		return nil, err
	}
	config.MaxConns = 10
	config.ConnConfig.RuntimeParams["application_name"] = "harness"
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off"
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	return pgxpool.NewWithConfig(ctx, config)
}

func (r *run) link(target string) (*faultnet.Proxy, error) {
	l, err := faultnet.Listen(target)
	if err == nil {
		r.proxies = append(r.proxies, l)
	}
	return l, err
}

// url is the way through a link. Without prepared statements through the pooler: old ones
// don't know them.
func (r *run) url(l *faultnet.Proxy) string {
	url := l.URL(r.server.URL("postgres"))
	if r.PgBouncer {
		url += "&default_query_exec_mode=exec"
	}
	return url
}

// slots gives each worker a link of its own, and behind a pooler one more, past it, for
// LISTEN.
func (r *run) slots(front string) (all []*slot, err error) {
	for i := range r.Workers {
		s := &slot{name: fmt.Sprintf("slot%d", i+1)}
		l, err := r.link(front)
		if err != nil {
			return nil, err
		}
		s.links = append(s.links, l)
		s.config = workerConfig{URL: r.url(l), Dir: r.dir, Concurrency: r.Concurrency, Visibility: r.Visibility, Schedules: schedules}
		if r.PgBouncer {
			ear, err := r.link(r.home())
			if err != nil {
				return nil, err
			}
			s.links = append(s.links, ear)
			s.config.ListenURL = ear.URL(r.server.URL("postgres"))
		}
		all = append(all, s)
	}
	return all, nil
}

const (
	schedules   = 10
	chaosTime   = 20 * time.Second // of a round, at most
	quietTime   = 6 * time.Second  // of which probes take the most
	patience    = 30 * time.Second // for an empty queue, beyond one lease
	gaugePeriod = 100 * time.Millisecond
)

// rounds alternates chaos and quiet, and ends with a quiet.
func (r *run) rounds(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.seed, 1))
	gauge, stopGauge := context.WithCancel(ctx)
	var measuring sync.WaitGroup
	measuring.Go(func() { r.gauge(gauge) })
	defer measuring.Wait()
	defer stopGauge()
	begun := time.Now()
	end := begun.Add(r.Duration)
	for i := uint64(0); ctx.Err() == nil; i++ {
		d := min(chaosTime, max(time.Until(end)-quietTime, 5*time.Second))
		failing := r.Failover && r.old == nil && time.Since(begun)+d/2 >= r.Duration/3
		if err := r.chaos(ctx, random, d, r.seed+1_000_003*i, failing); err != nil {
			return err
		}
		if r.old != nil {
			if err := r.resumeAll(ctx); err != nil {
				return err
			}
		}
		r.quiet(ctx, random)
		if time.Until(end) < quietTime {
			break
		}
	}
	if r.Failover && r.old == nil && ctx.Err() == nil {
		return errors.New("the failover did not happen: the run was too short")
	}
	return context.Cause(ctx)
}

// chaos is enqueuers, operators and the adversary at once, and in one of the rounds the failover.
func (r *run) chaos(ctx context.Context, random *rand.Rand, d time.Duration, seed uint64, failing bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var all sync.WaitGroup
	if failing {
		own := rand.New(rand.NewPCG(random.Uint64(), 3))
		all.Go(func() {
			await(ctx, between(own, d/4, d*6/10))
			err = r.failOver(ctx, own)
		})
	}
	all.Go(func() { r.jobs.run(ctx, seed, r.Rate) })
	all.Go(func() { r.ops.run(ctx, seed) })
	r.adv.run(ctx, random)
	all.Wait()
	return err
}

// servers are all that were started.
func (r *run) servers() (all []*pgserver.Server) {
	if r.standby != nil {
		all = append(all, r.standby.server)
	}
	return slices.DeleteFunc(append(all, r.server, r.old), func(s *pgserver.Server) bool { return s == nil })
}

// close takes everything down.
func (r *run) close() (err error) {
	if r.fleet != nil {
		r.fleet.abort()
	}
	for _, pool := range []*pgxpool.Pool{r.app, r.desk, r.direct} {
		if pool != nil {
			pool.Close()
		}
	}
	for _, l := range r.proxies {
		l.Close()
	}
	if r.pooler != nil {
		r.pooler.close()
	}
	for _, s := range r.servers() {
		err = errors.Join(err, s.Close())
	}
	if r.record != nil {
		err = errors.Join(err, r.record.close())
	}
	r.watch.Wait()
	return err
}
