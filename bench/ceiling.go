package main

// The ceiling: rebase's own claim and complete statements in a bare loop, on one connection
// each, with no handlers, no leases to renew and no library. What a drain by the library is
// short of this is the price of everything that the library does.
//
// The statements, in statements.go, are copies, because they are nobody's business but the
// library's and so are not exported.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
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
}

// A taken batch is on its way from the claims to the results.
type taken struct {
	token int64
	ids   []int64
}

// A floor is the last job claimed: what lies before it in the index is dead, and reading it
// again with every claim is what the library avoids too.
type floor struct {
	at time.Time
	id int64
}

// work runs both loops until stop; w.slots is the number of jobs in a claim.
func (c *ceilingClient) work(ctx context.Context, w worker, h handler) (func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	claims, err := pgx.ConnectConfig(ctx, c.pool.Config().ConnConfig)
	if err != nil {
		cancel()
		return nil, err
	}
	results, err := pgx.ConnectConfig(ctx, c.pool.Config().ConnConfig)
	if err != nil {
		cancel()
		return nil, errors.Join(err, claims.Close(context.Background()))
	}
	way := make(chan taken, 1)
	ended := make(chan error, 2)
	go func() {
		defer close(way)
		ended <- c.claimLoop(ctx, claims, w.slots, way)
	}()
	go func() { ended <- completeLoop(results, way, h) }()
	return func() error {
		cancel()
		return errors.Join(<-ended, <-ended, claims.Close(context.Background()), results.Close(context.Background()))
	}, nil
}

// claimLoop claims until ctx ends.
func (c *ceilingClient) claimLoop(ctx context.Context, conn *pgx.Conn, n int, way chan<- taken) error {
	from := floor{}
	for ctx.Err() == nil {
		// Not ctx: a claim that is cut off would leave the connection useless.
		t, last, err := claimOnce(context.Background(), conn, n, from)
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if !c.head {
			from = last
		}
		if len(t.ids) == 0 {
			time.Sleep(time.Millisecond) // drained: the end is near
			continue
		}
		select {
		case way <- t:
		case <-ctx.Done():
		}
	}
	return nil
}

// claimOnce is one round as the library sends it: a pipelined transaction.
func claimOnce(ctx context.Context, conn *pgx.Conn, n int, from floor) (t taken, last floor, err error) {
	t.token, last = rand.Int64N(1<<63-1)+1, from
	if from.at.IsZero() {
		from.at = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	t.ids = make([]int64, 0, n)
	b := round()
	b.Queue(claimSQL, t.token, "ceiling", "300 s", false,
		[]string{task}, []string{""}, []int32{int32(n)}, []time.Time{from.at}, []int64{from.id}, int64(n)).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				raw := rows.RawValues()
				id, at := int64(binary.BigEndian.Uint64(raw[0])), microTime(raw[7])
				t.ids = append(t.ids, id)
				if at.After(last.at) || at.Equal(last.at) && id > last.id {
					last = floor{at, id}
				}
			}
			return rows.Err()
		})
	b.Queue(commitSQL)
	return t, last, conn.SendBatch(ctx, b).Close()
}

// completeLoop writes the results of all batches that come.
func completeLoop(conn *pgx.Conn, way <-chan taken, h handler) error {
	var server time.Time
	if err := conn.QueryRow(context.Background(), "select pg_postmaster_start_time()").Scan(&server); err != nil {
		return err
	}
	for t := range way {
		fences := make([]int64, len(t.ids))
		for i := range fences {
			fences[i] = t.token
		}
		b := round()
		written := 0
		b.Queue(succeedSQL, t.ids, fences, "0 s").Query(func(rows pgx.Rows) error {
			for rows.Next() {
				written++
			}
			return rows.Err()
		})
		b.Queue(overSQL, []int64{t.token}, server)
		b.Queue(commitSQL)
		if err := conn.SendBatch(context.Background(), b).Close(); err != nil {
			return fmt.Errorf("complete: %w", err)
		}
		if written != len(t.ids) {
			return fmt.Errorf("complete: %d of %d results were written", written, len(t.ids))
		}
		for range t.ids {
			h(0) // only counts
		}
	}
	return nil
}

func round() *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(beginSQL)
	b.Queue(settingsSQL, "30000")
	return b
}

// microTime reads PostgreSQL's binary timestamp: microseconds since 2000.
func microTime(raw []byte) time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(raw)) + 946_684_800_000_000).UTC()
}
