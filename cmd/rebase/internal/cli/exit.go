package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// How a run ends: the exit code and the words on stderr. Codes are part of the interface
// and never change their meaning. Words are cleaned, since an error may quote a row, and
// those of pgx that quote the database's address are replaced.

// Exit codes.
const (
	codeOK           = 0
	codeFailed       = 1
	codeUsage        = 2
	codeNotFound     = 3
	codeConflict     = 4
	codeNotConfirmed = 5
	codeSchema       = 6
	codeInterrupted  = 130
)

// A usageError says which flag or argument can't be used as it was given.
type usageError struct {
	Field, Value, Reason string
}

func (e *usageError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason) }

// A notConfirmedError says why nothing was done.
type notConfirmedError struct{ reason string }

func (e *notConfirmedError) Error() string { return "not confirmed: " + e.reason }

// A reportedError has been told already, job by job.
type reportedError struct{ code int }

func (e *reportedError) Error() string { return "some could not be done" }

// A noJobError says that there is no job with the id.
type noJobError struct {
	verb string
	id   int64
}

func (e *noJobError) Error() string { return fmt.Sprintf("%s: there is no job %d", e.verb, e.id) }
func (e *noJobError) Unwrap() error { return rebase.ErrNotFound }

// A noScheduleError says that there is no schedule with the id.
type noScheduleError struct{ verb, id string }

func (e *noScheduleError) Error() string {
	return fmt.Sprintf("schedules %s: there is no schedule %q", e.verb, e.id)
}
func (e *noScheduleError) Unwrap() error { return rebase.ErrNotFound }

// A mayNotMigrateError says who may.
type mayNotMigrateError struct{ err error }

func (e *mayNotMigrateError) Error() string {
	return "the role may not make or change the schema (" + forbidden(e.err) + "): let the schema's owner migrate, or a role with CREATE on the database"
}
func (e *mayNotMigrateError) Unwrap() error { return e.err }

// errTooLong is the cause when --timeout ended a statement.
var errTooLong = errors.New("it took longer than --timeout")

// finish tells the error and returns the exit code.
func (a *app) finish(ctx context.Context, cmd *cobra.Command, err error) int {
	switch {
	case err == nil:
		return codeOK
	case ctx.Err() != nil:
		fmt.Fprintln(a.Err, "rebase: interrupted")
		return codeInterrupted
	}
	if r, ok := errors.AsType[*reportedError](err); ok {
		return r.code
	}
	if !a.began {
		fmt.Fprintf(a.Err, "rebase: %s\nSee '%s --help'.\n", clean(a.words(err)), cmd.CommandPath())
		return codeUsage
	}
	fmt.Fprintln(a.Err, "rebase: "+clean(a.words(err)))
	return codeOf(err)
}

// codeOf is the exit code of an error of a command that has begun.
func codeOf(err error) int {
	_, usage := errors.AsType[*usageError](err)
	_, payload := errors.AsType[*rebase.PayloadError](err)
	_, state := errors.AsType[*rebase.StateError](err)
	_, taken := errors.AsType[*rebase.KeyTakenError](err)
	_, refused := errors.AsType[*notConfirmedError](err)
	_, schema := errors.AsType[*rebase.SchemaError](err)
	switch {
	case usage, payload:
		return codeUsage
	case errors.Is(err, rebase.ErrNotFound):
		return codeNotFound
	case state, taken:
		return codeConflict
	case refused:
		return codeNotConfirmed
	case schema, lacksSchema(err), forbidden(err) != "":
		return codeSchema
	}
	return codeFailed
}

// lacksSchema recognises a database without rebase's tables.
func lacksSchema(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "42P01" || pgErr.Code == "3F000" || pgErr.Code == "42883") // undefined table, schema, function
}

// forbidden is what the server says to a role that lacks a privilege, "" for any other error.
func forbidden(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" { // insufficient_privilege
		return pgErr.Message
	}
	return ""
}

// cancelled recognises that the server has ended a statement: by its own clock, which may be
// faster than ours, or because it was told to.
func cancelled(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "57014" // query_canceled
}

// words are an error's, without the package's own prefix.
func (a *app) words(err error) string {
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		// Its own text names the user and the database before the reason.
		reason := strings.Join(strings.Split(errors.Unwrap(e).Error(), "\n"), "; ")
		return "the database can't be reached: " + reason
	}
	if e, ok := errors.AsType[*mayNotMigrateError](err); ok {
		return e.Error() // which names the privilege itself
	}
	switch {
	case errors.Is(err, errTooLong), errors.Is(err, context.DeadlineExceeded), cancelled(err):
		return fmt.Sprintf("it took longer than %s: raise --timeout, or narrow the filter", a.timeout)
	case lacksSchema(err):
		return "the schema is missing or too old: run 'rebase migrate'"
	case forbidden(err) != "":
		return "the role lacks privileges: " + forbidden(err)
	}
	if e, ok := errors.AsType[*rebase.PayloadError](err); ok {
		return e.Field + ": " + e.Reason // there is only one item
	}
	return strings.TrimPrefix(err.Error(), "rebase: ")
}
