package rebase_test

// What SECURITY.md says of everybody else who can reach the database: a notification that isn't
// ours costs nothing; a row that SQL made wrong stops no other, and one that may not be is
// refused; a caller's session full of decoys changes nothing that is done in its transaction
// (names_test.go has the rest of that); and the password of an address is never said.

import (
	"context"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// trips counts what a worker sends: its connections are traced as the pool's are.
type trips struct{ n atomic.Int64 }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (c *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// junk is a payload that isn't ours, though it may begin like one.
func junk() string {
	heads := []string{"~", "t:", "c:~", "p:", ":", "tt", "ss", "S:", "T:t", " t:t", "t:t ", "t:t\n", "c:-1", "c:99999999999999999999", "p:0", "t:\u202et", "\x01"}
	b := []byte(heads[mathrand.N(len(heads))])
	for n := mathrand.N(7_996); len(b) < n; {
		b = utf8.AppendRune(b, rune(mathrand.N(0x2fff)+1))
	}
	return string(b) + "~"
}

// N1, N2: 10,000 notifications that aren't ours. The sleeper doesn't look, says nothing, and
// hears the next one that is: they come in order, so it has taken all of them in by then.
func TestN1HostileNotificationsWakeNobody(t *testing.T) {
	t.Parallel()
	sent := &trips{}
	pool := pgtest.NewWith(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sent })
	r := newRigOn(t, pool)
	s := r.sleeper(nil, "t")
	outside, err := pgxpool.New(t.Context(), pgtest.URL(t, pool)) // not traced
	require.NoError(t, err)
	defer outside.Close()
	before, said := sent.n.Load(), len(r.log.matching(""))
	for range 10 {
		payloads := make([]string, 1000)
		for i := range payloads {
			payloads[i] = junk()
		}
		_, err := outside.Exec(t.Context(), `select pg_notify('rebase_jobs', p) from unnest($1::text[]) p`, payloads)
		require.NoError(t, err)
	}
	elsewhere := rebase.New(outside, &rebase.Options{Logger: slog.New(slog.DiscardHandler), Notify: rebase.Always})
	id := one(t)(elsewhere.Enqueue(t.Context(), "t", nil, nil))
	require.Equal(t, id, await(t, s.began))
	require.Less(t, sent.n.Load()-before, int64(30), "round trips: those of an idle worker and of the one job")
	require.Len(t, r.log.matching(""), said)
}

// hostileRows are what somebody with SQL can put into a pending row; refused ones name the
// constraint, or the type, that refuses them.
var hostileRows = map[string]string{
	`payload = (repeat('[', 5000) || repeat(']', 5000))::jsonb`:         "",
	`payload = ('[' || repeat('1e1000,', 500) || '1e-1000]')::jsonb`:    "",
	`payload = to_jsonb(repeat('x', 5000000))`:                          "",
	`meta = (repeat('{"a":', 5000) || '1' || repeat('}', 5000))::jsonb`: "",
	`meta = '"text"'`:                         "",
	`meta = '{"a": {"b": [1]}}'`:              "",
	`meta = '[{}]', history = '{}'`:           "",
	`history = '"x"'`:                         "",
	`history = '[[], 1, {"attempt": 1e300}]'`: "",
	`history = '[{"attempt": 99999999999999999999, "ended_at": "never"}]'`:                                      "",
	`history = (select jsonb_agg(jsonb_build_object('error', repeat('x', 100))) from generate_series(1, 5000))`: "",
	`attempts = 2147483647, runs = 2147483647, max_attempts = 2147483647`:                                       "",
	`crashes = 32767, setbacks = 32767`:                                                                         "",
	`fence = -9223372036854775808`:                                                                              "",
	`id = 9223372036854775807`:                                                                                  "",
	`id = -9223372036854775808`:                                                                                 "",
	`updated_at = 'infinity', created_at = '-infinity'`:                                                         "",
	`slot = 'infinity', slot_zone = '../../etc/passwd'`:                                                         "",
	`slot = now(), slot_zone = '/etc/passwd'`:                                                                   "",
	`started_at = '-infinity', locked_until = 'infinity'`:                                                       "",
	`last_error = repeat('x', 1000000), locked_by = repeat('y', 1000000)`:                                       "",
	`idempotency_key = repeat('k', 1000000), key_hash = '\x'`:                                                   "",
	`status = 'exploded', finished_at = now()`:                                                                  "jobs_status",
	`status = 'pending', finished_at = now()`:                                                                   "jobs_status",
	`status = 'Pending'`:                                                                                        "jobs_status",
	`status = 'running'`:                                                                                        "jobs_status",
	`fence = 1`:                                                                                                 "jobs_status",
	`status = 'succeeded'`:                                                                                      "jobs_status",
	`finished_at = now()`:                                                                                       "jobs_status",
	`status = 'failed', finished_at = now()`:                                                                    "jobs_status",
	`status = 'succeeded', finished_at = now(), dead = true`:                                                    "jobs_status",
	`status = 'running', fence = 0, finished_at = now()`:                                                        "jobs_status",
	`status = 'succeeded', fence = 1, finished_at = now()`:                                                      "jobs_status",
	`run_at = '-infinity'`:                                                                                      "jobs_run_at",
	`attempts = -2147483648, runs = -2147483648`:                                                                "",
	`max_attempts = -2147483648`:                                                                                "",
	`crashes = -32768, setbacks = -32768`:                                                                       "",
	`lane = repeat('l', 1000)`:                                                                                  "",
	`key_hash = 'x'`:                                                                                            "",
	`idempotency_key = 'k'`:                                                                                     "",
	`payload = '"\u0000"'`:                                                                                      "22P05",
	`setbacks = 32768`:                                                                                          "22003",
}

// J24, J11, Q57: rows that SQL made wrong are refused by the table, run, or put aside; every
// other job is done, and what an operator does with the wrong ones is done or refused.
func TestJ24HostileRowsStopNoOtherJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var bad []int64
	for set, refusal := range hostileRows {
		id := r.enqueue("t", nil)
		err := r.pool.QueryRow(t.Context(), "update rebase.jobs set "+set+" where id = $1 returning id", id).Scan(&id)
		if refusal != "" {
			require.ErrorContains(t, err, refusal, set)
			continue
		}
		require.NoError(t, err, set)
		bad = append(bad, id)
	}
	r.exec(`insert into rebase.claims (token, locked_until, lease, worker, ids) values (1, '-infinity', '-1 day', e'\n', array[null, 1, -1, 9223372036854775807]::bigint[]),
		(-1, now() - interval '1 h', '1000 years', '', '{}'), (0, 'infinity', '0', 'x', '{{1,2},{3,4}}')`)
	r.exec(`insert into rebase.workers (id, host, tasks, concurrency, lease, limits, counters, seen_at) values
		('', '', '{}', -1, '-1 s', '[]', '"x"', 'infinity'), ('w', 'h', array[null, 't'], 2147483647, '1 year', '{"t": 7}', '{"succeeded": "x", "dead": 1e300, "": null}', now())`)
	r.exec(`insert into rebase.counters (hour, name, value) values ('infinity', e'\n', 9223372036854775807)`)
	r.exec(`insert into rebase.paused (task) values ('')`)
	var good []int64
	for range 40 {
		good = append(good, r.enqueue("t", nil))
	}
	s := r.handle("t", &rebase.WorkerOptions{VisibilityTimeout: 3 * time.Second}, succeed)
	r.until(func() bool { return r.count("status = 'succeeded' and id = any($1)", good) == len(good) }, "the others have run")
	r.until(func() bool { return r.count("status = 'pending' and run_at <= now() and id = any($1)", bad) == 0 }, "the wrong ones have run, or were put aside")
	late := r.enqueue("t", nil)
	r.ends(late, rebase.StatusSucceeded)
	require.NoError(t, s.stop())
	for _, id := range bad { // what can't be read is an error that names the job
		job, err := r.q.Job(t.Context(), id)
		if err != nil {
			require.ErrorContains(t, err, fmt.Sprintf("job %d: ", id))
		}
		if err != nil || strings.Contains(job.LastError, "zone of the slot") { // that one can be looked at
			require.Equal(t, 1, r.count("id = $1 and status = 'pending' and attempts = 0", id), "it was not run")
		} else {
			require.Equal(t, 1, r.count("id = $1 and status = 'succeeded'", id))
		}
	}
}

// Q48, J16, J23: in a session of decoys, what the caller's transaction is given: every mode of
// notifying, every option, and the completion of a job whose history is full.
func TestQ48TransactionsOfAHostileSessionDoWhatTheySay(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		d := newDesk(t)
		evil := d.hostile(mode, true)
		db := stdlib.OpenDBFromPool(evil)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		options := &rebase.EnqueueOptions{Delay: time.Nanosecond, MaxAttempts: 5, Lane: "l", Meta: map[string]string{"a": "b"}, IdempotencyKey: "k"}
		for _, notify := range []rebase.NotifyMode{rebase.Gated, rebase.Always, rebase.Never} {
			q := deskOn(t, evil, &rebase.Options{Notify: notify}).q
			require.NoError(t, pgx.BeginFunc(t.Context(), evil, func(tx pgx.Tx) error {
				_, err := q.EnqueueTx(t.Context(), tx, fmt.Sprint("t", notify), nil, options)
				return err
			}))
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = q.EnqueueSQL(t.Context(), tx, fmt.Sprint("s", notify), nil, options)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
		}
		require.Equal(t, 6, tell[int](d, `select count(*) from rebase.jobs where run_at = created_at and max_attempts = 5 and lane = 'l'
			and meta = '{"a": "b"}' and idempotency_key = 'k' and key_hash = substring(sha256('k') for 16)`))
		d.exec(`update rebase.jobs set history = (select jsonb_agg(jsonb_build_object('attempt', i)) from generate_series(1, 20) i)`)
		handlers := map[string]rebase.Handler{}
		for i := range 3 {
			handlers[fmt.Sprint("t", i)] = func(ctx context.Context, job *rebase.Job) error {
				return pgx.BeginFunc(ctx, evil, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
			}
			handlers[fmt.Sprint("s", i)] = func(ctx context.Context, job *rebase.Job) error {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }() // says that it has ended
				if err := job.CompleteSQL(ctx, tx); err != nil {
					return err
				}
				return tx.Commit()
			}
		}
		require.Equal(t, 6, d.drain(handlers))
		require.Equal(t, 6, tell[int](d, `select count(*) from rebase.jobs where status = 'succeeded' and jsonb_array_length(history) = 20
			and history -> 0 ->> 'attempt' = '2' and history -> 19 ->> 'outcome' = 'succeeded'`))
	}
}

// password has what tempts parsers, and hints are the parts of it that must not be seen. Without
// its last part it stands in an address unescaped, as it often does.
const password = `hush/wo:rd#cret@se?x=%zz`

var hints = []string{"hush", "wo:rd", "cret", "@se", "%zz", "%40se"}

// refuses is a server that asks for the password, and refuses whatever it gets.
func refuses(t *testing.T) string {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(conn, conn)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.AuthenticationCleartextPassword{})
				_ = b.Flush()
				_ = b.SetAuthType(pgproto3.AuthTypeCleartextPassword)
				_, _ = b.Receive()
				b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"})
				_ = b.Flush()
			}
			_ = conn.Close()
		}
	}()
	return server.Addr().String()
}

// addresses are of a server that refuses the password, of none, and such as can't be parsed.
func addresses(t *testing.T) map[string]string {
	t.Helper()
	to := refuses(t)
	host, port, err := net.SplitHostPort(to)
	require.NoError(t, err)
	user := url.UserPassword("u", password).String()
	return map[string]string{
		"refused":      "postgres://" + user + "@" + to + "/db?sslmode=disable",
		"key=value":    "host=" + host + " port=" + port + " user=u dbname=db sslmode=disable password='" + password + "'",
		"nobody there": "postgres://" + user + "@127.0.0.1:1/db?sslmode=disable",
		"bad mode":     "postgres://" + user + "@" + to + "/db?sslmode=maybe",
		"not escaped":  "postgres://u:" + strings.TrimSuffix(password, "@se?x=%zz") + "@" + to + "/db",
		"unescaped @":  "postgres://u:hush@cret@" + to + "/db",
		"no scheme":    "u:" + password + "@" + to + "/db",
		"bad port":     "postgres://" + user + "@127.0.0.1:port/db",
		"bad quote":    "host=" + host + " password='" + password,
		"bare":         "host=" + host + " port=x password=" + password,
	}
}

// hush requires that nothing of the password is said.
func hush(t *testing.T, what, text string) {
	t.Helper()
	for _, hint := range hints {
		require.NotContains(t, text, hint, what)
	}
}

// N3, N5: a pool whose password is wrong.
func TestN5AWrongPasswordIsInNoErrorAndNoLog(t *testing.T) {
	t.Parallel()
	all := addresses(t)
	for _, name := range []string{"refused", "key=value", "nobody there"} { // of the others there is no pool
		cfg, err := pgxpool.ParseConfig(all[name])
		require.NoError(t, err, name)
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		r := newRigOn(t, pool)
		ctx := t.Context()
		_, stats := r.q.Stats(ctx)
		_, job := r.q.Job(ctx, 1)
		_, enqueue := r.q.Enqueue(ctx, "t", nil, nil)
		w := r.worker(nil)
		w.Register("t", succeed, nil)
		_, once := w.RunOnce(ctx)
		w = r.worker(nil)
		w.Register("t", succeed, nil)
		s := r.start(w)
		r.until(func() bool { return len(r.log.matching("the database can't be reached")) > 0 }, "it is said: %s", name)
		answer := httptest.NewRecorder()
		w.Health().ServeHTTP(answer, httptest.NewRequest("GET", "/ready", nil))
		ready := w.Ready(ctx)
		for what, err := range map[string]error{"check": r.q.Check(ctx), "migrate": r.q.Migrate(ctx), "stats": stats, "job": job, "enqueue": enqueue, "once": once, "ready": ready} {
			require.Error(t, err, what)
			hush(t, name+" "+what, fmt.Sprintf("%v", err))
		}
		_ = s.stop() // nil or not, what it says is looked at
		hush(t, name+" run", fmt.Sprint(s.err))
		hush(t, name+" health", answer.Body.String())
		hush(t, name+" log", strings.Join(r.log.matching(""), "\n"))
	}
}

// N3: a ListenURL whose password is wrong, or that can't be parsed: the worker polls and says so.
func TestN3ThePasswordOfListenURLIsInNoLog(t *testing.T) {
	t.Parallel()
	for name, address := range addresses(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.handle("t", &rebase.WorkerOptions{ListenURL: address}, succeed)
			r.until(func() bool { return len(r.log.matching("LISTEN does not work")) > 0 }, "it is said")
			require.NoError(t, s.stop())
			hush(t, name, strings.Join(r.log.matching(""), "\n"))
		})
	}
}
