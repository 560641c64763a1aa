package rebase_test

// Whatever the options of a job are, an enqueue succeeds or returns a *PayloadError; the
// server never has a reason to refuse it. What succeeded stands in the row as it was given.

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// J3, J21, Q29.
func FuzzEnqueueOptions(f *testing.F) {
	pool := pgtest.New(f)
	q := rebase.New(pool, &rebase.Options{Logger: slog.New(slog.DiscardHandler)})
	f.Add("t", "", "", "", "", int64(0), int64(0), 0, []byte(`{"a": 1}`))
	f.Add("ünï", "l'\\", "k\"", "m", "\\", int64(1), int64(0), 9, []byte(`"\ud83d\ude00"`))
	f.Add("", "\x00", "\xff", "\x00", "\xff", int64(-1), int64(-1), -1, []byte(`"\u0000"`))
	f.Add("a\x7f", "NULL", "NULL", "{", "}", int64(1)<<62, int64(0), 1<<31, []byte(`[1e131071, 1e-16383]`))
	f.Add("a\u0085b", "\u2028", "\ufffd", "\ufffe", "\uffff", int64(0), int64(253402300799), 1<<31-1, []byte(`{"a": 1, "a": 2}`))
	f.Add("t", "l", "", "", "x", int64(0), int64(-62135596800), 1, []byte(`1e200000`))
	f.Fuzz(func(t *testing.T, task, lane, key, metaKey, metaValue string, delay, at int64, attempts int, payload []byte) {
		opts := &rebase.EnqueueOptions{Lane: lane, IdempotencyKey: key, Delay: time.Duration(delay), MaxAttempts: attempts}
		if metaKey+metaValue != "" {
			opts.Meta = map[string]string{metaKey: metaValue}
		}
		if at != 0 {
			opts.RunAt = time.Unix(at, 0)
		}
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
		item := rebase.Item{Task: task, Payload: json.RawMessage(payload), Options: opts}
		one, err := q.EnqueueTx(t.Context(), tx, task, item.Payload, opts)
		if err != nil {
			_, ok := errors.AsType[*rebase.PayloadError](err)
			require.True(t, ok, "%v", err)
			_, err = q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "fine"}, item})
			bad, ok := errors.AsType[*rebase.PayloadError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, 1, bad.Index)
			return
		}
		requireAsGiven(t, tx, one.ID, item)
		opts.IdempotencyKey += "2"
		many, err := q.EnqueueManyTx(t.Context(), tx, []rebase.Item{{Task: "fine"}, item})
		require.NoError(t, err)
		requireAsGiven(t, tx, many[1].ID, item)
		opts.IdempotencyKey = key
	})
}

// requireAsGiven compares the row with the item, apart from the key's last character.
func requireAsGiven(t *testing.T, tx pgx.Tx, id int64, item rebase.Item) {
	t.Helper()
	o := item.Options
	var row struct {
		Task, Lane, Key, Payload, Want string
		Meta                           map[string]string
		Delay                          int64
		RunAt                          time.Time
		Attempts                       int
	}
	err := tx.QueryRow(t.Context(), `select task, lane, coalesce(idempotency_key, ''), payload::text, $2::jsonb::text, meta,
		(extract(epoch from run_at - created_at) * 1000000)::bigint, run_at, max_attempts from rebase.jobs where id = $1`, id, string(item.Payload.(json.RawMessage))).
		Scan(&row.Task, &row.Lane, &row.Key, &row.Payload, &row.Want, &row.Meta, &row.Delay, &row.RunAt, &row.Attempts)
	require.NoError(t, err)
	require.Equal(t, row.Want, row.Payload)
	require.Equal(t, fmt.Sprint(item.Task, o.Lane, o.IdempotencyKey, o.Meta), fmt.Sprint(row.Task, row.Lane, row.Key, row.Meta))
	require.Equal(t, map[bool]int{true: 3, false: o.MaxAttempts}[o.MaxAttempts == 0], row.Attempts)
	if o.RunAt.IsZero() {
		require.Equal(t, o.Delay.Microseconds(), row.Delay)
	} else {
		require.True(t, o.RunAt.Equal(row.RunAt), "%v became %v", o.RunAt, row.RunAt)
	}
}
