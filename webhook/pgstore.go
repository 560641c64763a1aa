package webhook

// A Store in the queue's own database. The invariant: URL, secrets and headers are in the
// table in sealed form only, bound to the row's id; what is readable is the scheme and the
// host. An endpoint that can't be used is refused by Put, and again when it is used.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PGStore is a [Store] and [Disabler] on a table of its own, rebase.webhook_endpoints. It is
// safe for concurrent use.
type PGStore struct {
	pool   *pgxpool.Pool
	sealer Sealer
}

var (
	_ Store    = (*PGStore)(nil)
	_ Disabler = (*PGStore)(nil)
)

// NewPGStore makes a store on the pool. It does no I/O. It panics without a pool or a
// sealer: secrets are never written as they are.
func NewPGStore(pool *pgxpool.Pool, sealer Sealer) *PGStore {
	if pool == nil || sealer == nil {
		panic("webhook: NewPGStore: nil pool or sealer")
	}
	return &PGStore{pool: pool, sealer: sealer}
}

// stored is what is sealed.
type stored struct {
	URL     string      `json:"url"`
	Secrets []string    `json:"secrets"`
	Header  http.Header `json:"header,omitempty"`
}

const endpointSQL = `
select sealed, disabled_at is not null
from rebase.webhook_endpoints
where id = $1`

// Endpoint is [Store]'s. An endpoint that can't be opened is an error like any other, since
// another process may have the key.
func (s *PGStore) Endpoint(ctx context.Context, id string) (Endpoint, error) {
	if badEndpointID(id) != "" {
		return Endpoint{}, fmt.Errorf("%w: %s", ErrNotFound, quoted(id)) // it can't have been put
	}
	var sealed []byte
	var disabled bool
	err := s.pool.QueryRow(ctx, endpointSQL, id).Scan(&sealed, &disabled)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Endpoint{}, fmt.Errorf("%w: %s", ErrNotFound, quoted(id))
	case err != nil:
		return Endpoint{}, tableError("endpoint", id, err)
	case disabled:
		return Endpoint{}, fmt.Errorf("%w: %s", ErrDisabled, quoted(id))
	}
	plain, err := s.sealer.Open(ctx, sealed, []byte(id))
	if err != nil {
		return Endpoint{}, fmt.Errorf("webhook: endpoint %s: %w", quoted(id), err)
	}
	return unpack(plain)
}

func unpack(plain []byte) (Endpoint, error) {
	var from stored
	if json.Unmarshal(plain, &from) != nil { // whose error may quote it
		return Endpoint{}, errors.New("webhook: endpoint: the sealed text is not what Put wrote")
	}
	e := Endpoint{URL: from.URL, Header: from.Header}
	for _, text := range from.Secrets {
		secret, err := ParseSecret(text)
		if err != nil {
			return Endpoint{}, err
		}
		e.Secrets = append(e.Secrets, secret)
	}
	return e, nil
}

const putSQL = `
insert into rebase.webhook_endpoints as e (id, sealed, target)
values ($1, $2, $3)
on conflict (id) do update
set sealed = excluded.sealed, target = excluded.target, disabled_at = null, disabled_reason = null, updated_at = statement_timestamp()`

// Put writes an endpoint, in place of the one with the id if there is one, and enables it.
// Deliveries that wait are sent to it as it is now. It returns a *EndpointError for an
// endpoint or an id that can't be used.
func (s *PGStore) Put(ctx context.Context, id string, e Endpoint) error {
	if reason := badEndpointID(id); reason != "" {
		return &EndpointError{Field: "ID", Reason: reason}
	}
	if err := e.Validate(); err != nil {
		return err
	}
	to := stored{URL: e.URL, Header: e.Header}
	for _, secret := range e.Secrets {
		to.Secrets = append(to.Secrets, secret.Reveal())
	}
	if err := storable(e); err != nil {
		return err
	}
	plain, err := json.Marshal(to)
	if err != nil {
		return errors.New("webhook: put: the endpoint can't be encoded")
	}
	sealed, err := s.sealer.Seal(ctx, plain, []byte(id))
	if err != nil {
		return fmt.Errorf("webhook: put %s: %w", quoted(id), err)
	}
	u, err := url.Parse(e.URL) // as Validate did
	if err != nil {
		return &EndpointError{Field: "URL", Reason: "is not a URL"}
	}
	if _, err := s.pool.Exec(ctx, putSQL, id, sealed, strings.ToValidUTF8(u.Scheme+"://"+u.Host, "\ufffd")); err != nil {
		return tableError("put", id, err)
	}
	return nil
}

// storable refuses what JSON would change in silence.
func storable(e Endpoint) error {
	if !utf8.ValidString(e.URL) {
		return &EndpointError{Field: "URL", Reason: "is not UTF-8"}
	}
	for name, values := range e.Header {
		for _, v := range values {
			if !utf8.ValidString(v) {
				return &EndpointError{Field: "Header", Reason: "value of " + quoted(name) + " is not UTF-8"}
			}
		}
	}
	return nil
}

// Delete removes an endpoint: its waiting deliveries end as cancelled. Deleting what is not
// there is no error.
func (s *PGStore) Delete(ctx context.Context, id string) error {
	if badEndpointID(id) != "" {
		return nil
	}
	if _, err := s.pool.Exec(ctx, `delete from rebase.webhook_endpoints where id = $1`, id); err != nil {
		return tableError("delete", id, err)
	}
	return nil
}

const disableSQL = `
update rebase.webhook_endpoints
set disabled_at = statement_timestamp(), disabled_reason = $2, updated_at = statement_timestamp()
where id = $1 and disabled_at is null`

// Disable is [Disabler]'s: waiting deliveries end as cancelled; Put enables the endpoint
// again. The first reason stays. The reason stands readable in the table.
func (s *PGStore) Disable(ctx context.Context, id, reason string) error {
	if badEndpointID(id) != "" {
		return nil
	}
	reason = strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", "\ufffd"), "\ufffd")
	if _, err := s.pool.Exec(ctx, disableSQL, id, reason); err != nil {
		return tableError("disable", id, err)
	}
	return nil
}

// tableError says what to do where the table isn't there yet: Queue.Migrate doesn't make it.
func tableError(verb, id string, err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42P01" { // undefined_table
		err = fmt.Errorf("the table is missing, call PGStore.Migrate: %w", err)
	}
	return fmt.Errorf("webhook: %s %s: %w", verb, quoted(id), err)
}

// badEndpointID says why a text can't be an endpoint's id: it is a lane, so what the queue
// refuses as one is refused here, before the endpoint is there and can't be sent to.
func badEndpointID(id string) string {
	switch {
	case id == "" || len(id) > 255:
		return fmt.Sprintf("has %d bytes, not 1 to 255", len(id))
	case !utf8.ValidString(id):
		return quoted(id) + " is not UTF-8"
	case strings.ContainsFunc(id, func(r rune) bool { return control(r) || r == '\t' }):
		return quoted(id) + " contains a control character"
	}
	return ""
}
