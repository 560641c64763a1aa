package rebase_test

// Enqueueing on the pool is an insert, which commits, and a look for the jobs of the duplicates.

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
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
