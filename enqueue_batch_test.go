package rebase_test

// Batches: what is committed and what is reported, in which order they go in, how large they may be.

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// endsAt ends a context when a statement is about to be sent.
type endsAt struct {
	sql string
	end context.CancelFunc
}

func (e *endsAt) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL == e.sql {
		e.end()
	}
	return ctx
}

func (e *endsAt) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// J1, J4: jobs that are in the table are no error: whoever enqueued them again would have those
// without a key twice. Only the duplicate's id is missing.
func TestJ4JobsThatAreCommittedAreNotReportedAsAnError(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.enqueue("t", keyed("k"))
	for _, items := range [][]rebase.Item{{{Task: "t", Options: keyed("k")}, {Task: "t"}}, {{Task: "t", Options: keyed("k")}}} {
		ctx, cancel := context.WithCancel(t.Context())
		mine := d.another(func(cfg *pgxpool.Config) {
			cfg.ConnConfig.Tracer = &endsAt{rebase.WorkerStatements["findDuplicatesSQL"], cancel}
		})
		before := d.jobs()
		done, err := mine.q.EnqueueMany(ctx, items)
		require.NoError(t, err)
		require.Error(t, ctx.Err(), "the look was cut off")
		require.Equal(t, rebase.Enqueued{Duplicate: true}, done[0])
		require.Equal(t, len(items)-1, d.jobs()-before)
		for _, made := range done[1:] {
			require.False(t, made.Duplicate)
			require.Equal(t, rebase.StatusPending, d.status(made.ID))
		}
	}
}

// Q27: batches from Go and from SQL put their keys in in one order, so that they can't deadlock, under
// a collation that compares digits as numbers too.
func TestQ27BatchesFromGoAndSQLGoInInTheSameOrder(t *testing.T) {
	t.Parallel()
	d := deskOn(t, pgtest.Empty(t), nil)
	name := tell[string](d, `select current_database() || '_kn'`)
	_, err := d.pool.Exec(t.Context(), `create database `+name+` template template0 locale_provider icu icu_locale 'en-u-kn-true' encoding 'UTF8'`)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "0A000" && os.Getenv("REBASE_TEST_REQUIRE_ALL") == "" {
		t.Skip("the server was built without ICU: ", err)
	}
	require.NoError(t, err)
	numeric := d.another(func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = name })
	t.Cleanup(func() {
		numeric.pool.Close()
		_, err := d.pool.Exec(context.Background(), `drop database `+name+` with (force)`)
		require.NoError(t, err)
	})
	require.NoError(t, numeric.q.Migrate(t.Context()))
	var items []rebase.Item
	for i := range 200 {
		items = append(items, rebase.Item{Task: fmt.Sprint("t", i%12), Options: keyed(fmt.Sprint("key", i))})
	}
	order := func() []string {
		all := list[string](numeric, `select task || ' ' || idempotency_key from rebase.jobs order by ctid`)
		require.Len(t, all, len(items))
		numeric.exec(`truncate rebase.jobs`)
		return all
	}
	_, err = numeric.q.EnqueueMany(t.Context(), items)
	require.NoError(t, err)
	fromGo := order()
	numeric.exec(`select rebase.enqueue_many(jsonb_agg(jsonb_build_object('task', 't' || i % 12, 'idempotency_key', 'key' || i))) from generate_series(0, 199) i`)
	require.Equal(t, fromGo, order())
}

// J24: a batch that the server would not take as one message is refused before any SQL: the server
// would close the connection, and the caller's transaction with it.
func TestJ24ABatchThatIsTooLargeLeavesTheTransactionAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.q.LimitBatch(1 << 20)
	payload := json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
	items := make([]rebase.Item, 11)
	for i := range items {
		items[i] = rebase.Item{Task: "t", Payload: payload}
	}
	tx := d.begin(pgx.TxOptions{})
	_, err := d.q.EnqueueManyTx(t.Context(), tx, items)
	refused, ok := errors.AsType[*rebase.PayloadError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, []any{10, "payload"}, []any{refused.Index, refused.Field})
	_, err = d.q.EnqueueManyTx(t.Context(), tx, items[:10])
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 10, d.jobs())
}

// noted is a transaction that notes the arguments of its one statement.
type noted struct{ args []any }

func (n *noted) QueryContext(_ context.Context, _ string, args ...any) (*sql.Rows, error) {
	n.args = args
	return nil, errBoom
}

// J3: a driver of database/sql may send a time as text, whose nanoseconds the server rounds, at the
// bound to a year that is none. pgx cuts them off; so does the queue.
func TestJ3ARunTimeIsSentInMicroseconds(t *testing.T) {
	t.Parallel()
	tx := new(noted)
	_, err := newDesk(t).q.EnqueueSQL(t.Context(), tx, "t", nil, &rebase.EnqueueOptions{RunAt: time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)})
	require.ErrorIs(t, err, errBoom)
	require.Contains(t, tx.args, new(time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)))
}
