package rebase_test

// A role or a database may set client_encoding. What is enqueued runs on the user's session, so
// Check refuses it; what rebase does by itself doesn't depend on it.

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// J25: a session whose texts would be garbled is refused at start.
func TestJ25CheckRefusesASessionWithAnotherEncoding(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		latin := deskOn(t, withSettings(t, d.pool, map[string]string{"client_encoding": encoding}), nil)
		require.Contains(t, d.requireSchemaError(latin.q.Check(t.Context())).Reason, "client_encoding is "+encoding)
		w := rebase.NewWorker(latin.q, nil)
		w.Register("t", succeed, nil)
		d.requireSchemaError(w.Run(t.Context()))
	}
	for _, alias := range []string{"utf-8", "UNICODE"} {
		require.NoError(t, deskOn(t, withSettings(t, d.pool, map[string]string{"client_encoding": alias}), nil).q.Check(t.Context()))
	}
}

// J1, J18: claims, results and what operators call read and write every character, whatever the
// session's encoding became since the start.
func TestJ18WorkersAndOperatorsDoNotDependOnTheSessionsEncoding(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const text = "5 € für Ждан"
	first, err := r.q.Enqueue(t.Context(), "t", text, &rebase.EnqueueOptions{Meta: map[string]string{text: text}})
	require.NoError(t, err)
	r.enqueue("t", nil)
	latin := newRigOn(t, withSettings(t, r.pool, map[string]string{"client_encoding": "LATIN1"}))
	s := newStepper(t, latin.pool, nil, "t")
	for round := range 2 { // the first describes the statements, the second is one batch
		holds, err := s.Claim("t", 10, false, false)
		require.NoError(t, err)
		require.Len(t, holds, 2-round)
		for _, h := range holds {
			s.Begin(h)
			s.Finish(h, rebase.Permanent(errors.New(text)))
		}
		require.NoError(t, s.Record())
		require.Equal(t, 2, r.count("last_error = $1", text))
		require.NoError(t, latin.q.Retry(t.Context(), first.ID))
	}
	job, err := latin.q.Job(t.Context(), first.ID)
	require.NoError(t, err)
	require.Equal(t, []any{`"` + text + `"`, text, text}, []any{string(job.Payload), job.Meta[text], job.LastError})
	require.NoError(t, latin.q.Cancel(t.Context(), first.ID, text+"!"))
	require.Equal(t, 1, r.count("last_error = $1", text+"!"))
}

// J25: AfterConnect may set it.
func TestJ25AnEncodingThatAfterConnectSetsIsTheSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := r.pool.Config()
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1"
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "set client_encoding to 'UTF8'")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	mended := newRigOn(t, pool)
	require.NoError(t, mended.q.Check(t.Context()))
	mended.enqueue("x", nil)
	require.Equal(t, 1, mended.once("x", nil, succeed))
}
