package main

// A claimer and a recorder in two bare loops, on a connection each: what the ceiling and the bare
// prototype have in common.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

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

// Loops are what is sent in them. Each statement goes in a round as the library sends it: a
// pipelined transaction with the settings of a worker.
type loops struct {
	head bool // always claim from there

	claim     string // its first column is the id
	claimArgs func(token int64, n int, from floor) []any
	runAt     int // the column of run_at

	// result queues what records a batch; the query that it returns has a row for each job.
	result func(b *pgx.Batch, t taken) *pgx.QueuedQuery
}

// work runs both loops until stop; n is the number of jobs in a claim.
func (l *loops) work(ctx context.Context, config *pgx.ConnConfig, n int, h handler) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	claims, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		cancel()
		return nil, err
	}
	results, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		cancel()
		return nil, errors.Join(err, claims.Close(context.Background()))
	}
	way := make(chan taken, 1)
	ended := make(chan error, 2)
	go func() {
		defer close(way)
		ended <- l.claimLoop(ctx, claims, n, way)
	}()
	go func() { ended <- l.resultLoop(results, way, h) }()
	return func() error {
		cancel()
		return errors.Join(<-ended, <-ended, claims.Close(context.Background()), results.Close(context.Background()))
	}, nil
}

// claimLoop claims until ctx ends.
func (l *loops) claimLoop(ctx context.Context, conn *pgx.Conn, n int, way chan<- taken) error {
	from := floor{}
	for ctx.Err() == nil {
		// Not ctx: a claim that is cut off would leave the connection useless.
		t, last, err := l.claimOnce(context.Background(), conn, n, from)
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if !l.head {
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

func (l *loops) claimOnce(ctx context.Context, conn *pgx.Conn, n int, from floor) (t taken, last floor, err error) {
	t.token, last = rand.Int64N(1<<63-1)+1, from
	if from.at.IsZero() {
		from.at = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	t.ids = make([]int64, 0, n)
	b := round()
	b.Queue(l.claim, l.claimArgs(t.token, n, from)...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			raw := rows.RawValues()
			id, at := int64(binary.BigEndian.Uint64(raw[0])), microTime(raw[l.runAt])
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

// resultLoop writes the results of all batches that come.
func (l *loops) resultLoop(conn *pgx.Conn, way <-chan taken, h handler) error {
	for t := range way {
		b := round()
		written := 0
		l.result(b, t).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				written++
			}
			return rows.Err()
		})
		b.Queue(commitSQL)
		if err := conn.SendBatch(context.Background(), b).Close(); err != nil {
			return fmt.Errorf("result: %w", err)
		}
		if written != len(t.ids) {
			return fmt.Errorf("result: %d of %d were written", written, len(t.ids))
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
