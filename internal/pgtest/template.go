// The template: a database with rebase's schema, made by Migrate itself, that
// every test's database is a copy of. On a private server there is one for all
// processes of a run, named after the migrations' content. It is ready once
// nobody may connect to it, a mark that is set by one statement at the end; so a
// half-made one can't be taken for good.
//
// On a server that is the user's nothing may be left behind. There each process
// makes its own and drops it in Main. Without Main nobody would drop it, so
// there is none, and each database is migrated by itself.

package pgtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/migrations"
)

// templateLock is the advisory lock that making a template holds.
const templateLock = 7236_0001

// template returns the template's name, or "" if there is none. The first call
// of a process makes it, if no other process has.
func (s *server) template() (string, error) {
	s.templateOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		switch {
		case !s.foreign:
			s.templateName, s.templateErr = s.sharedTemplate(ctx)
		case s.mainRuns:
			s.templateName = newName()
			s.templateErr = s.makeTemplate(ctx, s.templateName)
		}
	})
	return s.templateName, s.templateErr
}

// sharedTemplate returns the private server's template, made by whichever
// process comes first.
func (s *server) sharedTemplate(ctx context.Context) (string, error) {
	hash, err := migrationsHash()
	if err != nil {
		return "", err
	}
	name := "rebase_template_" + hash
	return name, s.admin(ctx, func(conn *pgx.Conn) error {
		// Of the session: closing the connection gives it back.
		if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", templateLock); err != nil {
			return err
		}
		var ready bool
		err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1 and not datallowconn)", name).Scan(&ready)
		if err != nil || ready {
			return err
		}
		// One that isn't ready is what a killed process left.
		if err := s.drop(ctx, name); err != nil {
			return err
		}
		return s.makeTemplate(ctx, name)
	})
}

// makeTemplate makes a database with the schema that nobody can connect to.
func (s *server) makeTemplate(ctx context.Context, name string) error {
	return s.admin(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "create database "+name+" template template0", pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		if err := migrate(ctx, databaseURL(s.url, name)); err != nil {
			return fmt.Errorf("pgtest: migrate the template: %w", err)
		}
		return persist(ctx, conn, "alter database "+name+" with allow_connections false")
	})
}

// migrate applies rebase's schema to a database.
func migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return rebase.New(pool, nil).Migrate(ctx)
}

// migrationsHash changes with every change of a migration. It is computed once:
// the files are embedded.
var migrationsHash = sync.OnceValues(func() (string, error) {
	h := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(content), content)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), err
})
