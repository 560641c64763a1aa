// What the service does: people sign up, and each gets a mail. The user and the job that will
// write to her are one transaction.

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/mail"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rebasejobs/rebase"
)

type Welcome struct{ Email string }

const SendWelcome rebase.Task[Welcome] = "send-welcome"

type service struct {
	pool   *pgxpool.Pool
	queue  *rebase.Queue
	worker *rebase.Worker
	worked atomic.Bool // the worker has been seen alive
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /signup", s.signUp)
	mux.HandleFunc("GET /livez", s.live)
	mux.Handle("GET /readyz", s.worker.Health())
	mux.Handle("GET /healthz", s.worker.Health())
	mux.Handle("GET /metrics", promhttp.Handler())
	return mux
}

// live is red when the worker was alive and no longer is. While the process waits for its
// database it is green: a restart would mend nothing.
func (s *service) live(w http.ResponseWriter, _ *http.Request) {
	err := s.worker.Live()
	if err == nil {
		s.worked.Store(true)
	} else if s.worked.Load() {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

const usersSQL = `
create schema if not exists rebase_service;
create table if not exists rebase_service.users (email text primary key, created_at timestamptz not null default now())`

// work brings the schema up to date as soon as the database is there, and then works.
func (s *service) work(ctx context.Context) error {
	for {
		err := s.queue.Migrate(ctx)
		if err == nil {
			_, err = s.pool.Exec(ctx, usersSQL)
		}
		_, wrong := errors.AsType[*rebase.SchemaError](err)
		switch {
		case err == nil:
			return s.worker.Run(ctx)
		case ctx.Err() != nil:
			return nil
		case wrong:
			return err
		}
		slog.Warn("the database isn't ready; trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (s *service) signUp(w http.ResponseWriter, r *http.Request) {
	address, err := mail.ParseAddress(r.FormValue("email"))
	if err != nil {
		http.Error(w, "email: "+err.Error(), http.StatusBadRequest)
		return
	}
	err = pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), `insert into rebase_service.users (email) values ($1)`, address.Address); err != nil {
			return err
		}
		_, err := SendWelcome.EnqueueTx(r.Context(), s.queue, tx, Welcome{address.Address}, nil)
		return err
	})
	known, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusCreated)
	case ok && known.Code == "23505": // unique_violation
		http.Error(w, "this address has signed up already", http.StatusConflict)
	default:
		slog.Error("sign-up failed", "error", err)
		http.Error(w, "please try again later", http.StatusServiceUnavailable)
	}
}

// sendWelcome runs at least once for each user. job.ID is the same every time, so a mail
// provider can tell a second try from a second mail.
func sendWelcome(_ context.Context, job *rebase.Job, p Welcome) error {
	slog.Info("mail sent", "job_id", job.ID, "to", p.Email)
	return nil
}
