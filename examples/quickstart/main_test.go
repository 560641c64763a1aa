// The quickstart is run as it is, on a database of the test's own, twice: it must be
// repeatable where its tables and jobs are already. What it printed is compared with what
// the table says.
package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// J2, J7: a job exists exactly if its transaction committed; a bounce is final, a busy
// server is asked again.
func TestQuickstartDeliversBouncesAndRetries(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	people, err := readSignups(strings.NewReader(ourSignups))
	require.NoError(t, err)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		var out bytes.Buffer
		require.NoError(t, run(ctx, pgtest.URL(t, pool), people, &out, pgtest.Logger(t)))
		t.Log(out.String())
		require.Contains(t, out.String(), "Nguyễn, Văn An did not accept the terms: rolled back")
		require.Contains(t, out.String(), "Mails in the mailbox: 4.")
		require.Equal(t, 2, strings.Count(out.String(), `451 "4.3.0 busy, please come back": again later`))
		require.Equal(t, 1, strings.Count(out.String(), `550 "5.1.1 nobody of that name here": for good`))
	}

	var jobs string
	require.NoError(t, pool.QueryRow(t.Context(), `
		select string_agg(distinct concat_ws(' ', payload->>'email', status, attempts, jsonb_array_length(history)), ', ')
		from rebase.jobs`).Scan(&jobs))
	require.Equal(t, "ada@example.org succeeded 1, bob@gone.example failed 1 1, grete@busy.example succeeded 3 3, "+
		"lee@example.org succeeded 1, zoe@example.org succeeded 1", jobs)
	var users, mails int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from rebase_quickstart.users`).Scan(&users))
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from rebase.jobs`).Scan(&mails))
	require.Equal(t, []int{10, 10}, []int{users, mails}, "a user for each job, and a job for each user")
}

// Nothing in the input is passed over in silence.
func TestSignupsThatCantBeReadAreNamed(t *testing.T) {
	t.Parallel()
	for input, reason := range map[string]string{
		"email,name\n":                         `sign-ups: the first line is "email,name", not "name,email,terms"`,
		"name,email,terms\nA,a@b.example,ja\n": `sign-ups: record 1: terms is "ja", neither yes nor no`,
		"name,email,terms\nA,a@b.example\n":    "sign-ups: record on line 2: wrong number of fields",
	} {
		_, err := readSignups(strings.NewReader(input))
		require.EqualError(t, err, reason)
	}
}
