package cli

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/rebasejobs/rebase/migrations"
	"github.com/spf13/cobra"
)

// migrate and check: the schema. What --sql prints is what migrate applies, file by file, each
// in a transaction, so that whoever may not run programs against a database can review and
// apply it by psql.

func (a *app) migrateCommand() *cobra.Command {
	var sql bool
	var after int
	cmd := &cobra.Command{
		Use: "migrate", Short: "Make or update the schema",
		Long: `Brings the schema "rebase" to the version that this program knows. It can be run again, from
several places at once, and beside workers. --timeout bounds all of it.

With --sql it prints the statements instead, and needs no database:

  rebase migrate --sql | psql --set ON_ERROR_STOP=1 "$DATABASE_URL"`,
		Args: takes(0, 0),
	}
	cmd.Flags().BoolVar(&sql, "sql", false, "print the statements instead of running them")
	cmd.Flags().IntVar(&after, "after", 0, "with --sql: only versions above this one")
	migrate := a.with(func(ctx context.Context, d *db, _ []string) error {
		err := a.migrate(ctx, d)
		if forbidden(err) != "" {
			return &mayNotMigrateError{err}
		}
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case sql:
			a.began = true
			return a.printMigrations(after)
		case cmd.Flags().Changed("after"):
			return &usageError{"--after", strconv.Itoa(after), "needs --sql"}
		}
		return migrate(cmd, args)
	}
	return cmd
}

func (a *app) migrate(ctx context.Context, d *db) error {
	before, err := d.version(ctx)
	if err != nil {
		return err
	}
	limited, cancel := d.limit(ctx)
	defer cancel()
	if err := d.q.Migrate(limited); err != nil {
		return err
	}
	now, err := d.version(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return printJSON(a.out, struct {
			Before  int `json:"before"`
			Version int `json:"version"`
		}{before, now})
	}
	switch before {
	case now:
		_, err = fmt.Fprintf(a.out, "nothing to do: the schema is at version %d\n", now)
	case 0:
		_, err = fmt.Fprintf(a.out, "made the schema, version %d\n", now)
	default:
		_, err = fmt.Fprintf(a.out, "updated the schema from version %d to %d\n", before, now)
	}
	return err
}

// version is that of the schema, 0 if there is none.
func (d *db) version(ctx context.Context) (version int, err error) {
	err = d.in(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var there bool
		if err := tx.QueryRow(ctx, `select to_regclass('rebase.migrations') is not null`).Scan(&there); err != nil || !there {
			return err
		}
		return tx.QueryRow(ctx, `select coalesce(max(version), 0) from rebase.migrations`).Scan(&version)
	})
	return version, err
}

func (a *app) printMigrations(after int) error {
	names, err := fs.Glob(migrations.FS, "*.sql") // sorted by name, so by number
	if err != nil {
		return err
	}
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
		if version <= after {
			continue
		}
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(a.out, "-- %s\nbegin;\n%s\ncommit;\n\n", name, strings.TrimSpace(string(text))); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Tell whether workers can work on the database",
		Long: `Tells whether this version can work on the database: the schema is there and fits, the role has
the privileges that a worker needs, the encoding is UTF8, and the server takes writes.`,
		Args: takes(0, 0),
		RunE: a.with(func(ctx context.Context, d *db, _ []string) error {
			limited, cancel := d.limit(ctx)
			defer cancel()
			if err := d.q.Check(limited); err != nil {
				return err
			}
			version, err := d.version(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return printJSON(a.out, struct {
					OK      bool `json:"ok"`
					Version int  `json:"version"`
				}{true, version})
			}
			_, err = fmt.Fprintf(a.out, "ok: the schema is at version %d, and a worker can run as this role\n", version)
			return err
		}),
	}
}
