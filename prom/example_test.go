// How a service sets it up. The order matters: metrics, then queue, then collector. It is
// compiled and not run, since it wants a database and serves for ever.

package prom_test

import (
	"context"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/prom"
)

func Example() {
	serve := func(ctx context.Context, pool *pgxpool.Pool) error {
		metrics := prom.New(nil) // first: the queue wants its OnEvent
		queue := rebase.New(pool, &rebase.Options{OnEvent: metrics.OnEvent})
		worker := rebase.NewWorker(queue, &rebase.WorkerOptions{
			Middleware: []rebase.Middleware{metrics.Middleware},
		})
		prometheus.MustRegister(metrics, prom.NewCollector(queue, nil))
		http.Handle("/metrics", promhttp.Handler())
		go func() { log.Println(http.ListenAndServe("localhost:9464", nil)) }()
		return worker.Run(ctx)
	}
	_ = serve
}
