package main

// The server and its databases. A private server is durable: fsync and synchronous_commit are
// on, or the price of a commit, which batching is all about, would not be in the figures.
//
// Each scenario and system has a database of its own, made anew, so that no measurement meets
// the bloat or the statistics of another.

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase/internal/pgserver"
)

// serverSettings are those of a small production server. Checkpoints are far apart and the
// benchmark makes one before each measurement, so that none falls into one system's lap.
var serverSettings = map[string]string{
	"shared_buffers":     "512MB",
	"max_wal_size":       "4GB",
	"checkpoint_timeout": "30min",
	"wal_level":          "replica",
	"max_connections":    "300",
}

// startServer returns the address of a server and a function that ends what it has started.
func startServer(ctx context.Context, cfg *config) (string, func() error, error) {
	if cfg.url != "" {
		return cfg.url, func() error { return nil }, nil
	}
	settings := maps.Clone(serverSettings)
	if cfg.anatomy {
		maps.Copy(settings, anatomySettings)
	}
	s, err := pgserver.Start(ctx, pgserver.Config{BinDir: cfg.bin, Durable: true, Settings: settings})
	if err != nil {
		return "", nil, err
	}
	return s.URL("postgres"), s.Close, nil
}

// openPool opens a pool whose connections all exist at once: opening them is not what is
// measured.
func openPool(ctx context.Context, url string, conns int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = int32(conns), int32(conns)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	held := make([]*pgxpool.Conn, 0, conns)
	for range conns {
		var c *pgxpool.Conn
		if c, err = pool.Acquire(ctx); err != nil {
			break
		}
		held = append(held, c)
	}
	for _, c := range held {
		c.Release()
	}
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("connection %d of %d: %w", len(held)+1, conns, err)
	}
	return pool, nil
}

// A database is one system's, for one scenario.
type database struct {
	client
	url   string
	admin *pgx.Conn // for what is not measured, and to look for the end
	drop  func() error
}

// fillConns is the pool for what is not enqueued from many connections at once.
const fillConns = 4

// newDatabase makes it, with the system's tables.
func (b *bench) newDatabase(ctx context.Context, name string, s *system) (_ *database, err error) {
	name = "bench_" + strings.ReplaceAll(name, ".", "_") + "_" + s.name
	quoted := pgx.Identifier{name}.Sanitize()
	drop := func() error {
		_, err := b.admin.Exec(context.Background(), "drop database if exists "+quoted+" with (force)")
		return err
	}
	if err := drop(); err != nil {
		return nil, err
	}
	if _, err := b.admin.Exec(ctx, "create database "+quoted+" template template0"); err != nil {
		return nil, err
	}
	db := &database{drop: drop}
	if db.url, err = withDatabase(b.url, name); err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(db.url)
	if err != nil {
		return nil, err
	}
	// The question whether a job is left must not read a whole table.
	cfg.RuntimeParams["enable_seqscan"] = "off"
	if db.admin, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if db.client, err = s.open(ctx, db.url, fillConns); err != nil {
		return nil, err
	}
	return db, db.migrate(ctx)
}

func (db *database) Close() {
	if db.client != nil {
		db.client.close()
	}
	_ = db.admin.Close(context.Background()) // it is dropped by force anyway
	_ = db.drop()                            // with the next run's, if not now
}

func withDatabase(address, name string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("-url must be a postgres:// address: %q (%v)", address, err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// empty empties the tables.
func (db *database) empty(ctx context.Context) error {
	_, err := db.admin.Exec(ctx, "truncate "+strings.Join(db.tables(), ", ")+" restart identity")
	return err
}

// perCall is how many jobs a bulk insert makes with one call.
const perCall = 1000

// fill inserts n jobs, with ballast of as many bytes on average.
func (db *database) fill(ctx context.Context, n, bytes int) error {
	for ; n > 0; n -= perCall {
		if err := db.insert(ctx, batch{n: min(n, perCall), bytes: bytes}); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// settle leaves the tables vacuumed and analysed, and the disk with nothing to write.
func (db *database) settle(ctx context.Context) error {
	if _, err := db.admin.Exec(ctx, "vacuum (analyze) "+strings.Join(db.tables(), ", ")); err != nil {
		return err
	}
	_, err := db.admin.Exec(ctx, "checkpoint")
	return err
}

// prepare is what comes before a drain.
func (db *database) prepare(ctx context.Context, n, bytes int) error {
	if err := db.empty(ctx); err != nil {
		return err
	}
	if err := db.fill(ctx, n, bytes); err != nil {
		return err
	}
	return db.settle(ctx)
}
