package cli_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// What the commands that only look cost. PostgreSQL counts what is read, which is the same on
// any machine; REBASE_LONG=1 takes the time on ten million rows.

// looks are the commands that only look, as people use them.
func looks() [][]string {
	return [][]string{
		{"stats"}, {"watch", "--count", "1"}, {"show", "1"}, {"schedules"}, {"list"},
		{"list", "--status", "failed"}, {"list", "--status", "running"}, {"list", "--status", "pending", "--task", "live3"}, {"list", "--status", "succeeded"},
		{"list", "--status", "succeeded", "--finished-after", "10m"}, {"list", "--finished-after", "10m"}, {"list", "--status", "all"},
		{"list", "--status", "failed", "--task", "old0"}, {"redrive", "--dry-run", "--limit", "100"}, {"purge", "--older-than", "365d", "--dry-run"},
		{"__complete", "pause", ""},
	}
}

// history makes finished rows, one in 2,000 a dead letter, and live ones. The newest ended a
// minute ago.
func (d *desk) history(finished, live int) {
	d.exec(`insert into rebase.jobs (task, status, dead, finished_at, run_at, created_at)
		select 'old' || i % 10, case when i % 2000 = 0 then 'failed' else 'succeeded' end, i % 2000 = 0, t, t, t
		from generate_series(1, $1::int) i cross join lateral (select now() - interval '1 minute' - ($1 - i) * interval '100 ms' as t) x`, finished)
	d.exec(`insert into rebase.jobs (task, run_at) select 'live' || i % 20, now() + (i % 200 - 100) * interval '1 s' from generate_series(1, $1::int) i`, live)
}

// readings are rows that were read from rebase.jobs, by scanning it and by index. Sessions
// report when they end, so it waits until all have.
func (d *desk) readings() (scans, rows int) {
	d.t.Helper()
	d.until("no session of a command is left", func() bool {
		var n int
		require.NoError(d.t, d.pool.QueryRow(d.t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'rebase'`).Scan(&n))
		return n == 0
	})
	err := d.pool.QueryRow(d.t.Context(), `select t.seq_scan, coalesce(t.seq_tup_read, 0) + sum(i.idx_tup_read)
		from pg_stat_user_tables t join pg_stat_user_indexes i using (relid)
		where t.relid = 'rebase.jobs'::regclass group by 1, t.seq_tup_read`).Scan(&scans, &rows)
	require.NoError(d.t, err)
	return scans, rows
}

// M1: none reads the table, and none reads more of an index than it shows and counts.
func TestLookingReadsNoHistory(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.history(100_000, 400)
	d.exec(`vacuum analyze rebase.jobs`)
	var dear []string
	for _, args := range looks() {
		scans, rows := d.readings()
		d.ok(args...)
		scansAfter, rowsAfter := d.readings()
		t.Logf("%6d rows  %v", rowsAfter-rows, args)
		limit := 8000 // of 100,000
		if args[0] == "watch" {
			limit += 20_000 // it looks for the newest ids
		}
		if scans != scansAfter || rowsAfter-rows >= limit {
			dear = append(dear, fmt.Sprint(args, " reads ", rowsAfter-rows, " rows, scans ", scansAfter-scans))
		}
	}
	require.Empty(t, dear)
}

// M1: on ten million finished and 100,000 live rows each takes less than a second.
func TestLookingTakesLessThanASecondWithTenMillionRows(t *testing.T) {
	if os.Getenv("REBASE_LONG") == "" {
		t.Skip("takes minutes: set REBASE_LONG=1")
	}
	d := newDesk(t)
	// Indexes that are made afterwards are the same, and cost a tenth of the time.
	d.exec(`drop index rebase.jobs_unfinished, rebase.jobs_reaped, rebase.jobs_key, rebase.jobs_finished_at, rebase.jobs_dead`)
	began := time.Now()
	d.history(10_000_000, 100_000)
	d.exec(`create index jobs_unfinished on rebase.jobs (task, lane, run_at, id) where finished_at is null and crashes = 0`)
	d.exec(`create index jobs_reaped on rebase.jobs (task, lane, run_at, id) where finished_at is null and crashes <> 0`)
	d.exec(`create unique index jobs_key on rebase.jobs (task, key_hash) where finished_at is null and key_hash is not null`)
	d.exec(`create index jobs_finished_at on rebase.jobs (finished_at) where finished_at is not null and not dead`)
	d.exec(`create index jobs_dead on rebase.jobs (finished_at) include (task) where dead`)
	d.exec(`vacuum analyze rebase.jobs`)
	t.Logf("filled in %v", time.Since(began).Round(time.Second))
	require.NoError(t, d.q.SetSchedule(t.Context(), rebase.Schedule{ID: "report", Cron: "@daily", Task: "make-report"}))
	for _, args := range looks() {
		slowest, fastest := time.Duration(0), time.Hour
		for range 3 {
			began := time.Now()
			d.ok(args...)
			took := time.Since(began)
			slowest, fastest = max(slowest, took), min(fastest, took)
		}
		t.Logf("%7.1f ms, slowest of three %7.1f ms  %v", fastest.Seconds()*1000, slowest.Seconds()*1000, args)
		require.Less(t, slowest, time.Second, "%v", args)
	}
}
