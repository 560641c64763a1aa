package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
	"unicode"

	"github.com/rebasejobs/rebase"
)

// JSON for programs. The names are the columns' of the tables, and a name that has been
// printed once stays. What a column has as null is null here, never "" or a zero time.

// printJSON writes one value on one line. It is safe on a terminal, too: what encoding/json leaves
// as it is of the second block of control characters, and what turns text around, can only
// stand in strings, and becomes an escape that means the same.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

func escapeJSON(raw []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(raw) {
		if unsafe(r) && !(r < 0x80 && unicode.IsSpace(r)) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// A jobRecord is a row of rebase.jobs, without what only workers may know.
type jobRecord struct {
	ID             int64             `json:"id"`
	Task           string            `json:"task"`
	Lane           string            `json:"lane"`
	Status         rebase.Status     `json:"status"`
	RunAt          time.Time         `json:"run_at"`
	Attempts       int               `json:"attempts"`
	MaxAttempts    int               `json:"max_attempts"`
	Runs           int               `json:"runs"`
	IdempotencyKey *string           `json:"idempotency_key"`
	LockedBy       *string           `json:"locked_by"`
	LockedUntil    *time.Time        `json:"locked_until"`
	StartedAt      *time.Time        `json:"started_at"`
	FinishedAt     *time.Time        `json:"finished_at"`
	LastError      *string           `json:"last_error"`
	Slot           *time.Time        `json:"slot"`
	CreatedAt      time.Time         `json:"created_at"`
	UpdatedAt      time.Time         `json:"updated_at"`
	Meta           map[string]string `json:"meta"`
	History        []attemptRecord   `json:"history"`
	Payload        json.RawMessage   `json:"payload"`
}

type attemptRecord struct {
	Attempt   int        `json:"attempt"`
	Run       int        `json:"run"`
	StartedAt *time.Time `json:"started_at"`
	EndedAt   time.Time  `json:"ended_at"`
	Worker    string     `json:"worker"`
	Outcome   string     `json:"outcome"`
	Error     string     `json:"error"`
}

func recordOf(j *rebase.Job) jobRecord {
	r := jobRecord{
		ID: j.ID, Task: j.Task, Lane: j.Lane, Status: j.Status, RunAt: j.RunAt, Attempts: j.Attempts, MaxAttempts: j.MaxAttempts, Runs: j.Runs,
		IdempotencyKey: orNull(j.IdempotencyKey), LockedBy: orNull(j.LockedBy), LockedUntil: j.LockedUntil, StartedAt: j.StartedAt,
		FinishedAt: j.FinishedAt, LastError: orNull(j.LastError), Slot: orNull(j.Slot), CreatedAt: j.CreatedAt, UpdatedAt: j.UpdatedAt,
		Meta: j.Meta, Payload: j.Payload,
	}
	for _, h := range j.History {
		r.History = append(r.History, attemptRecord{h.Attempt, h.Run, orNull(h.StartedAt), h.EndedAt, h.Worker, h.Outcome, h.Error})
	}
	return r
}

// orNull is nil for a zero value.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// pairs shows a map in a stable order.
func pairs(m map[string]string) string {
	var b bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%s", clean(k), clean(m[k]))
	}
	return b.String()
}
