// Making and dropping databases. Every step uses a connection of its own to the
// maintenance database: connecting costs a few milliseconds, and nothing is left
// open that a leak test would find.

package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// patience is how long a statement is tried that another session is in the way of.
const patience = 10 * time.Second

// createEmpty makes a database with nothing in it and returns its name.
func (s *server) createEmpty(ctx context.Context) (string, error) {
	name := newName()
	return name, s.admin(ctx, func(conn *pgx.Conn) error {
		return persist(ctx, conn, "create database "+name+" template template0")
	})
}

// createMigrated makes a database with rebase's schema and returns its name.
func (s *server) createMigrated(ctx context.Context) (string, error) {
	template, err := s.template()
	if err != nil {
		return "", err
	}
	if template == "" { // see template.go
		name, err := s.createEmpty(ctx)
		if err != nil {
			return "", err
		}
		return name, migrate(ctx, databaseURL(s.url, name))
	}
	name := newName()
	return name, s.admin(ctx, func(conn *pgx.Conn) error {
		return persist(ctx, conn, "create database "+name+" template "+template+strategy(conn))
	})
}

// strategy says how to clone. Copying files costs two checkpoints, going through
// the WAL costs the writing of every page: without fsync the first was measured
// as 15-20 ms, the second as 25-70 ms. Servers before 15 only know the first.
func strategy(conn *pgx.Conn) string {
	major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	if n, err := strconv.Atoi(major); err == nil && n < 15 {
		return ""
	}
	return " strategy file_copy"
}

// drop removes a database, cutting off whoever is still connected to it.
func (s *server) drop(ctx context.Context, name string) error {
	return s.admin(ctx, func(conn *pgx.Conn) error {
		return persist(ctx, conn, "drop database if exists "+name+" with (force)")
	})
}

// admin runs f with a connection to the database that s.url names.
func (s *server) admin(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return errors.Join(f(conn), conn.Close(context.WithoutCancel(ctx)))
}

// persist executes a statement that fails when somebody is connected to the
// database in question, and tries again for a while: an autovacuum worker or a
// backend that has not yet seen its client go away leaves soon.
func persist(ctx context.Context, conn *pgx.Conn, sql string) error {
	for deadline := time.Now().Add(patience); ; {
		_, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		pgErr, fromServer := errors.AsType[*pgconn.PgError](err)
		if err == nil || !fromServer || pgErr.Code != "55006" /* object_in_use */ || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// newName returns a name that needs no quotes. It tells whose databases these
// are, should a killed run leave some on a server that isn't ours.
func newName() string {
	return "rebase_test_" + strings.ToLower(rand.Text()[:16])
}

// databaseURL returns the address of another database on the same server. Both
// of pgx's forms are known: a URL, and key=value pairs, of which the last wins.
func databaseURL(server, name string) string {
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		return server + " dbname=" + name
	}
	u.Path = "/" + name
	q := u.Query()
	q.Del("dbname")
	q.Del("database")
	u.RawQuery = q.Encode()
	return u.String()
}
