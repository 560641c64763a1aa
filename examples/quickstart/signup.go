package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
)

// The application's side: its tables, and the transaction that makes a user and a job.

// A signup is a line of the input.
type signup struct {
	name, email string
	terms       bool
}

// Welcome is the payload of a send-welcome job: what the mail needs, and no more.
type Welcome struct {
	UserID int64  `json:"user_id"`
	Name   string `json:"name"`
	Email  string `json:"email"`
}

// SendWelcome is used by the one who enqueues and by the one who handles.
const SendWelcome rebase.Task[Welcome] = "send-welcome"

// The check is the application's rule, and the database is where it is kept.
const schema = `
create schema if not exists rebase_quickstart;
create table if not exists rebase_quickstart.users (
  id bigint generated always as identity primary key,
  name text not null,
  email text not null
);
create table if not exists rebase_quickstart.consents (
  user_id bigint not null references rebase_quickstart.users,
  terms boolean not null constraint terms_must_be_accepted check (terms)
)`

func readSignups(r io.Reader) (people []signup, err error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("sign-ups: %w", err)
	}
	for i, row := range rows {
		if i == 0 {
			if got := strings.Join(row, ","); got != "name,email,terms" {
				return nil, fmt.Errorf("sign-ups: the first line is %q, not \"name,email,terms\"", got)
			}
			continue
		}
		if row[2] != "yes" && row[2] != "no" {
			return nil, fmt.Errorf("sign-ups: record %d: terms is %q, neither yes nor no", i, row[2])
		}
		people = append(people, signup{row[0], row[1], row[2] == "yes"})
	}
	return people, nil
}

// signUpAll returns the jobs of those who could sign up.
func signUpAll(ctx context.Context, pool *pgxpool.Pool, queue *rebase.Queue, people []signup, say teller) (jobs []int64, err error) {
	for _, p := range people {
		job, err := signUp(ctx, pool, queue, p)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.ConstraintName == "terms_must_be_accepted" {
			if _, err := queue.Job(ctx, job); err == nil {
				return nil, fmt.Errorf("job %d was rolled back, and is there", job)
			} else if !errors.Is(err, rebase.ErrNotFound) {
				return nil, err
			}
			say("%s did not accept the terms: rolled back, and job %d never was", p.name, job)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("sign up %s: %w", p.email, err)
		}
		say("%s signed up: user and job %d committed", p.name, job)
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// signUp makes the user, the job and the consent, or none of them.
func signUp(ctx context.Context, pool *pgxpool.Pool, queue *rebase.Queue, p signup) (job int64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var user int64
		err := tx.QueryRow(ctx, `insert into rebase_quickstart.users (name, email) values ($1, $2) returning id`, p.name, p.email).Scan(&user)
		if err != nil {
			return err
		}
		done, err := SendWelcome.EnqueueTx(ctx, queue, tx, Welcome{user, p.name, p.email}, nil)
		if err != nil {
			return err
		}
		job = done.ID
		_, err = tx.Exec(ctx, `insert into rebase_quickstart.consents (user_id, terms) values ($1, $2)`, user, p.terms)
		return err
	})
	return job, err
}

// printJobs reads the queue's table like any other.
func printJobs(ctx context.Context, pool *pgxpool.Pool, jobs []int64, out io.Writer) error {
	rows, err := pool.Query(ctx, `
		select id, status, attempts || ' of ' || max_attempts, payload->>'email', coalesce(last_error, '')
		from rebase.jobs
		where id = any($1)
		order by id`, jobs)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATUS\tATTEMPTS\tEMAIL\tLAST ERROR")
	var id int64
	var status, attempts, email, lastError string
	_, err = pgx.ForEachRow(rows, []any{&id, &status, &attempts, &email, &lastError}, func() error {
		_, err := fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", id, status, attempts, email, lastError)
		return err
	})
	return errors.Join(err, table.Flush())
}
