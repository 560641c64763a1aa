// Webhooks: a shop tells four customers that an order was paid, and nothing that they do
// can hurt it.
//
// The deliveries are enqueued in the transaction that writes the order, so they exist if and
// only if the order does. Then each customer gets them in their own time:
//
//	books     takes the event, but dies before it can say so; it gets the event again, under
//	          the same id, and drops it
//	flowers   is down for a while; its delivery is tried until it is back
//	moved     answers with a redirect to the cloud's metadata: not followed, a dead letter
//	inside    gave 127.0.0.1 as its address: refused before a byte is sent
//
//	go run ./examples/webhook
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
	"github.com/rebasejobs/rebase/webhook"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	url, closeDB, err := exampledb.Open(ctx)
	if err != nil {
		return err
	}
	defer closeDB()
	return run(ctx, url, os.Stdout, slog.New(slog.DiscardHandler))
}

func run(ctx context.Context, url string, out io.Writer, log *slog.Logger) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue := rebase.New(pool, &rebase.Options{Logger: log})
	if err := queue.Migrate(ctx); err != nil {
		return err
	}
	customers, err := openCustomers()
	if err != nil {
		return err
	}
	defer customers.close()
	store, err := register(ctx, pool, customers)
	if err != nil {
		return err
	}

	told := make(chan webhook.Attempt, 100) // printed by one goroutine
	dispatcher := webhook.New(queue, store, &webhook.Options{
		// For the example only: the customers are on this machine, and nobody waits ten seconds.
		Client: webhook.NewClient(&webhook.ClientOptions{
			Timeout: 5 * time.Second, Allow: []netip.Prefix{customers.prefix}, Logger: log,
		}),
		Timeout:    5 * time.Second,
		Backoff:    func(int) time.Duration { return 300 * time.Millisecond },
		OnDelivery: func(_ context.Context, a webhook.Attempt) { told <- a },
		Logger:     log,
	})
	worker := rebase.NewWorker(queue, &rebase.WorkerOptions{Name: "shop", Concurrency: 10})
	dispatcher.Register(worker)
	workerCtx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(workerCtx) }()

	s := &story{shop: &shop{pool, dispatcher}, queue: queue, customers: customers, told: told, out: out}
	err = s.tell(ctx)
	cancel()
	return errors.Join(err, <-ended)
}

// register puts the customers into the store in the database. The key would come from the
// service's configuration; the secrets were shown to the customers when they signed up.
func register(ctx context.Context, pool *pgxpool.Pool, customers *customers) (*webhook.PGStore, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // fills the slice or ends the process
	sealer, err := webhook.AESGCM(key)
	if err != nil {
		return nil, err
	}
	store := webhook.NewPGStore(pool, sealer)
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	for _, c := range customers.all {
		if err := store.Put(ctx, c.name, webhook.Endpoint{URL: c.url, Secrets: []webhook.Secret{c.secret}}); err != nil {
			return nil, err
		}
	}
	return store, nil
}
