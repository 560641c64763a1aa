package rebase_test

// M1: what holds the horizon from outside the database's sessions: a prepared transaction,
// and a standby through its replication slot. Slots are the whole server's, so this server
// is the test's own.

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

func TestM1StatsNamesPreparedTransactionsAndReplicationSlots(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Config{Settings: map[string]string{"max_prepared_transactions": "2", "wal_level": "logical", "autovacuum": "off"}})
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	d := deskOn(t, pool, nil)
	require.NoError(t, d.q.Migrate(t.Context()))
	require.Nil(t, d.stats().Horizon)

	// The catalog's horizon of a logical slot keeps no dead row of a queue.
	d.exec(`select pg_create_logical_replication_slot('decoder', 'pgoutput')`)
	d.enqueue("t", nil)
	require.Nil(t, d.stats().Horizon)

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Conn().PgConn().Exec(t.Context(), `begin; create table two_phase (); prepare transaction 'left behind'`).ReadAll()
	require.NoError(t, err)
	conn.Release()
	d.enqueue("t", nil)
	h := d.stats().Horizon
	require.NotNil(t, h)
	require.Equal(t, []any{"prepared transaction", "left behind", 0}, []any{h.Kind, h.Holder, h.PID})
	require.WithinDuration(t, time.Now(), h.Since, time.Minute)
	require.Positive(t, h.XIDs)
	d.exec(`rollback prepared 'left behind'`)
	require.Nil(t, d.stats().Horizon)

	xmin := tell[int64](d, `select (pg_current_xact_id()::text)::bigint`)
	standby(t, d, server.URL("postgres"), uint32(xmin))
	d.enqueue("t", nil)
	require.Eventually(t, func() bool { return d.stats().Horizon != nil }, patience, 20*time.Millisecond)
	h = d.stats().Horizon
	require.Equal(t, []any{"replication slot", "standby"}, []any{h.Kind, h.Holder})
	require.True(t, h.Since.IsZero(), "a slot doesn't tell since when")
}

// standby says what a standby with hot_standby_feedback does: that it needs xmin.
func standby(t *testing.T, d *desk, url string, xmin uint32) {
	t.Helper()
	d.exec(`select pg_create_physical_replication_slot('standby', true)`)
	lsn := tell[string](d, `select pg_current_wal_lsn()::text`)
	cfg, err := pgconn.ParseConfig(url)
	require.NoError(t, err)
	cfg.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	conn.Frontend().Send(&pgproto3.Query{String: "START_REPLICATION SLOT standby PHYSICAL " + lsn})
	require.NoError(t, conn.Frontend().Flush())
	for {
		message, err := conn.ReceiveMessage(t.Context())
		require.NoError(t, err)
		if _, ok := message.(*pgproto3.CopyBothResponse); ok {
			break
		}
	}
	feedback := binary.BigEndian.AppendUint64([]byte{'h'}, 0)
	for _, v := range []uint32{xmin, 0, 0, 0} { // xmin and its epoch, and those of the catalog
		feedback = binary.BigEndian.AppendUint32(feedback, v)
	}
	conn.Frontend().Send(&pgproto3.CopyData{Data: feedback})
	require.NoError(t, conn.Frontend().Flush())
	t.Cleanup(func() { _ = conn.Conn().Close() }) // the server learns of it by itself
}
