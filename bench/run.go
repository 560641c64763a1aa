package main

// A whole run: the server, what is to be known of the machine, the scenarios, and what came of
// them.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

func run(ctx context.Context, cfg *config, out io.Writer) (err error) {
	b := &bench{cfg: cfg, out: out}
	url, stop, err := startServer(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	b.url = url
	if b.admin, err = pgx.Connect(ctx, url); err != nil {
		return err
	}
	defer b.admin.Close(context.Background())
	if err := b.describe(ctx); err != nil {
		return err
	}
	if cfg.anatomy {
		return anatomy(ctx, b)
	}
	for _, s := range allScenarios {
		if !slices.Contains(cfg.scenarios, s.name) {
			continue
		}
		if err = b.play(ctx, s); err != nil {
			break // what has been measured until now is still told
		}
	}
	return errors.Join(err, b.conclude())
}

// conclude prints the table and writes the files.
func (b *bench) conclude() error {
	b.Ended, b.LoadAtEnd = time.Now(), loadAverage()
	b.Summaries = summarise(b.Measurements)
	fmt.Fprintf(b.out, "\n# load average at the end: %s\n\n", b.LoadAtEnd)
	err := show(b.out, b.cfg.plot, b.Summaries)
	if b.cfg.json != "" {
		err = errors.Join(err, b.write(b.cfg.json))
	}
	if b.failures > 0 {
		err = errors.Join(err, fmt.Errorf("%d measurements failed", b.failures))
	}
	return err
}

// show prints the tables and draws the pictures.
func show(out io.Writer, dir string, sums []summary) error {
	writeTable(out, sums)
	fmt.Fprintln(out)
	writeVerdicts(out, sums)
	if dir == "" {
		return nil
	}
	return plotAll(dir, sums)
}

// again shows what earlier runs have measured, as if it had been one run. Their files say
// whether that is fair: the same machine, server and settings.
func again(cfg *config, out io.Writer) error {
	var all []measurement
	for _, path := range cfg.from {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var r report
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(out, "# %s: %s, %d CPUs, %s, %s, %s rounds, scale %s, load average %s to %s\n",
			path, r.Platform, r.CPUs, r.GoVersion, r.Postgres, r.Rounds, r.Scale, r.LoadAtStart, r.LoadAtEnd)
		all = append(all, r.Measurements...)
	}
	fmt.Fprintln(out)
	return show(out, cfg.plot, summarise(all))
}

// describe prints and keeps everything that a figure depends on.
func (b *bench) describe(ctx context.Context) error {
	b.Started, b.LoadAtStart = time.Now(), loadAverage()
	b.Rounds, b.Scale, b.GoVersion, b.CPUs = b.cfg.rounds.String(), b.cfg.scale.String(), runtime.Version(), runtime.NumCPU()
	b.Platform = runtime.GOOS + "/" + runtime.GOARCH
	if err := b.admin.QueryRow(ctx, "select version()").Scan(&b.Postgres); err != nil {
		return err
	}
	rows, err := b.admin.Query(ctx, `
select name || ' = ' || current_setting(name)
from pg_settings
where source not in ('default', 'override', 'client')
  or name in ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers', 'autovacuum')
order by name`)
	if err != nil {
		return err
	}
	if b.ServerSettings, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return err
	}
	b.Systems = map[string]string{}
	fmt.Fprintf(b.out, "# %s, %d CPUs, %s, GOMAXPROCS %d, load average %s\n# %s\n# %s\n# %s rounds, scale %s\n",
		b.Platform, b.CPUs, b.GoVersion, runtime.GOMAXPROCS(0), b.LoadAtStart, b.Postgres,
		strings.Join(b.ServerSettings, "; "), b.Rounds, b.Scale)
	for _, name := range b.cfg.systems {
		s, err := systemNamed(name)
		if err != nil {
			return err
		}
		about := s.about
		switch {
		case slices.Contains(loopSystems, s):
			about += fmt.Sprintf("; %d jobs a claim", b.cfg.batch)
		case s.slots > 0:
			about += fmt.Sprintf("; concurrency %d where it has a choice", b.cfg.slots[name])
		}
		b.Systems[name] = about
		fmt.Fprintf(b.out, "# %s: %s\n", name, about)
	}
	return nil
}

// loadAverage is the machine's, or "unknown" where there is no /proc.
func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(data))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
