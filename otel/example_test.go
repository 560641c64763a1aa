// How a service sets it up. It is compiled and not run, since it wants a database and serves for
// ever.

package rebaseotel_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	rebaseotel "github.com/rebasejobs/rebase/otel"
)

type Welcome struct{ Email string }

const SendWelcome rebase.Task[Welcome] = "send-welcome"

func Example() {
	serve := func(ctx context.Context, pool *pgxpool.Pool) error {
		tel := rebaseotel.New(&rebaseotel.Options{Parent: true}) // the global providers
		queue := rebase.New(pool, nil)
		worker := rebase.NewWorker(queue, &rebase.WorkerOptions{
			Middleware: []rebase.Middleware{tel.Middleware},
		})
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // in a request, for example
			_, err := tel.EnqueueTx(ctx, queue, tx, SendWelcome.Item(Welcome{"ada@example.org"}, nil))
			return err
		})
		if err != nil {
			return err
		}
		return worker.Run(ctx)
	}
	_ = serve
}
