// Devdb starts PostgreSQL in a container, prints the address of its database
// postgres on one line, and stops the container when its standard input closes
// or it gets SIGTERM or SIGINT. Whoever started it holds the other end of that
// input, so the container can't outlive them, however they end.
//
// It is a module of its own because Docker's libraries are many, and nobody who
// imports rebase should get them.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

const (
	image       = "postgres:18-alpine"
	stopTimeout = 10 * time.Second
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("devdb: ")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run starts the container, writes its address to out, and returns when ctx is
// done or in ends, with the container gone.
func run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// From the beginning, so that an owner who ends while the image is being
	// pulled ends us too.
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error is an end as well
		cancel()
	}()
	container, err := start(ctx)
	if container != nil {
		defer func() {
			if stopErr := remove(container); err == nil {
				err = stopErr
			}
		}()
	}
	if err != nil {
		return fmt.Errorf("can't start %s: %w\nIs a Docker engine running? `docker info` must answer", image, err)
	}
	url, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return fmt.Errorf("no address for the container: %w", err)
	}
	if _, err := fmt.Fprintln(out, url); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// start runs a server whose data is in memory and whose commits wait for no
// disk: it never has to survive anything.
func start(ctx context.Context) (container *postgres.PostgresContainer, err error) {
	// Looking for the engine's socket panics in the library if there is none.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return postgres.Run(ctx, image,
		postgres.WithDatabase("postgres"),
		postgres.WithUsername("postgres"),
		postgres.WithPassword("postgres"),
		postgres.BasicWaitStrategies(),
		testcontainers.WithTmpfs(map[string]string{"/var/lib/postgresql": "rw"}),
		testcontainers.WithCmd("postgres",
			"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off",
			"-c", "max_connections=300", "-c", "shared_buffers=256MB",
			"-c", "max_prepared_transactions=10", "-c", "wal_level=logical"),
	)
}

func remove(container testcontainers.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := container.Terminate(ctx); err != nil {
		return fmt.Errorf("can't remove the container: %w", err)
	}
	return nil
}
