package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/cmd/rebase/internal/cli"
)

// The commands that change many rows at once: redrive and purge.

// J18: by filter and limit, the oldest first, over several windows.
func TestRedriveTakesWhatTheFilterSelects(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(2500, "mail", rebase.StatusFailed, time.Hour)
	d.ended(3, "sms", rebase.StatusFailed, time.Hour)
	d.ended(3, "mail", rebase.StatusSucceeded, time.Hour)
	require.Equal(t, "would redrive 2,503 dead letters (mail 2,500, sms 3)\n", d.ok("redrive", "--dry-run"))
	require.Contains(t, d.fails(5, "redrive", "--task", "sms"), "This will redrive 3 dead letters (sms 3).")
	require.Equal(t, 2503, d.count("dead"))
	require.Equal(t, "redriven 2 of 2 dead letters\n", d.ok("redrive", "--limit", "2", "--task", "mail", "--yes"))
	require.Equal(t, 2, d.count("status = 'pending' and task = 'mail'"))
	require.JSONEq(t, `{"matched": 2498, "redriven": 2498, "dry_run": false}`, d.ok("redrive", "--task", "mail", "--yes", "--json"))
	require.Equal(t, 2500, d.count("status = 'pending' and task = 'mail'"))
	require.Equal(t, 3, d.count("dead and task = 'sms'"))
	require.Equal(t, 3, d.count("status = 'succeeded'"))
	require.Equal(t, "redriven 0 of 0 dead letters\n", d.ok("redrive", "--task", "mail"), "nothing to do needs no confirmation")
}

// Many that ended at one instant are one window; limits end within it.
func TestRedriveCountsItsLimitAlsoWhenAllEndedAtOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, status, dead, finished_at) select 't', 'failed', true, now() - interval '1 hour' from generate_series(1, 1500)`)
	require.Equal(t, "redriven 1,200 of 1,200 dead letters\n", d.ok("redrive", "--limit", "1200", "--yes"))
	require.Equal(t, 300, d.count("dead"))
	d.exec(`delete from rebase.jobs`)
	d.ended(1500, "t", rebase.StatusFailed, time.Hour)
	require.Equal(t, "redriven 1,200 of 1,200 dead letters\n", d.ok("redrive", "--limit", "1200", "--yes"), "also over two windows")
	require.Equal(t, 300, d.count("dead"))
}

// A job whose key is taken stays, and doesn't use up the limit.
func TestRedrivePassesByWhatItCantHave(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	key := &rebase.EnqueueOptions{IdempotencyKey: "k"}
	d.end(d.enqueue("t", key), rebase.StatusFailed, 2*time.Hour, "boom")
	d.enqueue("t", key)
	d.end(d.enqueue("t", nil), rebase.StatusFailed, time.Hour, "boom")
	require.Equal(t, "redriven 1 of 1 dead letter\n", d.ok("redrive", "--limit", "1", "--yes"))
	require.Equal(t, rebase.StatusFailed, d.job(1).Status)
	require.Equal(t, rebase.StatusPending, d.job(3).Status)
}

// What fails again while the command goes on is left for another one: it would never end.
func TestRedriveTakesEachDeadLetterOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(1, "t", rebase.StatusFailed, -time.Hour) // it ends after the command has begun
	require.Equal(t, "redriven 0 of 0 dead letters\n", d.ok("redrive", "--yes", "--finished-before", "2100-01-01"))
	require.Equal(t, 1, d.count("dead"))
}

// J17: finished rows that are old enough, by their statuses, never unfinished ones.
func TestPurgeDeletesWhatEndedLongAgo(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(2100, "t", rebase.StatusSucceeded, 10*24*time.Hour)
	d.ended(5, "t", rebase.StatusCancelled, 10*24*time.Hour)
	d.ended(7, "t", rebase.StatusFailed, 10*24*time.Hour)
	d.ended(11, "t", rebase.StatusSucceeded, time.Hour)
	pending := d.enqueue("t", nil)
	d.exec(`update rebase.jobs set created_at = now() - interval '1 year', run_at = now() - interval '1 year' where id = $1`, pending)
	require.Regexp(t, `^would delete 2,105 jobs \(succeeded 2,100, cancelled 5\) that ended before 20`, d.ok("purge", "--older-than", "7d", "--dry-run"))
	require.Contains(t, d.fails(5, "purge", "--older-than", "7d"), "pass --yes")
	require.Equal(t, 2124, d.count("true"))
	require.Equal(t, "deleted 5 jobs\n", d.ok("purge", "--older-than", "7d", "--status", "cancelled", "--yes"))
	require.Equal(t, 2119, d.count("true"))
	require.Equal(t, "deleted 2,100 jobs\n", d.ok("purge", "--older-than", "7d", "--yes"))
	require.Equal(t, 19, d.count("true"))
	require.JSONEq(t, `{"matched": 7, "at_least": false, "deleted": 7, "dry_run": false}`, d.ok("purge", "--older-than", "1w", "--status", "failed", "--yes", "--json"))
	require.Equal(t, 11, d.count("status = 'succeeded'"))
	require.Equal(t, rebase.StatusPending, d.job(pending).Status)
}

// A row that somebody holds, to retry it perhaps, is passed by and not waited for.
func TestPurgePassesByLockedRows(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(3, "t", rebase.StatusFailed, 48*time.Hour)
	tx, err := d.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from rebase.jobs where id = 2 for update`)
	require.NoError(t, err)
	require.Equal(t, "deleted 2 jobs\n", d.ok("purge", "--older-than", "1d", "--status", "failed", "--yes"))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 1, d.count("id = 2"))
}

func TestPurgeRefusesWhatItMustNotDelete(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	require.Contains(t, d.fails(2, "purge"), "--older-than")
	require.Contains(t, d.fails(2, "purge", "--older-than", "-1h"), "want a duration")
	require.Contains(t, d.fails(2, "purge", "--older-than", "1h", "--status", "pending"), `--status "pending": want succeeded, cancelled or failed`)
}

// A notebook keeps what is written, and tells when.
type notebook struct {
	mu    sync.Mutex
	text  bytes.Buffer // guarded by mu
	wrote func(text string)
}

func (n *notebook) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.Write(p)
	if n.wrote != nil {
		n.wrote(n.text.String())
	}
	return len(p), nil
}

// The bar is drawn on a terminal and taken away; an interrupt keeps what was done.
func TestPurgeShowsABarAndCanBeInterrupted(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.terminal = true
	d.ended(20_000, "t", rebase.StatusSucceeded, 48*time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	errs := &notebook{wrote: func(text string) {
		if strings.Contains(text, "1,000 deleted") {
			cancel()
		}
	}}
	code := cli.Run(ctx, []string{"purge", "--older-than", "1d", "--yes"}, d.streams(&out, errs))
	require.Equal(t, 130, code)
	require.Regexp(t, `^\r\[ +\] +\d+ %  1,000 deleted\x1b\[K`, errs.text.String())
	require.True(t, strings.HasSuffix(errs.text.String(), "\r\x1b[Krebase: interrupted\n"), "%q", errs.text.String())
	left := d.count("true")
	require.Positive(t, left)
	require.Less(t, left, 20_000)
	require.Equal(t, fmt.Sprintf("deleted %s jobs\n", group(20_000-left)), out.String())
}

func group(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }

func TestRedriveShowsABar(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.terminal = true
	d.ended(1500, "t", rebase.StatusFailed, 48*time.Hour)
	r := d.run("redrive", "--yes")
	require.Zero(t, r.code)
	require.Regexp(t, `^\r\[=+ +\] +67 %  1,000 of 1,500 redriven\x1b\[K.*\r\x1b\[K$`, r.err)
}
