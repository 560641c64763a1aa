package rebase_test

// Samples, fuzzing and speed of what judges payloads and texts: it never panics, and what it lets through keeps its
// promise.

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rebasejobs/rebase"
)

// payloadSamples are raw payloads on both sides of each line that jsonb draws.
func payloadSamples() []string {
	list := []string{
		`1e131071`, `1e131072`, `9.99e131071`, `0.001e131074`, `0.001e131075`, `1e-16383`, `1e-16384`, `10e-16384`,
		`1.5e-16382`, `1.5e-16383`, `0e99999999`, `0e1073741822`, `0e1073741824`, `0e-16383`, `0e-16384`, `0.0e-16382`,
		`0.0e-16383`, `-0e-16384`, `0e99999999999999999999999`, `1e99999999999`, `1e-99999999999`, `-0`, `-0.0`, `-1e400`, `1E+05`, `1e400`,
		`9007199254740993`, `1.10`, `01`, `1.`, `.5`, `+1`, `-`, `1e`, `1e+`, `0x1`, `NaN`, `Infinity`, `- 1`,
		`""`, `"\u0000"`, `"\\u0000"`, `"\\\u0000"`, `{"\u0000":1}`, `"\ud800"`, `"\ud800x"`, `"\ud800\n"`, `"\ud800\ud800"`, `"\udc00"`, `"\udc00\ud800"`,
		`"\uD83D\uDE00"`, `{"\ud800":1}`, `"\ufffd"`, `"\uFFFF"`, `"\b\f\n\r\t\/\"\\"`, `"\x"`, `"\u12g4"`, `"\u123"`, `"\U1234"`, `"\`, `"\u`,
		"\"a\tb\"", "\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "\"€\U0010ffff\ufffe\"",
		"\ufeff1", ``, ` `, `{}`, `[]`, `[,]`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1,"a":2}`, `{a:1}`, `{1:2}`, `'a'`, `[1 2]`, `1 2`, `]`, `{]`, `[}`, `[`, `{`, `{"a":1`,
		`[{},[1]]`, `{"a":[],"b":{"c":1}}`, `[{"a":1},[2}]`, "\"12345678\x0112345678\"",
		`true`, `false`, `null`, `True`, `nul`, `nulll`, "\t\n\r [ 1 , { \"a\" : null } ] ", "\v1", "\u00a01", `/**/1`,
	}
	nines, zeros := strings.Repeat("9", 131_072), strings.Repeat("0", 16_383)
	return append(list,
		nines, "-"+nines, nines+"9", "0."+zeros, "0.0"+zeros, "1."+zeros+"0", "0.0"+zeros+"1e1", "1.0"+zeros+"e1", nines+"."+zeros,
		"1"+strings.Repeat("0", 131_072)+"e-1", "0."+strings.Repeat("0", 20_000)+"1e20001", strings.Repeat("[", 500)+strings.Repeat("]", 500))
}

// randomDocument generates JSON that is mostly well-formed, depth levels deep.
func randomDocument(depth int) *rapid.Generator[string] {
	text := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{
		"a", "é", "€", "\U0001f600", "12345678", `\\`, `\"`, `\n`, `\/`, `u0000`, `\u0001`, `\u00e9`, `\ud83d\ude00`, `\ufffd`, "\ufffd", "\x7f",
		`\ud83d`, `\ude00`, `\u0000`, `\`, "\x01", "\xff", "\xe2\x82", `"`,
	}), 0, 5), func(parts []string) string { return `"` + strings.Join(parts, "") + `"` })
	number := rapid.Custom(func(t *rapid.T) string {
		s := rapid.SampledFrom([]string{"", "", "-"}).Draw(t, "sign") + rapid.StringMatching(`0|[1-9][0-9]{0,6}`).Draw(t, "whole")
		s += rapid.SampledFrom([]string{"", ".5", ".0", ".001", ".000000100"}).Draw(t, "fraction")
		if rapid.Bool().Draw(t, "exponent") {
			near := rapid.SampledFrom([]int{0, 400, 131_072, -16_383}).Draw(t, "near")
			s += "e" + strconv.Itoa(near+rapid.IntRange(-9, 9).Draw(t, "off"))
		}
		return s
	})
	word := rapid.SampledFrom([]string{"true", "false", "null", " 1\n", "{}", "[ ]", "", "nul", "[1,]"})
	if depth == 0 {
		return rapid.OneOf(text, number, number, word)
	}
	list := rapid.Map(rapid.SliceOfN(randomDocument(depth-1), 0, 3), func(l []string) string { return "[" + strings.Join(l, ", ") + "]" })
	object := rapid.Custom(func(t *rapid.T) string {
		return "{" + text.Draw(t, "key") + ":" + randomDocument(depth-1).Draw(t, "value") + `,"a" :` + randomDocument(0).Draw(t, "a") + "}"
	})
	return rapid.OneOf(text, number, list, object)
}

// J21: bytes that are let through are JSON for everybody, and hold nothing that jsonb refuses; a Go string is let
// through exactly if it is UTF-8 without NUL.
func FuzzPayload(f *testing.F) {
	for _, s := range payloadSamples() {
		if len(s) < 1000 {
			f.Add([]byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, reason := rebase.EncodePayload(json.RawMessage(b), 0)
		if reason == "" {
			require.True(t, json.Valid(raw))
			require.True(t, utf8.Valid(raw))
			require.Equal(t, b, []byte(raw))
			var v any
			if json.Unmarshal(raw, &v) == nil { // numbers beyond float64 don't fit any
				require.NotContains(t, fmt.Sprint(v), "\x00")
				_, reason = rebase.EncodePayload(v, 0)
				require.Empty(t, reason, "decoded and encoded again")
			}
			_, reason = rebase.EncodePayload(map[string]any{"k": json.RawMessage(b)}, 0)
			if !strings.Contains(reason, "nesting deeper") {
				require.Empty(t, reason, "the same bytes inside a value")
			}
		} else {
			require.True(t, utf8.ValidString(reason))
		}
		_, reason = rebase.EncodePayload([]any{string(b), map[string]int{string(b): 1}}, 0)
		require.Equal(t, utf8.Valid(b) && !strings.Contains(string(b), "\x00"), reason == "", reason)
	})
}

// J20, Q30: whatever goes in, the text can be stored, is no longer than asked, and is whole or says that it was cut.
func FuzzStorable(f *testing.F) {
	f.Add("", 0)
	f.Add("a\x00b\xff", 3)
	f.Add(strings.Repeat("é", 100), 40)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		out := rebase.Storable(s, limit)
		n := utf8.RuneCountInString(s)
		require.Empty(t, rebase.CheckText(out, 0))
		require.LessOrEqual(t, utf8.RuneCountInString(out), max(0, limit))
		if n <= limit {
			require.Equal(t, n, utf8.RuneCountInString(out))
			require.Equal(t, rebase.CheckText(s, 0) == "", s == out)
		} else if limit >= 60 {
			require.True(t, strings.HasSuffix(out, fmt.Sprintf("… (cut, %d bytes in all)", len(s))), out)
		}
		require.Empty(t, rebase.CheckText(rebase.ErrorText(errors.New(s)), 0))
	})
}

func BenchmarkCheckPayload(b *testing.B) {
	type item struct {
		ID    int      `json:"id"`
		Name  string   `json:"name"`
		Price float64  `json:"price"`
		Tags  []string `json:"tags"`
		OK    bool     `json:"ok"`
	}
	var items []item
	for i := range 20 {
		items = append(items, item{i * 1_234_567, fmt.Sprint("customer ", i), 12.34 * float64(i), []string{"new", "paid by card"}, i%2 == 0})
	}
	structs, err := json.Marshal(items)
	require.NoError(b, err)
	for _, c := range []struct {
		name string
		raw  json.RawMessage
	}{
		{"structs", structs},
		{"ascii", json.RawMessage(`["` + strings.Repeat("The quick brown fox. ", 1000) + `"]`)},
		{"cyrillic", json.RawMessage(`["` + strings.Repeat("Съешь же ещё этих мягких булок. ", 500) + `"]`)},
		{"chinese", json.RawMessage(`["` + strings.Repeat("敏捷的棕色狐狸跳过", 500) + `"]`)},
		{"numbers", json.RawMessage(`[` + strings.Repeat("1234567.25,", 1000) + `1]`)},
		{"escapes", json.RawMessage(`["` + strings.Repeat(`\"a\":\"b\",`, 1000) + `"]`)},
		{"small", json.RawMessage(`{"user_id":12345,"template":"welcome"}`)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, reason := rebase.EncodePayload(&c.raw, 0); reason != "" {
					b.Fatal(reason)
				}
			}
		})
	}
}
