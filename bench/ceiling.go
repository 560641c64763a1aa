package main

// The ceiling: rebase's own claim and complete statements in a bare loop, on one connection
// each, with no handlers, no leases to renew and no library. What a drain by the library is
// short of this is the price of everything that the library does.
//
// The statements, in statements.go, are copies, because they are nobody's business but the
// library's and so are not exported. The loops are in loops.go.

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

var ceilingSystem = &system{
	name:  "ceiling",
	about: "rebase's claim and complete statements alone, one connection each, -ceiling-batch jobs a claim",
	open: func(ctx context.Context, url string, conns int) (client, error) {
		c, err := openRebase(ctx, url, conns)
		return &ceilingClient{rebaseClient: c}, err
	},
}

// The ceiling without its floor: what a held snapshot does to a claim that starts at the head.
var nofloorsSystem = &system{
	name:  "nofloors",
	about: "the ceiling, but each claim starts at the head of the index",
	open: func(ctx context.Context, url string, conns int) (client, error) {
		c, err := openRebase(ctx, url, conns)
		return &ceilingClient{rebaseClient: c, head: true}, err
	},
}

type ceilingClient struct {
	*rebaseClient
	head bool // always claim from there
	lack lack
}

// work runs both loops until stop; w.slots is the number of jobs in a claim.
func (c *ceilingClient) work(ctx context.Context, w worker, h handler) (func() error, error) {
	var server time.Time
	if err := c.pool.QueryRow(ctx, "select pg_postmaster_start_time()").Scan(&server); err != nil {
		return nil, err
	}
	claim, runAt, result, err := c.statements()
	if err != nil {
		return nil, err
	}
	l := loops{
		head:  c.head,
		claim: claim, runAt: runAt,
		claimArgs: func(token int64, n int, from floor) []any {
			return []any{token, "ceiling", "300 s", false, []string{task}, []string{""}, []int32{int32(n)}, []time.Time{from.at}, []int64{from.id}, int64(n)}
		},
		result: func(b *pgx.Batch, t taken) *pgx.QueuedQuery {
			fences := make([]int64, len(t.ids))
			for i := range fences {
				fences[i] = t.token
			}
			q := b.Queue(result, t.ids, fences, "0 s")
			b.Queue(overSQL, []int64{t.token}, server)
			return q
		},
	}
	return l.work(ctx, c.pool.Config().ConnConfig, w.slots, h)
}
