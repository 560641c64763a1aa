package rebase_test

// J18: listing many jobs, page by page: every field of a filter, in every walk; the end, a
// limit and a break; and no connection held while the caller thinks.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// listed returns the ids that the filter selects, in the order of the listing.
func (d *desk) listed(f rebase.Filter) []int64 {
	d.t.Helper()
	ids := []int64{}
	for job, err := range d.q.Jobs(d.t.Context(), f) {
		require.NoError(d.t, err)
		ids = append(ids, job.ID)
	}
	return ids
}

// states makes one job of each status and task, 1 to 10, created and finished at hours past
// the first of January that are their ids.
func (d *desk) states() {
	d.exec(`insert into rebase.jobs (id, task, lane, status, dead, fence, crashes, idempotency_key, key_hash, last_error, meta, created_at, finished_at)
		select (t - 1) * 5 + s, 'task' || t, 'lane' || t, v, v = 'failed', case v when 'running' then s else 0 end, case when v = 'pending' then t - 1 else 0 end,
			'key' || s, substring(sha256(convert_to('key' || s, 'UTF8')) from 1 for 16), 'Error ' || s, jsonb_build_object('n', s::text, 't', t::text),
			'2026-01-01Z'::timestamptz + ((t - 1) * 5 + s) * interval '1 hour',
			case when v not in ('pending', 'running') then '2026-01-01Z'::timestamptz + ((t - 1) * 5 + s) * interval '1 hour' end
		from unnest(array['pending', 'running', 'succeeded', 'failed', 'cancelled']) with ordinality u (v, s), generate_series(1, 2) t`)
}

func hour(n int) time.Time { return time.Date(2026, 1, 1, n, 0, 0, 0, time.UTC) }

// J18: every field, alone and with others.
func TestJ18JobsSelectsByEveryFieldOfAFilter(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.states()
	all := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		f    rebase.Filter
		want []int64
	}{
		{rebase.Filter{}, all},
		{rebase.Filter{Status: rebase.StatusPending}, []int64{1, 6}}, // 6 was reaped once
		{rebase.Filter{Status: rebase.StatusRunning}, []int64{2, 7}},
		{rebase.Filter{Status: rebase.StatusSucceeded}, []int64{3, 8}},
		{rebase.Filter{Status: rebase.StatusFailed}, []int64{4, 9}},
		{rebase.Filter{Status: rebase.StatusCancelled}, []int64{5, 10}},
		{rebase.Filter{Task: "task2"}, all[5:]},
		{rebase.Filter{Lane: "lane1"}, all[:5]},
		{rebase.Filter{IdempotencyKey: "key4"}, []int64{4, 9}},
		{rebase.Filter{ErrorContains: "ror 4"}, []int64{4, 9}},
		{rebase.Filter{ErrorContains: "error 4"}, []int64{}}, // the case counts
		{rebase.Filter{ErrorContains: "%"}, []int64{}},       // nothing is a wildcard
		{rebase.Filter{Meta: map[string]string{"n": "3"}}, []int64{3, 8}},
		{rebase.Filter{Meta: map[string]string{"n": "3", "t": "2"}}, []int64{8}},
		{rebase.Filter{Meta: map[string]string{}}, all},
		{rebase.Filter{CreatedAfter: hour(4), CreatedBefore: hour(7)}, []int64{4, 5, 6}}, // from, until
		{rebase.Filter{FinishedAfter: hour(4), FinishedBefore: hour(9)}, []int64{4, 5, 8}},
		{rebase.Filter{FinishedAfter: hour(9)}, []int64{9, 10}},
		{rebase.Filter{FinishedBefore: hour(5).In(time.FixedZone("", 3600))}, []int64{3, 4}},
		{rebase.Filter{Status: rebase.StatusPending, FinishedAfter: hour(1)}, []int64{}},
		{rebase.Filter{Status: rebase.StatusFailed, Task: "task1", Lane: "lane1", IdempotencyKey: "key4", ErrorContains: "4",
			Meta: map[string]string{"n": "4"}, CreatedAfter: hour(4), CreatedBefore: hour(5), FinishedAfter: hour(4), FinishedBefore: hour(5)}, []int64{4}},
		{rebase.Filter{Limit: 3}, []int64{1, 2, 3}},
		{rebase.Filter{Status: rebase.StatusPending, Limit: 1}, []int64{1}}, // of two walks
		{rebase.Filter{Status: rebase.StatusPending, Limit: 2}, []int64{1, 6}},
		{rebase.Filter{Limit: 100}, all},
	} {
		require.ElementsMatch(t, c.want, d.listed(c.f), "%+v", c.f)
	}
}

// J18: what no filter can mean is an error that names the field and the value.
func TestJ18JobsRefusesWhatNoFilterCanMean(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for text, f := range map[string]rebase.Filter{
		`unknown status "dead"`: {Status: "dead"},
		"Task":                  {Task: "a\x00"},
		"Lane":                  {Lane: "\xff"},
		"IdempotencyKey":        {IdempotencyKey: "\x00"},
		"ErrorContains":         {ErrorContains: "\x00"},
		"Meta":                  {Meta: map[string]string{"a": "\x00"}},
	} {
		n := 0
		for job, err := range d.q.Jobs(t.Context(), f) {
			require.Nil(t, job)
			require.ErrorContains(t, err, text)
			n++
		}
		require.Equal(t, 1, n)
		_, err := d.q.Redrive(t.Context(), f, 0)
		require.Error(t, err)
	}
}

// J18: over a thousand rows, many of them of one instant, each once and in order.
func TestJ18JobsPagesThroughAThousandRows(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task, lane, run_at, crashes, status, dead, finished_at)
		select 't' || i % 3, 'l' || i % 2, '2026-01-01Z'::timestamptz + (i / 500) * interval '1 s', i % 2, v, v = 'failed',
			case when v <> 'pending' then '2026-01-01Z'::timestamptz + (i / 500) * interval '1 s' end
		from generate_series(1, 1100) i, unnest(array['pending', 'failed', 'succeeded']) v`)
	for status, order := range map[rebase.Status]string{
		"":                     `id`,
		rebase.StatusPending:   `crashes <> 0, task, lane, run_at, id`,
		rebase.StatusFailed:    `finished_at, id`,
		rebase.StatusSucceeded: `finished_at, id`,
	} {
		want := list[int64](d, `select id from rebase.jobs where $1 in ('', status) order by `+order, status)
		require.Equal(t, want, d.listed(rebase.Filter{Status: status}), "%q", status)
		require.Equal(t, want[:450], d.listed(rebase.Filter{Status: status, Limit: 450}), "%q", status)
	}
}

// J18: with a pool of one connection the queue can be used inside the loop, and a break
// leaves nothing behind.
func TestJ18JobsHoldsNoConnectionBetweenPages(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	d := deskOn(t, pool, nil)
	d.exec(`insert into rebase.jobs (task) select 't' from generate_series(1, 450)`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := 0
	for job, err := range d.q.Jobs(ctx, rebase.Filter{Status: rebase.StatusPending}) {
		require.NoError(t, err)
		require.NoError(t, d.q.Delete(ctx, job.ID))
		if n++; n == 250 {
			break
		}
	}
	require.Equal(t, 250, n)
	require.Equal(t, 200, d.jobs())
	require.Zero(t, pool.Stat().AcquiredConns())
}

// J18: an error ends the listing, and comes once.
func TestJ18JobsEndsWithTheFirstError(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec(`insert into rebase.jobs (task) select 't' from generate_series(1, 450)`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []error
	for _, err := range d.q.Jobs(ctx, rebase.Filter{}) {
		if all = append(all, err); len(all) == 10 {
			cancel()
		}
	}
	require.Len(t, all, 201, "a page of 200, and the error")
	require.True(t, errors.Is(all[200], context.Canceled), fmt.Sprint(all[200]))
	require.False(t, slices.ContainsFunc(all[:200], func(err error) bool { return err != nil }))
}

// J18: a page is read from an index, in its order, also on a table of which nothing is known yet.
func TestJ18AListingReadsLittleMoreThanItShows(t *testing.T) {
	t.Parallel()
	for _, status := range []rebase.Status{"", rebase.StatusPending, rebase.StatusSucceeded, rebase.StatusFailed} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			d.exec(`alter table rebase.jobs set (autovacuum_enabled = off)`)
			d.exec(`insert into rebase.jobs (task, status, dead, run_at, finished_at)
				select 't' || i % 3, v, v = 'failed', now() - i * interval '1 s', case when v <> 'pending' then now() - i * interval '1 s' end
				from generate_series(1, 10000) i, unnest(array['pending', 'failed', 'succeeded']) v`)
			d.pool.Reset() // a backend that ends reports what it has read
			read := func() int {
				return tell[int](d, `select coalesce(sum(idx_tup_read), 0)::int from pg_stat_user_indexes where schemaname = 'rebase' and relname = 'jobs'`)
			}
			before := read()
			require.Len(t, d.listed(rebase.Filter{Status: status, Limit: 50}), 50)
			d.pool.Reset()
			require.Eventually(t, func() bool { return read()-before >= 50 }, patience, 10*time.Millisecond)
			require.Less(t, read()-before, 500)
		})
	}
}

// J18, J19: a slot whose zone this host doesn't know is shown in UTC, and hides no other job.
func TestJ18AJobOfAnUnknownZoneCanBeLookedAt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var ids []int64
	for range 3 {
		ids = append(ids, d.enqueue("t", nil).ID)
		d.ended(ids[len(ids)-1], rebase.StatusFailed)
	}
	d.exec(`update rebase.jobs set slot = '2026-03-01 12:00Z', slot_zone = 'Europe/Newtown' where id = $1`, ids[1])
	j, err := d.q.Job(t.Context(), ids[1])
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), j.Slot)
	_, err = d.q.Explain(t.Context(), ids[1])
	require.NoError(t, err)
	require.ElementsMatch(t, ids, d.listed(rebase.Filter{}))
	n, err := d.q.Redrive(t.Context(), rebase.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, 3, n)
}
