package rebase

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Waking up. Its only output is "wake".
//
// A NOTIFY in every enqueue would serialise all commits of the cluster, so enqueues ask
// first (rebase.wake): a worker that sleeps holds shared advisory locks, one for each
// bucket of its tasks, on its LISTEN connection; whoever makes a row pending tries the
// exclusive lock, and notifies only if it can't be had.
//
// Why no wake-up is lost. Let a worker fall asleep at the moment L when it holds all its
// locks. Take any transaction that makes a row pending for it.
//
//  1. It asks after L: the lock is taken, so it notifies, and its commit delivers that.
//  2. It asks before L, and commits before the worker's look takes its snapshot: the look
//     sees the row, because it starts at the head of its lane.
//  3. It asks before L, and is still open at that snapshot. It has a transaction id
//     already, since it has written the row that it asks for. After L the worker draws
//     an id x in a transaction of its own, so that this id is below x; and each look first
//     asks for the oldest id that is still open, xmin. While xmin <= x there may be such a
//     transaction, and the worker looks again, after 50, 100, 200 ms … When xmin > x all of
//     them have ended before the snapshot of that look, and case 2 holds.
//
// So a straggler waits about as long as its own transaction took, and then the worker
// sleeps until it is notified, a job is due, or 30 s have passed.
//
// The order on a new connection is: LISTEN, prove that a notification really arrives,
// lock, look. The proof is a ping over the recorder's connection: behind a transaction
// pooler, or in another database, LISTEN succeeds and nothing ever comes. A lock taken
// there would stay behind on the pooler's connection, hence lock after the proof.

const (
	// channel carries "t:task" (a job became pending), "c:id" (a running job was
	// cancelled), "s:" (a schedule changed) and "p:nonce" (a ping).
	channel = "rebase_jobs"

	pingPeriod   = 30 * time.Second // also of the heartbeat
	pingPatience = 10 * time.Second // until an unanswered ping ends the connection
	proofTime    = 5 * time.Second
	alivePeriod  = 60 * time.Second // below idle_session_timeout
	unprovenWait = time.Minute      // before a connection that proved useless is tried again
	rampFirst    = 50 * time.Millisecond
	deafPatience = 5 * time.Second // before a LISTEN that fails is spoken of

	// Wakes faster than this make a worker give up its locks, so that enqueues get fast
	// again, and look at short intervals instead.
	fastWakes  = 8
	fastWindow = 80 * time.Millisecond
	awakeFor   = 20 * time.Millisecond
)

// errListenURL stands for the parser's own error, and for the look-up of what it took for a host:
// either could tell of a password.
var errListenURL = errors.New("the address for LISTEN can't be parsed (in a URL, special characters of the password are written as %40 and so on)")

// errUnproven: LISTEN succeeded, but a notification that was sent did not arrive.
var errUnproven = errors.New("no notification arrives: a transaction pooler, or another database (set ListenURL or DATABASE_DIRECT_URL)")

// errSilent: pings stopped arriving on a connection that had proved itself.
var errSilent = errors.New("pings stopped arriving")

// A listener owns the LISTEN connection; only its goroutine touches it.
type listener struct {
	e       *engine
	connect func(context.Context) (*pgx.Conn, error)
	conn    *pgx.Conn
	alive   time.Time // the last statement on it
	recent  []time.Time

	mu     sync.Mutex // guards what follows
	order  *order     // what the claimer wants of it
	cancel context.CancelFunc
}

// listenConnect chooses the connection for LISTEN.
func (w *Worker) listenConnect() func(context.Context) (*pgx.Conn, error) {
	url := cmp.Or(w.opts.ListenURL, os.Getenv("DATABASE_DIRECT_URL"))
	switch {
	case w.opts.Listen != nil:
		return w.opts.Listen
	case url != "":
		return func(ctx context.Context) (*pgx.Conn, error) {
			config, err := pgxpool.ParseConfig(url) // which knows a pool's parameters, too
			address, _, _ := strings.Cut(url, "?")
			if err != nil || strings.Contains(url, "://") && strings.Count(address, "@") > 1 {
				return nil, errListenURL
			}
			return pgx.ConnectConfig(ctx, config.ConnConfig)
		}
	}
	return poolConnect(w.q.pool, nil)
}

// listenLoop keeps a LISTEN connection until the engine ends.
func (e *engine) listenLoop() {
	l := e.listener
	var again redial
	for !e.quitting() {
		err := l.serve()
		l.close()
		if e.quitting() {
			return
		}
		if e.deaf(err) {
			again.reset()
		}
		if errors.Is(err, errUnproven) {
			sleep(unprovenWait, e.quit)
			continue
		}
		e.takeTurn(&again, e.quit)
	}
}

func (l *listener) close() {
	l.answer(nil, 0)
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = l.conn.Close(ctx) // it is gone or useless; there is nobody to tell
	l.conn = nil
}

// serve connects, proves the connection and listens until it breaks.
func (l *listener) serve() error {
	ctx, cancel := context.WithTimeout(l.e.base, 10*time.Second)
	defer cancel()
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	l.conn = conn
	if _, err := conn.PgConn().Exec(ctx, "listen "+channel).ReadAll(); err != nil {
		return err
	}
	if err := l.prove(); err != nil {
		return err
	}
	if err := l.settle(ctx); err != nil {
		return err
	}
	l.e.hears()
	for !l.e.quitting() {
		if err := l.step(); err != nil {
			return err
		}
	}
	return nil
}

// prove waits for a ping that the recorder sends over its own connection.
func (l *listener) prove() error {
	nonce := l.e.askPing()
	for {
		l.answer(nil, 0) // what was wanted of the connection before
		sent, seen, _ := l.e.pingState()
		if seen == nonce {
			return nil
		}
		wait := proofTime
		if !sent.IsZero() {
			if wait = time.Until(sent.Add(proofTime)); wait <= 0 {
				return errUnproven
			}
		}
		if err := l.wait(wait); err != nil {
			return err
		}
		if l.e.quitting() {
			return context.Canceled
		}
	}
}

// settle makes the server notice a client that is gone or frozen: it holds locks that
// make every enqueue pay for a NOTIFY. These are SETs, and so come after the proof.
func (l *listener) settle(ctx context.Context) error {
	_, err := l.conn.PgConn().Exec(ctx, `set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 10; set tcp_keepalives_count = 3;
		set tcp_user_timeout = 30000; set idle_session_timeout = 90000; set lock_timeout = 1000; set statement_timeout = 5000; set search_path = pg_catalog, pg_temp`).ReadAll()
	l.alive = time.Now()
	return err
}

// step carries out an order, or waits for what comes next.
func (l *listener) step() error {
	if err := l.obey(); err != nil {
		return err
	}
	now := time.Now()
	until := l.alive.Add(alivePeriod)
	if sent, _, open := l.e.pingState(); open {
		if now.Sub(sent) > pingPatience {
			return errSilent
		}
		until = earlier(until, sent.Add(pingPatience+time.Millisecond))
	}
	if now.Before(until) {
		return l.wait(until.Sub(now))
	}
	return l.exec("-- rebase: alive")
}

// exec runs a statement that returns nothing of interest.
func (l *listener) exec(sql string) error {
	ctx, cancel := context.WithTimeout(l.e.base, l.e.roundLimit())
	defer cancel()
	l.alive = time.Now()
	_, err := l.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// wait takes notifications until d has passed, one has come, or poke was called. pgx
// leaves a connection usable whose wait for a notification is cut short.
func (l *listener) wait(d time.Duration) error {
	ctx, cancel := context.WithTimeout(l.e.base, d)
	defer cancel()
	l.mu.Lock()
	if l.order != nil || l.e.quitting() { // poke may have come before there was a wait to cut short
		l.mu.Unlock()
		return nil
	}
	l.cancel = cancel
	l.mu.Unlock()
	n, err := l.conn.WaitForNotification(ctx)
	l.mu.Lock()
	l.cancel = nil
	l.mu.Unlock()
	if err == nil {
		if n != nil { // nil: a connection of the user's that handles them itself; it won't prove itself
			l.heard(n.Payload)
		}
		return nil
	}
	if ctx.Err() != nil && !l.conn.IsClosed() {
		return nil
	}
	return err
}

// heard takes a notification in. Anything that isn't ours is ignored: everybody who can
// connect can send one.
func (l *listener) heard(payload string) {
	kind, rest, _ := strings.Cut(payload, ":")
	switch kind {
	case "t":
		l.wakes(rest)
	case "c":
		if id, err := strconv.ParseInt(rest, 10, 64); err == nil {
			l.e.cancelled(id)
		}
	case "p":
		l.e.pinged(rest)
	case "s":
		l.e.schedulesHeard()
	}
}

// wakes wakes the claimer; with many workers a little later each, so that they don't
// all look for one job in the same instant. Under a flood it gives up the locks.
func (l *listener) wakes(task string) {
	e := l.e
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byName[task] == nil {
		return
	}
	l.recent = append(l.recent, now)
	if len(l.recent) > fastWakes {
		l.recent = slices.Delete(l.recent, 0, 1)
	}
	if len(l.recent) == fastWakes && now.Sub(l.recent[0]) < fastWindow {
		e.look.fast = true
		l.recent = l.recent[:0]
		l.unlock()
	}
	if spread := min(time.Duration(e.peers)*100*time.Microsecond, 5*time.Millisecond); e.peers > 2 && e.running == 0 {
		e.look.by(now.Add(rand.N(spread)))
	} else {
		e.look.woken = true
	}
	e.claimSignal.set()
}

// poke ends a wait, so that step looks at what has changed.
func (l *listener) poke() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel()
	}
}

// hears: notifications arrive. One look finds what was committed before.
func (e *engine) hears() {
	e.mu.Lock()
	said := e.deafSaid
	e.listening, e.deafSaid = true, false
	e.hearings++
	e.look.locked, e.look.proven, e.look.woken = false, false, true
	e.mu.Unlock()
	e.claimSignal.set()
	if said {
		e.log.Info("rebase: LISTEN works again", "worker", e.id)
	}
}

// deaf: they don't; the claimer polls meanwhile. Said once per change. It reports whether
// they did until now.
func (e *engine) deaf(err error) (heard bool) {
	e.mu.Lock()
	heard = e.listening
	if e.listening || e.deafSince.IsZero() {
		e.deafSince = time.Now()
	}
	// A connection that broke comes back in a moment, and while the database is away that has
	// been said already.
	say := !e.deafSaid && !e.resultsAway.away && (errors.Is(err, errUnproven) || time.Since(e.deafSince) > deafPatience)
	e.listening, e.deafSaid = false, e.deafSaid || say
	e.look.locked, e.look.proven = false, false
	e.ping = ping{}
	e.look.soon(time.Now())
	e.mu.Unlock()
	e.claimSignal.set()
	if say {
		e.log.Warn("rebase: LISTEN does not work; polling", "error", err, "worker", e.id)
	}
	return heard
}
