package rebase_test

// Payloads and names are judged before any SQL. The promise is two-sided: what is let through the server takes and
// hands back equal, and what is refused, the server would have refused too, or json.Marshal had lost something.
// So the same samples run against the check alone and against a real PostgreSQL.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// verbatimJSON is a Marshaler that writes what it is told; textualKey is a TextMarshaler.
type (
	verbatimJSON struct{ out string }
	ownBytesJSON []byte
	textualKey   string
	blobBytes    []byte
	payloadLine  struct{ Name string }
	payloadOrder struct {
		payloadLine
		Items  []payloadLine
		Quoted string `json:",string"`
		Raw    json.RawMessage
		Bytes  []byte
		Meta   map[string]any
		At     time.Time
		Text   textualKey
		Hidden string `json:"-"`
		secret string
		Self   *payloadOrder
	}
)

func (v verbatimJSON) MarshalJSON() ([]byte, error) { return []byte(v.out), nil }
func (b ownBytesJSON) MarshalJSON() ([]byte, error) { return b, nil }
func (u textualKey) MarshalText() ([]byte, error)   { return []byte(u), nil }

// ring embeds a pointer to itself, which encoding/json leaves out; tagged gives an unexported embedded struct a name.
type (
	ring struct {
		*ring
		Name string
		Raw  json.RawMessage
	}
	tagged struct {
		payloadLine `json:"line"`
	}
)

// twofoldKey writes fine JSON, but as a key of a map it is the text that counts.
type twofoldKey struct{ text string }

func (f twofoldKey) MarshalJSON() ([]byte, error) { return []byte("1"), nil }
func (f twofoldKey) MarshalText() ([]byte, error) { return []byte(f.text), nil }

type panickingJSON struct{ with any }

func (p panickingJSON) MarshalJSON() ([]byte, error) { panic(p.with) }

type failingJSON struct{ text string }

func (f failingJSON) MarshalJSON() ([]byte, error) { return nil, errors.New(f.text) }

// J21: any JSON value is stored, Q31: with its numbers as they are.
func TestPayloadIsEncodedAsJSON(t *testing.T) {
	t.Parallel()
	raw := json.RawMessage(` {"a" : 9007199254740993} `)
	for _, c := range []struct {
		in   any
		want string
	}{
		{nil, `null`},
		{"", `""`},
		{json.Number("1e400"), `1e400`},
		{uint64(math.MaxUint64), `18446744073709551615`},
		{map[string]any{"b": []int{1}, "a": nil}, `{"a":null,"b":[1]}`},
		{raw, string(raw)},
		{&raw, string(raw)},
		{json.RawMessage(nil), `null`},
		{(*json.RawMessage)(nil), `null`},
		{(*payloadOrder)(nil), `null`},
		{struct{ B []byte }{[]byte("hi")}, `{"B":"aGk="}`},
		{[3]byte{1, 2, 3}, `[1,2,3]`},
		{ownBytesJSON(`[1]`), `[1]`},
		{"<\u2028>", `"\u003c\u2028\u003e"`},
		{`\u0000 \ufffd`, `"\\u0000 \\ufffd"`},
		{"genuine \ufffd", "\"genuine \ufffd\""},
		{json.RawMessage(`"\ufffd \ud83d\ude00 \/"`), `"\ufffd \ud83d\ude00 \/"`},
	} {
		got, reason := rebase.EncodePayload(c.in, 0)
		require.Empty(t, reason, "%T %v", c.in, c.in)
		require.Equal(t, c.want, string(got))
	}
}

// J21, Q29: each refusal says what and where.
func TestPayloadIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	cycle := map[string]any{}
	cycle["self"] = cycle
	for _, c := range []struct {
		in   any
		want string
	}{
		{[]byte(`{}`), "a []byte would be stored as base64; use json.RawMessage"},
		{new([]byte), "a []byte would be stored as base64"},
		{blobBytes(`{}`), "a rebase_test.blobBytes would be stored as base64"},
		{make(chan int), "$ is a chan int, which JSON can't hold"},
		{payloadOrder{Meta: map[string]any{"f": []any{1, func() {}}}}, `$.Meta["f"][1] is a func(), which JSON can't hold`},
		{payloadOrder{Meta: map[string]any{"x": math.NaN()}}, `$.Meta["x"] is NaN, which JSON can't hold`},
		{[]float32{1, float32(math.Inf(-1))}, "$[1] is -Inf"},
		{1i, "$ is a complex128"},
		{cycle, "encountered a cycle via map[string]interface {}"},
		{json.Number("1x"), `"1x"`},
		{panickingJSON{"no such thing"}, "encoding it panicked: no such thing"},
		{panickingJSON{selfPanic{}}, "encoding it panicked: a "},
		{failingJSON{"no \x00 today"}, "no ␀ today"},
		{failingJSON{strings.Repeat("x", 1<<20)}, "bytes in all)"},
		{map[string]any{"a": "x\x00"}, `NUL character (\u0000) at byte 7 ($["a"])`},
		{payloadOrder{Items: []payloadLine{{}, {"x\x00"}}}, `($["Items"][1]["Name"])`},
		{map[string]int{"\x00": 1}, `NUL character (\u0000) at byte 2 ($)`},
		{json.RawMessage(`{"a":[1,{"b":"\u0000"}]}`), `NUL character (\u0000) at byte 14 ($["a"][1]["b"])`},
		{json.RawMessage(`"\\\u0000"`), `NUL character (\u0000) at byte 3`},
		{json.RawMessage(`"\ud800x"`), "lone surrogate at byte 1"},
		{json.RawMessage(`{"\udc00":1}`), "lone surrogate at byte 2"},
		{json.RawMessage("[\"é\xffé\"]"), "invalid UTF-8 at byte 4 ($[0])"},
		{json.RawMessage("[1e131072]"), "a number that PostgreSQL's numeric can't hold"},
		{json.Number("1e200000"), "a number that PostgreSQL's numeric can't hold"},
		{json.RawMessage("1 2"), "something follows the JSON value at byte 2"},
		{json.RawMessage("{}\x00"), "something follows the JSON value at byte 2"},
		{json.RawMessage(""), "the JSON ends early at byte 0"},
		{json.RawMessage("[1,]"), "unexpected ']' at byte 3 ($[1])"},
	} {
		got, reason := rebase.EncodePayload(c.in, 0)
		require.Contains(t, reason, c.want, "%T", c.in)
		require.Less(t, len(reason), 1000)
		require.Nil(t, got)
	}
}

// J21: json.Marshal replaces invalid UTF-8 in silence; the value tells where, and a genuine U+FFFD stays allowed.
func TestInvalidUTF8ThatMarshalHidesIsFound(t *testing.T) {
	t.Parallel()
	const bad = "a\xffb"
	for _, c := range []struct {
		in   any
		want string
	}{
		{bad, "$ holds invalid UTF-8"},
		{&payloadOrder{Items: []payloadLine{{"ok"}, {bad}}}, "$.Items[1].Name holds invalid UTF-8"},
		{payloadOrder{payloadLine: payloadLine{bad}}, "$.payloadLine.Name holds invalid UTF-8"},
		{tagged{payloadLine{bad}}, "$.payloadLine.Name holds invalid UTF-8"},
		{payloadOrder{Quoted: bad}, "$.Quoted holds invalid UTF-8"},
		{payloadOrder{Self: &payloadOrder{Text: bad}}, "$.Self.Text holds invalid UTF-8"},
		{payloadOrder{Meta: map[string]any{"k": bad}}, `$.Meta["k"] holds invalid UTF-8`},
		{payloadOrder{Meta: map[string]any{bad: 1}}, "$.Meta has a key with invalid UTF-8"},
		{map[textualKey]int{bad: 1}, "$ has a key with invalid UTF-8"},
		{map[twofoldKey]int{{bad}: 1}, "$ has a key with invalid UTF-8"},
		{payloadOrder{Raw: json.RawMessage(`"\ufffd"`), Text: bad}, "$.Text holds invalid UTF-8"},
		{payloadOrder{Raw: json.RawMessage(`"` + bad + `"`)}, "invalid UTF-8"},
		{[]any{verbatimJSON{`"\ufffd"`}}, `$[0]: its MarshalJSON wrote \ufffd, which can't be told from`},
	} {
		_, reason := rebase.EncodePayload(c.in, 0)
		require.Contains(t, reason, c.want, "%#v", c.in)
	}
	round := &ring{Name: "ok", Raw: json.RawMessage(`"\ufffd"`)}
	round.ring = round
	for _, in := range []any{
		round,
		payloadOrder{Raw: json.RawMessage(`["\ufffd","\uFFFD"]`), Text: "\ufffd", At: time.Unix(0, 0).UTC()},
		payloadOrder{Hidden: bad, secret: bad, Quoted: `\ufffd`},
		&payloadOrder{Raw: json.RawMessage(`"\ufffd"`), Bytes: []byte(bad), Self: &payloadOrder{}},
		[]any{ownBytesJSON(`"\ufffd"`), verbatimJSON{"\"\ufffd\""}, verbatimJSON{`"\\ufffd"`}, (*verbatimJSON)(nil), (*textualKey)(nil)},
		map[string]textualKey{"\ufffd": "\ufffd"},
	} {
		raw, reason := rebase.EncodePayload(in, 0)
		require.Empty(t, reason, "%#v", in)
		require.True(t, json.Valid(raw))
	}
}

// J21: nesting beyond 500 is refused, in whatever mixture, and a deep Go value is no trouble.
func TestNestingBeyond500IsRefused(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{{`[`, `]`}, {`{"a":`, `}`}, {`[{"a":1,"b":`, `}]`}} {
		each := strings.Count(pair[0], "[") + strings.Count(pair[0], "{")
		nest := func(n int) json.RawMessage {
			return json.RawMessage(strings.Repeat(pair[0], n) + `[]` + strings.Repeat(pair[1], n))
		}
		_, reason := rebase.EncodePayload(nest(499/each), 0)
		require.Empty(t, reason)
		_, reason = rebase.EncodePayload(nest(500/each), 0)
		require.Contains(t, reason, "nesting deeper than 500")
		require.Less(t, len(reason), 1000)
	}
	deep := &payloadOrder{}
	for range 6_000 {
		deep = &payloadOrder{Self: deep}
	}
	_, reason := rebase.EncodePayload(deep, 0)
	require.Contains(t, reason, "nesting deeper than 500")
	var list any = make(chan int)
	for range 6_000 {
		list = []any{list}
	}
	_, reason = rebase.EncodePayload(list, 0)
	require.Regexp(t, `^\$….*\[0\] is nested too deeply$`, reason)
}

// J21, Q29: over-size names both sizes; 255 MiB is the end whatever the cap; exponents count as they are printed,
// because 81 kB of 1e131071 can be inserted but never be read back.
func TestOverSizeIsRefused(t *testing.T) {
	t.Parallel()
	_, reason := rebase.EncodePayload(strings.Repeat("x", 98), 100)
	require.Empty(t, reason)
	_, reason = rebase.EncodePayload(strings.Repeat("x", 99), 100)
	require.Equal(t, "101 bytes, over the limit of 100", reason)
	for _, limit := range []int{0, -1, math.MaxInt} {
		_, reason = rebase.EncodePayload(make(json.RawMessage, 255<<20+1), limit)
		require.Equal(t, "267386881 bytes, over the limit of 267386880", reason)
	}
	_, reason = rebase.EncodePayload(json.RawMessage(`[1e400,-0e-1,1e2]`), 412)
	require.Equal(t, "413 bytes with its exponents written out, as PostgreSQL does, over the limit of 412", reason)
	_, reason = rebase.EncodePayload(json.RawMessage(`[1e400,-0e-1,1e2]`), 413)
	require.Empty(t, reason)
	many := json.RawMessage("[" + strings.Repeat("1e131071,", 9000) + "1]")
	_, reason = rebase.EncodePayload(many, 0)
	require.Contains(t, reason, "exponents written out")
	_, reason = rebase.EncodePayload(json.RawMessage("["+strings.Repeat("0,", 13<<20)+"0]"), 0)
	require.Equal(t, "13631490 values and keys are more than one jsonb can hold", reason)
}

// The check runs on every enqueue, so it allocates nothing.
func TestCheckingAPayloadDoesNotAllocate(t *testing.T) {
	raw := json.RawMessage(`{"a":["é\n\ud83d\ude00",1.5e-3,-0,true,false,null,{}],"b":{"c":[]}}`)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = rebase.EncodePayload(&raw, 1<<20) }))
}

// J21: task names, keys and lanes get the same care.
func TestTextIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 128) // 256 bytes
	for _, c := range []struct {
		check   func(string) string
		in, out string
	}{
		{rebase.CheckTask, "", "empty"},
		{rebase.CheckTask, "send-welcome é\ufffd", ""},
		{rebase.CheckTask, long[:254] + "x", ""},
		{rebase.CheckTask, long, "256 bytes, over the limit of 255"},
		{rebase.CheckTask, "a\x00", "NUL character at byte 1"},
		{rebase.CheckTask, "\ufffd\xed\xa0\x80", "invalid UTF-8 at byte 3"},
		{rebase.CheckTask, "a\n", "control character at byte 1"},
		{rebase.CheckTask, "ab\u0085", "control character at byte 2"},
		{rebase.CheckLane, "", ""},
		{rebase.CheckLane, "tenant\t7", ""},
		{rebase.CheckLane, long, "256 bytes, over the limit of 255"},
		{rebase.CheckLane, "\xff", "invalid UTF-8 at byte 0"},
		{func(s string) string { return rebase.CheckText(s, 0) }, strings.Repeat(long, 5000), ""},
		{func(s string) string { return rebase.CheckText(s, -1) }, "ok\x00", "NUL character at byte 2"},
	} {
		require.Equal(t, c.out, c.check(c.in), "%.40q", c.in)
	}
}

// J21: meta is a small JSON object of texts, nil when there is none.
func TestMetaIsEncodedOrRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in        map[string]string
		raw, want string
	}{
		{nil, "", ""},
		{map[string]string{}, "", ""},
		{map[string]string{"b": "", "a": "é\n"}, `{"a":"é\n","b":""}`, ""},
		{map[string]string{"": "x"}, "", "a key is empty"},
		{map[string]string{"k\x00": "x", "l": "\xff"}, "", `key "k\x00": NUL character at byte 1`},
		{map[string]string{"k": "a\xff"}, "", `value of key "k": invalid UTF-8 at byte 1`},
		{map[string]string{"k": strings.Repeat("x", 16<<10)}, "", "16385 bytes of keys and values, over the limit of 16384"},
	} {
		raw, reason := rebase.EncodeMeta(c.in)
		require.Equal(t, c.want, reason)
		require.Equal(t, c.raw, string(raw))
		require.Equal(t, c.raw == "", raw == nil)
	}
}

// contextT is a *testing.T or a *rapid.T.
type contextT interface {
	require.TestingT
	Context() context.Context
}

// requireAgreement requires one verdict of the check and the server on raw, and an equal value back.
func requireAgreement(t contextT, pool *pgxpool.Pool, raw string) {
	_, reason := rebase.EncodePayload(json.RawMessage(raw), 0)
	var back string
	err := pool.QueryRow(t.Context(), `select ($1::jsonb)::text`, []byte(raw)).Scan(&back)
	if reason != "" {
		_, refused := errors.AsType[*pgconn.PgError](err)
		require.True(t, refused, "refused here (%s), but the server says %v: %.80q", reason, err, raw)
		return
	}
	require.NoError(t, err, "%.80q", raw)
	require.Equal(t, plainJSON(t, raw), plainJSON(t, back))
}

// plainJSON decodes JSON and writes its numbers in one form: digits without zeros around them, and a power of ten.
func plainJSON(t require.TestingT, raw string) any {
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return plainNumbers(v)
}

func plainNumbers(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	case json.Number:
		mantissa, e, _ := strings.Cut(strings.ToLower(v.String()), "e")
		power, _ := strconv.Atoi(e)
		digits, negative := strings.CutPrefix(mantissa, "-")
		whole, fraction, _ := strings.Cut(digits, ".")
		digits = strings.TrimLeft(whole+fraction, "0")
		power -= len(fraction)
		power += len(digits) - len(strings.TrimRight(digits, "0"))
		if digits = strings.TrimRight(digits, "0"); digits == "" {
			return "number 0"
		}
		return fmt.Sprintf("number %t %s %d", negative, digits, power)
	}
	return v
}

// J21, Q29, Q31: let through here ⇔ taken by the server, and what comes back is equal.
func TestTheCheckAndTheServerAgree(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	for _, raw := range payloadSamples() {
		requireAgreement(t, pool, raw)
	}
	for _, v := range []any{nil, payloadOrder{At: time.Now(), Text: "<\u2028\ufffd\\u0000"}, map[string]any{"a\t": []any{1.5e300, math.Copysign(0, -1), "\x01\x7f"}}} {
		raw, reason := rebase.EncodePayload(v, 0)
		require.Empty(t, reason)
		requireAgreement(t, pool, string(raw))
	}
}

// J21: the same for documents that nobody thought of, made of pieces that lie near the lines.
func TestTheCheckAndTheServerAgreeOnRandomDocuments(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	rapid.Check(t, func(t *rapid.T) {
		for _, raw := range rapid.SliceOfN(randomDocument(3), 10, 10).Draw(t, "documents") {
			requireAgreement(t, pool, raw)
		}
	})
}
