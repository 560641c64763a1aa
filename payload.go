package rebase

// A payload is checked here before any SQL is sent, because what the server refuses inside the caller's transaction
// aborts that transaction, and what json.Marshal mends in silence is lost for good. The invariant: every byte
// sequence that encodePayload lets through is taken by $1::jsonb, can be read back, and comes back equal.
// Bytes go through one pass without allocation (jsonCheck). Only where they leave a doubt, a U+FFFD that may stand
// for a byte that was lost, is the Go value itself walked (see hiddenFault). Reasons tell what and where, not the values.

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxNesting  = 500       // arrays and objects in each other; far below the server's stack and encoding/json's 10,000
	maxJSONB    = 255 << 20 // bytes of text; one jsonb ends at 2^28-1 bytes, whatever MaxPayload says
	maxDigits   = 131072    // of a numeric, before its decimal point
	maxScale    = 16383     // of a numeric, behind it
	maxExponent = 1<<30 - 2 // of a literal; PostgreSQL 15 refuses more even for 0e…
	maxName     = 255       // bytes of a task or a lane, as the table's checks have it
	maxMeta     = 16 << 10  // bytes of all meta keys and values of a job
	maxReason   = 500       // characters of the user's own error or a path in a reason
)

// encodePayload turns v into the JSON that is stored, or says why it can't be. limit is the cap in bytes; 0 or less:
// none but jsonb's own. A json.RawMessage isn't copied: it must stay as it is until the statement has been sent.
func encodePayload(v any, limit int) (raw []byte, reason string) {
	raw, own, reason := payloadBytes(v)
	// The length comes first: what is too long anyway need not be read.
	if reason == "" {
		reason = overSize(int64(len(raw)), limit, "")
	}
	if reason != "" {
		return nil, reason
	}
	c := jsonCheck{b: raw}
	if at, why := c.run(); why != "" {
		return nil, fmt.Sprintf("%s at byte %d (%s)", why, at, pathTo(raw[:at]))
	}
	// jsonb stores 1e131071 in ten bytes and prints it as 131,072: 81 kB of them could be inserted and never be read
	// again. So the cap holds for what comes back.
	if reason = overSize(int64(len(raw))+c.grown, limit, " with its exponents written out, as PostgreSQL does"); reason != "" {
		return nil, reason
	}
	// An upper bound of the binary form: at most 19 bytes of headers and padding for each value and key.
	if int64(len(raw))+19*int64(c.tokens) > 1<<28-1 {
		return nil, fmt.Sprintf("%d values and keys are more than one jsonb can hold", c.tokens)
	}
	if c.replacement && !own {
		if reason = hiddenFault(v); reason != "" {
			return nil, reason
		}
	}
	return raw, ""
}

// payloadBytes is json.Marshal, except that a RawMessage is taken as it is (own) and a []byte is not taken: whoever
// passes one means the JSON in it, and the handler would get a base64 string.
func payloadBytes(v any) (raw []byte, own bool, reason string) {
	switch p := v.(type) {
	case json.RawMessage:
		raw, own = p, true
	case *json.RawMessage:
		if own = true; p != nil {
			raw = *p
		}
	default:
		if t := base64Type(reflect.TypeOf(v)); t != "" {
			return nil, false, "a " + t + " would be stored as base64; use json.RawMessage"
		}
		raw, reason = marshalPayload(v)
		return raw, false, reason
	}
	if raw == nil { // as json.Marshal has it
		raw = []byte("null")
	}
	return raw, own, ""
}

// base64Type names the byte slice type that t is or points to, "" for any other type. A byte slice inside a struct
// is left alone: there base64 is what the handler's json.Unmarshal expects.
func base64Type(t reflect.Type) string {
	holder := t // the type whose methods count
	for t != nil && t.Kind() == reflect.Pointer {
		holder, t = t, t.Elem()
	}
	if t == nil || t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Uint8 {
		return ""
	}
	marshaler, text := reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()
	for _, p := range []reflect.Type{holder, reflect.PointerTo(t.Elem())} {
		if p.Implements(marshaler) || p.Implements(text) {
			return ""
		}
	}
	if t == reflect.TypeFor[[]byte]() {
		return "[]byte" // reflect would say []uint8
	}
	return t.String()
}

// marshalPayload is json.Marshal that doesn't let a panic of the value's own methods out: an enqueue stands in the
// middle of the caller's transaction, and a bad value is an error there like any other.
func marshalPayload(v any) (raw []byte, reason string) {
	defer func() {
		if r := recover(); r != nil {
			raw, reason = nil, storable("encoding it panicked: "+panicText(r), maxReason)
		}
	}()
	raw, err := json.Marshal(v)
	if err == nil {
		return raw, ""
	}
	_, badType := errors.AsType[*json.UnsupportedTypeError](err)
	_, badValue := errors.AsType[*json.UnsupportedValueError](err)
	if badType || badValue { // these errors don't say where
		if reason := hiddenFault(v); reason != "" {
			return nil, reason
		}
	}
	return nil, storable(errorText(err), maxReason)
}

// overSize compares a size with its cap. limit is the user's; jsonb's own stands behind it, however high that is set.
func overSize(size int64, limit int, how string) string {
	if limit <= 0 || limit > maxJSONB {
		limit = maxJSONB
	}
	if size <= int64(limit) {
		return ""
	}
	return fmt.Sprintf("%d bytes%s, over the limit of %d", size, how, limit)
}

// pathTo writes where in the JSON its valid beginning b breaks off, such as $["users"][3]["name"]: in a payload that
// json.Marshal wrote the byte's number alone tells its author nothing. It runs after a fault only, so a second reading
// costs nothing that matters, and may rely on it that brackets match and strings are closed, the last one perhaps not.
func pathTo(b []byte) string {
	type level struct {
		key   []byte // the last one read, nil before the next
		index int    // -1 in an object
	}
	var open []level
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{':
			open = append(open, level{index: -1})
		case '[':
			open = append(open, level{})
		case '}', ']':
			open = open[:len(open)-1]
		case ',':
			if top := &open[len(open)-1]; top.index < 0 {
				top.key = nil
			} else {
				top.index++
			}
		case '"':
			from := i
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if n := len(open); n > 0 && open[n-1].index < 0 && open[n-1].key == nil && i < len(b) {
				open[n-1].key = b[from : i+1]
			}
		}
	}
	var path strings.Builder
	path.WriteString("$")
	for _, l := range open {
		switch {
		case l.index >= 0:
			path.WriteString("[" + strconv.Itoa(l.index) + "]")
		case l.key != nil:
			path.WriteString("[" + storable(string(l.key), 60) + "]")
		}
	}
	return storable(path.String(), maxReason)
}

// checkText says why s can't be stored as text, "" if it can. It is never mended, unlike an error's text: a name or a
// key that was changed in silence would be another one. No more than limit bytes; 0 or less: any number.
func checkText(s string, limit int) (reason string) {
	if limit > 0 && len(s) > limit {
		return overSize(int64(len(s)), limit, "")
	}
	if i := strings.IndexByte(s, 0); i >= 0 {
		return fmt.Sprintf("NUL character at byte %d", i)
	}
	if i := invalidAt(s); i >= 0 {
		return fmt.Sprintf("%s at byte %d", notUTF8, i)
	}
	return ""
}

// invalidAt is the place of the first byte that isn't UTF-8, -1 if all are.
func invalidAt(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd") {
			return i
		}
	}
	return -1
}

// checkTask is stricter than checkText: a task's name is read in logs and typed in SQL, so it can't be empty and has
// no control characters.
func checkTask(task string) (reason string) {
	if task == "" {
		return "empty"
	}
	if reason = checkText(task, maxName); reason != "" {
		return reason
	}
	if i := strings.IndexFunc(task, unicode.IsControl); i >= 0 {
		return fmt.Sprintf("control character at byte %d", i)
	}
	return ""
}

// checkLane takes the empty lane, too: it is that of all jobs without one.
func checkLane(lane string) (reason string) { return checkText(lane, maxName) }

// encodeMeta is the JSON of a job's meta, nil for none. The cap counts the bytes of keys and values, which the caller
// can reckon, not quotes and escapes. Of several faults that of the first key in order is told, so that it is the same
// at each try.
func encodeMeta(m map[string]string) (raw []byte, reason string) {
	if len(m) == 0 {
		return nil, ""
	}
	size := 0
	for key, value := range m {
		size += len(key) + len(value)
	}
	if reason = overSize(int64(size), maxMeta, " of keys and values"); reason != "" {
		return nil, reason
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "" {
			return nil, "a key is empty"
		}
		if reason = checkText(key, 0); reason != "" {
			return nil, fmt.Sprintf("key %.60q: %s", key, reason)
		}
		if reason = checkText(m[key], 0); reason != "" {
			return nil, fmt.Sprintf("value of key %.60q: %s", key, reason)
		}
	}
	return marshalPayload(m)
}
