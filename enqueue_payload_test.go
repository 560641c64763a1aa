package rebase_test

// Payloads from the program to the handler (J21), and what is refused on the way. "Before any
// SQL" is taken at its word: the transaction of these tests panics when it is used.

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// untouchable is a transaction on which every call panics.
type untouchable struct{ pgx.Tx }

type unencodable struct{}

func (unencodable) MarshalJSON() ([]byte, error) { return nil, errors.New("no") }

// badPayloads are refused for their payload.
var badPayloads = map[string]any{
	"NUL":               "a\x00b",
	"NUL in a key":      map[string]int{"a\x00": 1},
	"NUL, escaped":      json.RawMessage(`{"a": ["\u0000"]}`),
	"lone surrogate":    json.RawMessage(`"\ud800"`),
	"swapped pair":      json.RawMessage(`"\udc00\ud800"`),
	"invalid UTF-8":     struct{ A string }{"caf\xe9"},
	"invalid UTF-8 raw": json.RawMessage("\"caf\xe9\""),
	"10 MB":             strings.Repeat("x", 10<<20),
	"channel":           make(chan int),
	"function":          func() {},
	"NaN":               math.NaN(),
	"infinity":          map[string]float64{"a": math.Inf(1)},
	"bytes":             []byte(`{"a": 1}`),
	"huge exponent":     json.RawMessage(`1e200000`),
	"tiny exponent":     json.RawMessage(`1e-200000`),
	"nesting":           json.RawMessage(strings.Repeat("[", 501) + strings.Repeat("]", 501)),
	"no JSON":           json.RawMessage(`{a: 1}`),
	"empty":             json.RawMessage{},
	"two values":        json.RawMessage(`1 2`),
	"its own error":     unencodable{},
}

// badOptions are refused for the field that they are named after, up to the colon.
var badOptions = map[string]rebase.Item{
	"task: empty":                     {Task: ""},
	"task: NUL":                       {Task: "a\x00"},
	"task: line":                      {Task: "a\n"},
	"task: invalid UTF-8":             {Task: "\xff"},
	"task: 256 bytes":                 {Task: strings.Repeat("x", 256)},
	"lane: NUL":                       {Options: &rebase.EnqueueOptions{Lane: "\x00"}},
	"lane: invalid UTF-8":             {Options: &rebase.EnqueueOptions{Lane: "a\xc0"}},
	"lane: 256 bytes":                 {Options: &rebase.EnqueueOptions{Lane: strings.Repeat("x", 256)}},
	"idempotency_key: NUL":            {Options: keyed("k\x00")},
	"idempotency_key: invalid UTF-8":  {Options: keyed("k\xf5")},
	"meta: NUL":                       {Options: &rebase.EnqueueOptions{Meta: map[string]string{"a": "\x00"}}},
	"meta: invalid UTF-8":             {Options: &rebase.EnqueueOptions{Meta: map[string]string{"\xff": ""}}},
	"meta: empty key":                 {Options: &rebase.EnqueueOptions{Meta: map[string]string{"": "a"}}},
	"meta: 16 KiB":                    {Options: &rebase.EnqueueOptions{Meta: map[string]string{"a": strings.Repeat("x", 16<<10)}}},
	"delay: negative":                 {Options: &rebase.EnqueueOptions{Delay: -1}},
	"delay: longest":                  {Options: &rebase.EnqueueOptions{Delay: math.MaxInt64}},
	"run_at: beside a delay":          {Options: &rebase.EnqueueOptions{Delay: 1, RunAt: time.Now()}},
	"run_at: year 10000":              {Options: &rebase.EnqueueOptions{RunAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}},
	"run_at: before Christ":           {Options: &rebase.EnqueueOptions{RunAt: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)}},
	"run_at: year 10000 in its zone":  {Options: &rebase.EnqueueOptions{RunAt: time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200))}},
	"max_attempts: negative":          {Options: &rebase.EnqueueOptions{MaxAttempts: -1}},
	"max_attempts: more than 32 bits": {Options: &rebase.EnqueueOptions{MaxAttempts: math.MaxInt32 + 1}},
}

// J21, Q29: what can't be stored is a typed error that names item, field and reason, before
// any SQL is sent.
func TestQ29WhatCannotBeStoredIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	refuse := func(name, field string, item rebase.Item) {
		t.Helper()
		single := func(err error) {
			bad, ok := errors.AsType[*rebase.PayloadError](err)
			require.True(t, ok, "%s: %v", name, err)
			require.Equal(t, field, bad.Field, name)
			require.NotEmpty(t, bad.Reason, name)
			require.Zero(t, bad.Index)
			require.Less(t, len(err.Error()), 1200, "a short reason, whatever the value")
		}
		_, err := d.q.EnqueueTx(t.Context(), untouchable{}, item.Task, item.Payload, item.Options)
		single(err)
		_, err = d.q.EnqueueSQL(t.Context(), nil, item.Task, item.Payload, item.Options)
		single(err)
		_, err = d.q.Enqueue(t.Context(), item.Task, item.Payload, item.Options)
		single(err)
		_, err = d.q.EnqueueManyTx(t.Context(), untouchable{}, []rebase.Item{{Task: "fine"}, {Task: "fine"}, item})
		bad, ok := errors.AsType[*rebase.PayloadError](err)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, 2, bad.Index, name)
	}
	for name, payload := range badPayloads {
		refuse(name, "payload", rebase.Item{Task: "t", Payload: payload})
	}
	for name, item := range badOptions {
		field, _, _ := strings.Cut(name, ":")
		if field != "task" {
			item.Task = "t"
		}
		refuse(name, field, item)
	}
	require.Zero(t, d.jobs())
}

// Q29: the caller's transaction lives on after a refusal.
func TestQ29TheCallersTransactionLivesOnAfterARefusal(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	tx := d.begin(pgx.TxOptions{})
	for name, payload := range badPayloads {
		_, err := d.q.EnqueueTx(t.Context(), tx, "t", payload, nil)
		require.Error(t, err, name)
	}
	_, err := d.q.EnqueueTx(t.Context(), tx, "t", "fine", nil)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 1, d.jobs())
}

// J21, Q31: every JSON value reaches the handler unchanged, raw and typed, numbers beyond
// 2^53 and beyond float64 included.
func TestQ31PayloadsReachTheHandlerUnchanged(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	payloads := []string{`null`, `true`, `""`, `[]`, `{}`, `9007199254740993`, `-9223372036854775809`, `1e400`, `-1.5e-300`, `0.1000`, `1e131071`, `1e-16383`,
		`"\u00e9\ud83d\ude00 \"\\/\b\f\n\r\t\u007f\ufffd"`, `{"a": {"b": [1, "1", null, false]}, "": "", "ключ": "NULL"}`, `"{\"a\": 1}"`, `"\\u0000"`,
		strings.Repeat("[", 500) + strings.Repeat("]", 500), `"` + strings.Repeat("é", 1<<19-1) + `"`}
	q := deskOn(t, d.pool, &rebase.Options{MaxPayload: -1}).q
	var items []rebase.Item
	for i, p := range payloads {
		items = append(items, rebase.Item{Task: "t", Payload: json.RawMessage(p)})
		_, err := q.Enqueue(t.Context(), "one", json.RawMessage(p), &rebase.EnqueueOptions{IdempotencyKey: itoa(int64(i))})
		require.NoError(t, err, "%.100s", p)
	}
	done, err := q.EnqueueMany(t.Context(), items)
	require.NoError(t, err)
	same := func(i int, got json.RawMessage) {
		require.True(t, equalJSON(t, payloads[i], string(got)), "%.200s became %.200s", payloads[i], got)
	}
	n := d.drain(map[string]rebase.Handler{
		"one": func(_ context.Context, job *rebase.Job) error { // runs beside others, as job.ID and key tell which
			for i := range payloads {
				if job.IdempotencyKey == itoa(int64(i)) {
					same(i, job.Payload)
				}
			}
			return nil
		},
		"t": func(_ context.Context, job *rebase.Job) error { same(int(job.ID-done[0].ID), job.Payload); return nil },
	})
	require.Equal(t, 2*len(payloads), n)
	require.Equal(t, 2*len(payloads), tell[int](d, `select count(*) from rebase.jobs where status = 'succeeded'`))
}

// equalJSON compares two texts as JSON, numbers by their value.
func equalJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var values [2]any
	for i, text := range []string{a, b} {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		require.NoError(t, dec.Decode(&values[i]))
		values[i] = canonical(values[i])
	}
	return requireObjectsEqual(values[0], values[1])
}

func requireObjectsEqual(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// canonical writes every number as a fraction in lowest terms.
func canonical(v any) any {
	switch v := v.(type) {
	case json.Number:
		r, _ := new(big.Rat).SetString(v.String())
		return "number " + r.String()
	case []any:
		for i := range v {
			v[i] = canonical(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = canonical(v[k])
		}
	}
	return v
}

// J21, Q31: a typed handler gets its type, without a detour by float64.
func TestQ31TypedHandlersGetTheirType(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	type order struct {
		ID    int64
		Exact json.Number
		Image []byte // inside a struct base64 is what json.Unmarshal expects
	}
	const place rebase.Task[order] = "place"
	want := order{ID: 9007199254740993, Exact: "12345678901234567890.5", Image: []byte{0, 255}}
	_, err := place.Enqueue(t.Context(), d.q, want, nil)
	require.NoError(t, err)
	var got order
	w := rebase.NewWorker(d.q, nil)
	place.Handle(w, func(_ context.Context, job *rebase.Job, o order) error { got = o; return nil }, nil)
	n, err := w.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, want, got)
}
