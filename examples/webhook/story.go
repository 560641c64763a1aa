package main

// The shop, and the story that is told of its deliveries. What is printed at the end is read
// from the rows of the jobs.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/webhook"
)

const schema = `
create schema if not exists rebase_webhook_example;
create table if not exists rebase_webhook_example.orders (id bigint generated always as identity primary key, cents int not null)`

type shop struct {
	pool       *pgxpool.Pool
	dispatcher *webhook.Dispatcher
}

var errCard = errors.New("the card was declined")

// pay writes an order and the deliveries about it in one transaction. If commit is false,
// something goes wrong at the end, neither is there.
func (s *shop) pay(ctx context.Context, cents int, customers *customers, commit bool) (order int64, sent []webhook.Sent, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `insert into rebase_webhook_example.orders (cents) values ($1) returning id`, cents).Scan(&order)
		if err != nil {
			return err
		}
		body, err := json.Marshal(map[string]any{"type": "order.paid", "order": order, "cents": cents})
		if err != nil {
			return err
		}
		var deliveries []webhook.Delivery
		for _, c := range customers.all {
			deliveries = append(deliveries, webhook.Delivery{Endpoint: c.name, Event: "order.paid", Body: body})
		}
		if sent, err = s.dispatcher.SendAll(ctx, tx, deliveries); err != nil {
			return err
		}
		if !commit {
			return errCard
		}
		return nil
	})
	return order, sent, err
}

type story struct {
	shop      *shop
	queue     *rebase.Queue
	customers *customers
	told      <-chan webhook.Attempt
	out       io.Writer
}

func (s *story) tell(ctx context.Context) error {
	if _, err := s.shop.pool.Exec(ctx, schema); err != nil {
		return err
	}
	order, _, err := s.shop.pay(ctx, 999, s.customers, false)
	if !errors.Is(err, errCard) {
		return fmt.Errorf("order %d should have been rolled back: %w", order, err)
	}
	fmt.Fprintf(s.out, "order %d was rolled back, %v: nothing to deliver\n", order, err)
	order, sent, err := s.shop.pay(ctx, 1250, s.customers, true)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "order %d is paid: %d deliveries\n\n", order, len(sent))
	jobs, err := s.watch(ctx, sent)
	if err != nil {
		return err
	}
	fmt.Fprintln(s.out)
	for i, job := range jobs {
		fmt.Fprintf(s.out, "%-8s %-9s attempts: %d  last error: %s\n", s.customers.all[i].name, job.Status, job.Attempts, job.LastError)
	}
	for _, c := range []*customer{s.customers.books, s.customers.flowers} {
		handled, dropped := c.counts()
		fmt.Fprintf(s.out, "%s handled %d event and dropped %d as seen before\n", c.name, handled, dropped)
	}
	return nil
}

// watch prints the attempts until all deliveries have ended; flowers opens after its third.
func (s *story) watch(ctx context.Context, sent []webhook.Sent) ([]*rebase.Job, error) {
	ours, flowers := map[string]bool{}, 0
	for _, v := range sent {
		ours[v.ID] = true
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case a := <-s.told:
			if !ours[a.ID] {
				continue // of a run that was interrupted
			}
			s.print(a)
			if a.Endpoint == s.customers.flowers.name {
				if flowers++; flowers == 3 {
					s.customers.down.Store(false)
					fmt.Fprintln(s.out, "flowers is back")
				}
			}
		case <-tick.C:
			jobs, ended, err := s.jobs(ctx, sent)
			if err != nil || ended && len(s.told) == 0 {
				return jobs, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *story) print(a webhook.Attempt) {
	result := fmt.Sprintf("status %d", a.Status)
	if a.Err != nil {
		result = a.Err.Error()
	}
	fmt.Fprintf(s.out, "%s → %-8s attempt %d: %s\n", a.Event, a.Endpoint, a.Number, result)
}

func (s *story) jobs(ctx context.Context, sent []webhook.Sent) (jobs []*rebase.Job, ended bool, err error) {
	ended = true
	for _, v := range sent {
		job, err := s.queue.Job(ctx, v.JobID)
		if err != nil {
			return nil, false, err
		}
		jobs, ended = append(jobs, job), ended && job.FinishedAt != nil
	}
	return jobs, ended, nil
}
