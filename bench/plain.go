package main

// What an enqueue is measured against: a bare INSERT into rebase's own table, and the same with
// a pg_notify in its transaction, which is how queues commonly wake their workers. Neither has
// workers; "one asleep" is for pg_notify a connection that listens and reads.

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

var plainInsert = &system{
	name:  "insert",
	about: "INSERT into rebase.jobs, nothing else",
	open:  openPlain(`insert into rebase.jobs (task, payload) values ($1, jsonb_build_object('sent', $2::bigint))`),
}

var plainNotify = &system{
	name:  "notify",
	about: "INSERT into rebase.jobs with pg_notify in the same statement",
	open: openPlain(`
with made as (insert into rebase.jobs (task, payload) values ($1, jsonb_build_object('sent', $2::bigint)) returning task)
select pg_notify('bench', task) from made`),
}

type plainClient struct {
	*rebaseClient
	sql string
}

func openPlain(sql string) func(context.Context, string, int) (client, error) {
	return func(ctx context.Context, url string, conns int) (client, error) {
		c, err := openRebase(ctx, url, conns)
		return &plainClient{rebaseClient: c, sql: sql}, err
	}
}

func (c *plainClient) enqueue(ctx context.Context, sent int64) error {
	_, err := c.pool.Exec(ctx, c.sql, task, sent)
	return err
}

// work listens. For the INSERT without a notification it is a connection that hears nothing, so
// that the two have the same number of them.
func (c *plainClient) work(ctx context.Context, _ worker, h handler) (func() error, error) {
	conn, err := pgx.ConnectConfig(ctx, c.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "listen bench"); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return // stopped; an error of the server shows in the enqueues
			}
			h(0)
		}
	}()
	return func() error {
		cancel()
		<-ended
		return conn.Close(context.Background())
	}, nil
}
