// Service is a web service with a queue in it, the way one goes to production: HTTP, worker and
// metrics in one process. It starts whether the database is there or not, says by its probes
// how it is, and on SIGTERM ends in the order that loses nothing: requests, then jobs, then
// the pool. What it does for its users is in signup.go.
package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/exampledb"
	"github.com/rebasejobs/rebase/prom"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("service failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	url, closeDB, err := exampledb.Open(ctx) // in a service of yours: os.Getenv("DATABASE_URL")
	if err != nil {
		return err
	}
	defer closeDB()
	pool, err := pgxpool.New(ctx, url) // connects when it is needed
	if err != nil {
		return err
	}
	defer pool.Close() // 3. when nobody uses it any more
	metrics := prom.New(nil)
	queue := rebase.New(pool, &rebase.Options{OnEvent: metrics.OnEvent})
	s := &service{pool: pool, queue: queue, worker: rebase.NewWorker(queue, &rebase.WorkerOptions{Middleware: []rebase.Middleware{metrics.Middleware}})}
	SendWelcome.Handle(s.worker, sendWelcome, nil)
	prometheus.MustRegister(metrics, prom.NewCollector(queue, nil))
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("ADDR"), "localhost:8080"))
	if err != nil {
		return err
	}
	slog.Info("service started", "addr", listener.Addr().String())

	// The worker must outlive the signal: the last requests enqueue jobs still.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	ended, end := context.WithCancel(ctx) // by the signal, or when one of the two fails
	server := &http.Server{Handler: http.MaxBytesHandler(s.routes(), 64<<10), ReadHeaderTimeout: 5 * time.Second}
	var workErr, serveErr error
	var both sync.WaitGroup
	both.Go(func() { defer end(); workErr = s.work(working) })
	both.Go(func() { defer end(); serveErr = server.Serve(listener) })
	<-ended.Done()

	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = server.Shutdown(late) // 1. no new requests; those under way end
	stopWorking()
	both.Wait() // 2. no new jobs; those under way end, the others stay in the table
	if !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(serveErr, err)
	}
	return errors.Join(err, workErr)
}
