package rebase_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rebasejobs/rebase"
	"github.com/stretchr/testify/require"
)

// A slowConn reads so many bytes a second.
type slowConn struct {
	net.Conn
	perSecond int
}

func (c *slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 16<<10)])
	pause(time.Duration(n) * time.Second / time.Duration(c.perSecond))
	return n, err
}

// N5: payloads that are too many for the time that a claim has are claimed fewer at a time, instead
// of the same number for ever.
func TestN5ClaimsThatTakeTooLongGetSmaller(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into rebase.jobs (task, payload) select 'x', to_jsonb(repeat('x', 60000)) from generate_series(1, 50)`)
	far, _ := r.behindWith(func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &slowConn{conn, 1_000_000}, nil
		}
	})
	s := far.handle("x", &rebase.WorkerOptions{Concurrency: 50, VisibilityTimeout: 3 * time.Second}, succeed) // a second for a claim, and three are needed
	r.until(func() bool { return r.count("status = 'succeeded'") == 50 }, "all have run")
	require.NoError(t, s.stop())
	require.Zero(t, r.count("attempts <> 1"))
}

// N5: the same where it is the server that ends them, by statement_timeout.
func TestN5ClaimsThatTheServerEndsGetSmaller(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueMany("x", 100, nil)
	r.exec(`create function slow() returns trigger language plpgsql as $$ begin perform pg_catalog.pg_sleep(0.015); return new; end $$`)
	r.exec(`create trigger slow before update on rebase.jobs for each row when (old.status = 'pending') execute function slow()`)
	s := r.handle("x", &rebase.WorkerOptions{Concurrency: 100, VisibilityTimeout: 3 * time.Second}, succeed) // 0.75 s for a claim, and 1.5 are needed
	r.until(func() bool { return r.count("status = 'succeeded'") == 100 }, "all have run")
	require.NoError(t, s.stop())
}

// N2: a worker with one slot asks for a job that was once reaped and for another in one look, so that
// it needs no more round trips than one with ten.
func TestN2OneSlotNeedsNoSecondLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for slots, room := range map[int]int{1: 2, 2: 2} {
		w := r.worker(&rebase.WorkerOptions{Concurrency: slots})
		w.Register("x", succeed, nil)
		require.Equal(t, room, rebase.NewOutages(w).Room(time.Hour, false))
	}
}

// J20: the look that asks for a job that was once reaped brings nothing that would wait beside it.
func TestJ20NothingIsClaimedAheadBesideAReapedJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.worker(&rebase.WorkerOptions{Concurrency: 5})
	w.Register("x", succeed, nil)
	o := rebase.NewOutages(w)
	require.Equal(t, 5, o.Room(time.Millisecond, false), "an idle look asks for it")
	require.Greater(t, o.Room(time.Millisecond, true), 5)
}
