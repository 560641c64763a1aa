package rebase_test

// What the tests of waking up share. A sleeping worker with a live LISTEN looks again
// after 30 s at the latest; so a job that starts within soon was started by a wake-up and
// not by a look. Other processes are played by queues of their own: a worker of another
// queue knows nothing of what this one enqueues, except through the database.

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// soon is far below the next look of a sleeper and far above what a slow machine needs.
const soon = 8 * time.Second

// long says whether the long tests are asked for.
func long() bool { return os.Getenv("REBASE_LONG") != "" }

// rounds is how often a random test is repeated.
func rounds(ordinarily, whenLong int) int {
	if long() {
		return whenLong
	}
	return ordinarily
}

// elsewhere is a queue in another process.
func (r *rig) elsewhere(mode rebase.NotifyMode) *rebase.Queue {
	return rebase.New(r.pool, &rebase.Options{Logger: slog.New(r.log), Notify: mode})
}

// A sleeper is a running worker that tells which jobs it has begun.
type sleeper struct {
	*rebase.Worker
	*running
	r     *rig
	began chan int64
}

// sleeper starts a worker of the tasks and waits until it is asleep.
func (r *rig) sleeper(opts *rebase.WorkerOptions, tasks ...string) *sleeper {
	r.t.Helper()
	s := r.drowsy(opts, tasks...)
	s.sleeps()
	return s
}

// drowsy is sleeper without the wait.
func (r *rig) drowsy(opts *rebase.WorkerOptions, tasks ...string) *sleeper {
	s := &sleeper{Worker: r.worker(opts), r: r, began: make(chan int64, 10_000)}
	for _, task := range tasks {
		s.Register(task, func(_ context.Context, job *rebase.Job) error {
			s.began <- job.ID
			return nil
		}, nil)
	}
	s.running = r.start(s.Worker)
	return s
}

func (s *sleeper) sleeps() {
	s.r.t.Helper()
	s.r.until(s.Asleep, "the worker is asleep")
}

// starts waits until the worker begins the job and requires that it was soon.
func (s *sleeper) starts(id int64) {
	s.r.t.Helper()
	s.startsWithin(id, soon)
}

func (s *sleeper) startsWithin(id int64, d time.Duration) {
	s.r.t.Helper()
	asked := time.Now()
	require.Equal(s.r.t, id, await(s.r.t, s.began))
	require.Less(s.r.t, time.Since(asked), d, "found by a look, not by a wake-up")
}

// locks counts the buckets that sleepers hold in this database.
func (r *rig) locks() int {
	r.t.Helper()
	return ask[int](r, `select count(*)::int from pg_locks l join pg_database d on d.oid = l.database
		where d.datname = current_database() and l.locktype = 'advisory' and l.classid = 7236 and l.granted and l.mode = 'ShareLock'`)
}

// An ear is a connection that hears what is notified.
type ear struct {
	r    *rig
	conn *pgx.Conn
	mark int
}

func (r *rig) ear() *ear {
	r.t.Helper()
	conn, err := pgx.ConnectConfig(r.t.Context(), r.pool.Config().ConnConfig)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test is over
	_, err = conn.Exec(r.t.Context(), `listen rebase_jobs`)
	require.NoError(r.t, err)
	return &ear{r: r, conn: conn}
}

// heard returns the wake-ups that were committed since the last call. Notifications
// come in the order of their commits, so a marker of one's own ends the list.
func (e *ear) heard() (wakes []string) {
	e.r.t.Helper()
	e.mark++
	mark := "mark:" + string(rune('a'+e.mark%26))
	e.r.exec(`select pg_notify('rebase_jobs', $1)`, mark)
	ctx, cancel := context.WithTimeout(e.r.t.Context(), patience)
	defer cancel()
	for {
		n, err := e.conn.WaitForNotification(ctx)
		require.NoError(e.r.t, err)
		if n.Payload == mark {
			return wakes
		}
		if n.Payload[:2] == "t:" {
			wakes = append(wakes, n.Payload[2:])
		}
	}
}
