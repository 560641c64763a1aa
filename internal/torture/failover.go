//go:build unix

// The failover, for -failover: beside the primary a standby that streams without being waited
// for. Once, in the middle of a run and under load, what streams is held up, the primary is
// killed, and the standby takes over with whatever it has. Everybody finds it where the primary
// was. The primary comes back to nobody but the checker, whom it tells what was lost with it
// (lost.go).

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/faultnet"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

// A standby follows the primary over a link of its own.
type standby struct {
	server *pgserver.Server
	link   *faultnet.Proxy
}

// serverSettings are those of the server, and of the standby, which is to be its like.
func (p plan) serverSettings() map[string]string {
	// A commit is on its way to the disk before it is confirmed, so a crash of the server
	// loses none; a crash of the machine is not what this is about, so nothing waits for
	// the disk itself.
	set := map[string]string{
		"synchronous_commit": "on", "max_connections": "100", "log_min_messages": "fatal", "deadlock_timeout": "500ms",
		// A transaction whose client has vanished without a word keeps its locks, that of
		// CompleteTx too, until the server ends it; the documentation says to let it.
		"idle_in_transaction_session_timeout": "10s",
	}
	if p.Failover {
		// The checker wants to know when what was lost had been committed; and a standby that
		// was cut off by a restart of the primary must find again what it has missed.
		maps.Copy(set, map[string]string{"track_commit_timestamp": "on", "wal_keep_size": "1GB"})
	}
	return set
}

// follow makes the standby: a copy of the primary, which is stopped for it.
func (r *run) follow(ctx context.Context) (err error) {
	r.standby = &standby{}
	if r.standby.link, err = r.link(address(r.server)); err != nil {
		return err
	}
	set := r.serverSettings()
	set["primary_conninfo"] = "user=postgres application_name=standby " + conninfo(r.standby.link)
	set["wal_retrieve_retry_interval"] = "200ms"
	if r.standby.server, err = pgserver.Start(ctx, pgserver.Config{BinDir: r.Binaries, Settings: set}); err != nil {
		return err
	}
	from, err := dataDirectory(ctx, r.server)
	if err != nil {
		return err
	}
	to, err := dataDirectory(ctx, r.standby.server)
	if err != nil {
		return err
	}
	if err := errors.Join(r.server.Stop("fast"), r.standby.server.Stop("fast")); err != nil {
		return err
	}
	if err := copyCluster(to, from); err != nil {
		return fmt.Errorf("the standby: %w", err)
	}
	return errors.Join(r.server.Restart("fast"), r.standby.server.Restart("fast"))
}

func address(s *pgserver.Server) string { return fmt.Sprintf("127.0.0.1:%d", s.Port()) }

// conninfo is a proxy's address as libpq takes it.
func conninfo(p *faultnet.Proxy) string {
	host, port, _ := net.SplitHostPort(p.Addr()) // it is always of that form
	return "host=" + host + " port=" + port
}

// ask returns the one row of a query over a connection of its own, as soon as there is one to
// be had: the adversary may have taken all.
func ask(ctx context.Context, s *pgserver.Server, sql string, into ...any) error {
	for {
		err := askOnce(ctx, s, sql, into...)
		if err == nil || pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

func askOnce(ctx context.Context, s *pgserver.Server, sql string, into ...any) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // nothing depends on it
	return conn.QueryRow(ctx, sql).Scan(into...)
}

func dataDirectory(ctx context.Context, s *pgserver.Server) (dir string, err error) {
	return dir, ask(ctx, s, "show data_directory", &dir)
}

// copyCluster replaces the cluster in one directory by a copy of that in another, which is to
// start as a standby. Its files belong to whom the old ones belonged.
func copyCluster(to, from string) error {
	was, err := os.Stat(to)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, "standby.signal"), nil, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(to, was.Mode().Perm()); err != nil {
		return err
	}
	owner := was.Sys().(*syscall.Stat_t)
	return filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(owner.Uid), int(owner.Gid)))
	})
}

// streams returns when the standby has nearly all that the primary has.
func (r *run) streams(ctx context.Context) error {
	const sql = `
select exists (select from pg_stat_replication where state = 'streaming' and pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) < 1000000)`
	for {
		var near bool
		if err := errors.Join(ask(ctx, r.server, sql, &near), ctx.Err()); err != nil {
			return fmt.Errorf("the standby does not follow: %w", err)
		}
		if near {
			return nil
		}
		_ = pause(ctx, 20*time.Millisecond) // the loop asks the context
	}
}

// failOver kills the primary and lets the standby take its place. It is not cut short by the end
// of the chaos. Nobody restarts a server meanwhile.
func (r *run) failOver(ctx context.Context, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	r.adv.restarting.Lock()
	defer r.adv.restarting.Unlock()
	if err := r.streams(ctx); err != nil {
		return err
	}
	n := note{Kind: noteFault, What: failover, On: "server", Text: "the standby followed closely, "}
	if random.IntN(8) > 0 { // what is committed from now on is lost
		from := time.Now()
		r.standby.link.Stall(true)
		r.jobs.slow.Store(true)
		await(ctx, between(random, 100*time.Millisecond, 2500*time.Millisecond))
		r.awaitResults(ctx, from)
		r.jobs.slow.Store(false)
		n.Text = fmt.Sprintf("the standby got nothing for %.1f s, ", time.Since(from).Seconds())
	}
	n.From = time.Now().UnixMicro()
	if err := r.server.Stop("immediate"); err != nil {
		return err
	}
	r.standby.link.Close()
	early := random.IntN(2) == 0 // they meet a standby, which only reads
	if early {
		if err := r.front.Redirect(address(r.standby.server)); err != nil {
			return err
		}
		await(ctx, between(random, time.Millisecond, 500*time.Millisecond))
	}
	if err := r.promote(ctx, &n); err != nil {
		return err
	}
	if err := r.front.Redirect(address(r.standby.server)); err != nil {
		return err
	}
	n.At = time.Now().UnixMicro()
	r.old, r.server, r.adv.server = r.server, r.standby.server, r.standby.server
	r.record.note(n)
	return nil
}

// awaitResults waits for some, but not for long: other faults may just now let nobody work.
func (r *run) awaitResults(ctx context.Context, from time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sql := fmt.Sprintf("select count(*) > 3 from torture.audit where fence < 0 and at > to_timestamp(%d / 1000000.0)", from.UnixMicro())
	for enough := false; !enough && ctx.Err() == nil; {
		_ = ask(ctx, r.server, sql, &enough) // which waits for an answer
		_ = pause(ctx, 50*time.Millisecond)  // the loop asks the context
	}
}

// promote notes what the standby had: the time of the last commit or rollback that it replayed,
// which the server keeps as it was when the recovery ended.
func (r *run) promote(ctx context.Context, n *note) error {
	var promoted bool
	if err := ask(ctx, r.standby.server, "select pg_promote(true, 60)", &promoted); err != nil || !promoted {
		return fmt.Errorf("the standby is not promoted (%t): %w", promoted, err)
	}
	var upTo string
	const sql = `select (extract(epoch from pg_last_xact_replay_timestamp()) * 1000000)::bigint, pg_last_wal_replay_lsn()::text`
	if err := ask(ctx, r.standby.server, sql, &n.N, &upTo); err != nil {
		return err
	}
	n.Text += "and has replayed up to " + upTo
	return nil
}

// resumeAll undoes pauses that nobody asks for any more: a resume may have been lost with the
// old primary, after it had been confirmed.
func (r *run) resumeAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, task := range tasks {
		for rebase.New(r.direct, nil).ResumeTask(ctx, task) != nil {
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("task %s can't be resumed: %w", task, err)
			}
		}
	}
	return nil
}

// witness loads what the old primary has, which nobody else can reach: all that leads to a
// server leads to the new one. When what it has was committed comes from it, too.
func (r *run) witness(ctx context.Context, e *evidence) (states []*state, commits map[int64]int64, err error) {
	if err := r.old.Restart("fast"); err != nil {
		return nil, nil, err
	}
	conn, err := pgx.Connect(ctx, r.old.URL("postgres"))
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // it was only read
	if states, err = e.load(ctx, conn); err != nil {
		return nil, nil, err
	}
	rows, err := conn.Query(ctx, `
select a.xid, coalesce((extract(epoch from pg_xact_commit_timestamp(a.xid::text::xid)) * 1000000)::bigint, 0)
from (select distinct xid from torture.audit) a`)
	if err != nil {
		return nil, nil, err
	}
	commits = map[int64]int64{}
	var xid, at int64
	_, err = pgx.ForEachRow(rows, []any{&xid, &at}, func() error { commits[xid] = at; return nil })
	return states, commits, err
}
