package rebase

// json.Marshal writes U+FFFD for a byte that isn't UTF-8 and says nothing. Where its output holds one, the value itself
// is walked as encoding/json walks it, to tell a lost byte from a genuine U+FFFD or an escape that a RawMessage brought.
// The invariant: every string that was encoded is looked at; one that was not may be too, so an error is on the strict
// side.

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// hiddenFault looks in v for what json.Marshal doesn't report, or not with its place: strings with invalid UTF-8 (Marshal
// writes U+FFFD for each bad byte, as the escape \ufffd or, built with GOEXPERIMENT=jsonv2, as itself), NaN, channels.
// A json.RawMessage may well hold the escape, so the output alone can't tell; the value can. It looks at fields that
// a field of the same name shadows, too: that errs on the strict side.
// What a MarshalJSON made can't be looked into: an escaped \ufffd in it is refused, unless the value is a byte slice
// and hands out its own bytes, as RawMessage does.
func hiddenFault(v any) (reason string) {
	defer func() {
		if r := recover(); r != nil {
			reason = storable("encoding it panicked: "+panicText(r), maxReason)
		}
	}()
	w := valueWalk{seen: map[walkVisit]bool{}}
	why := w.value(reflect.ValueOf(v), 0)
	if why == "" {
		return ""
	}
	if over := len(why) - maxReason; over > 0 { // the end of a long path tells more than its beginning
		why = "…" + strings.ToValidUTF8(why[over:], "")
	}
	return "$" + why
}

// valueWalk goes through a value as encoding/json does. Its methods return "" or the rest of the path and what is wrong.
type valueWalk struct{ seen map[walkVisit]bool }

// walkVisit is a pointer, map or slice that needs no second look; it also ends cycles.
type walkVisit struct {
	p   uintptr
	len int
	t   reflect.Type
}

// value judges one value by the first of these that applies, in the order of encoding/json: its methods, its kind. What
// json.Marshal refuses by itself is named here, too, because the walk knows the place.
func (w *valueWalk) value(v reflect.Value, depth int) string {
	if !v.IsValid() {
		return ""
	}
	if depth > 10*maxNesting { // a list of pointers or interfaces, perhaps; JSON of legal depth hardly does
		return " is nested too deeply"
	}
	if why, done := selfEncoded(v); done {
		return why
	}
	switch v.Kind() {
	case reflect.String:
		return badUTF8([]byte(v.String()))
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Sprintf(" is %v, which JSON can't hold", f)
		}
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return fmt.Sprintf(" is a %s, which JSON can't hold", v.Type())
	case reflect.Struct:
		return w.fields(v, depth)
	case reflect.Interface:
		return w.value(v.Elem(), depth+1)
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Array:
		return w.contents(v, depth)
	}
	return ""
}

// contents goes into what holds other values. Each pointer, map and slice is entered once: what was found good there
// stays good, and a value that is shared a thousand times costs no more than one.
func (w *valueWalk) contents(v reflect.Value, depth int) string {
	if v.Kind() != reflect.Array {
		here := walkVisit{p: v.Pointer(), t: v.Type()}
		if v.Kind() == reflect.Slice {
			here.len = v.Len()
		}
		if v.IsNil() || w.seen[here] {
			return ""
		}
		w.seen[here] = true
	}
	switch v.Kind() {
	case reflect.Pointer:
		return w.value(v.Elem(), depth+1)
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if why := badMapKey(it.Key()); why != "" {
				return why
			}
			if why := w.value(it.Value(), depth+1); why != "" {
				return fmt.Sprintf("[%.60q]%s", fmt.Sprint(it.Key()), why)
			}
		}
	default:
		if v.Type().Elem() == reflect.TypeFor[byte]() {
			break // numbers or base64
		}
		for i := range v.Len() {
			if why := w.value(v.Index(i), depth+1); why != "" {
				return "[" + strconv.Itoa(i) + "]" + why
			}
		}
	}
	return ""
}

// fields looks at the fields that can be encoded. An embedded struct without a name in its tag gives its own fields to
// the outer one, whatever methods it has, and even if its type isn't exported.
func (w *valueWalk) fields(v reflect.Value, depth int) string {
	for f, fv := range v.Fields() {
		tag := f.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		embedded := f.Anonymous && t.Kind() == reflect.Struct
		if tag == "-" || !f.IsExported() && !embedded {
			continue
		}
		var why string
		if embedded && name == "" {
			why = w.embedded(fv, depth+1)
		} else {
			why = w.value(fv, depth+1)
		}
		if why != "" {
			return "." + f.Name + why
		}
	}
	return ""
}

// embedded is fields of a struct or pointer to one. A pointer is remembered apart (length -1), because elsewhere the
// same one is judged by its methods.
func (w *valueWalk) embedded(v reflect.Value, depth int) string {
	if v.Kind() == reflect.Pointer {
		here := walkVisit{p: v.Pointer(), len: -1, t: v.Type()}
		if v.IsNil() || w.seen[here] {
			return ""
		}
		w.seen[here] = true
		v = v.Elem()
	}
	return w.fields(v, depth)
}

// selfEncoded judges a value that encodes itself; done is false for any other. The methods are called once more than
// json.Marshal did.
func selfEncoded(v reflect.Value) (why string, done bool) {
	if !v.CanInterface() || v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer && v.IsNil() {
		return "", false
	}
	own := reflect.Indirect(v)
	if v.Kind() != reflect.Pointer && v.CanAddr() {
		v = v.Addr()
	}
	switch m := v.Interface().(type) {
	case json.Marshaler:
		out, err := m.MarshalJSON()
		if err != nil {
			return ": " + storable(errorText(err), maxReason/2), true
		}
		c := jsonCheck{b: out}
		if _, fault := c.run(); fault != "" {
			return ": " + fault, true
		}
		if c.escaped && !(own.Kind() == reflect.Slice && own.Type().Elem().Kind() == reflect.Uint8 && bytes.Equal(own.Bytes(), out)) {
			return `: its MarshalJSON wrote \ufffd, which can't be told from invalid UTF-8 that was replaced`, true
		}
		return "", true
	case encoding.TextMarshaler:
		out, err := m.MarshalText()
		if err != nil {
			return ": " + storable(errorText(err), maxReason/2), true
		}
		return badUTF8(out), true
	}
	return "", false
}

// badMapKey judges a key by what encoding/json makes of it: the string that it is, else its MarshalText.
func badMapKey(k reflect.Value) string {
	text := k.String() // "<T Value>" for what isn't a string
	if m, ok := k.Interface().(encoding.TextMarshaler); ok && k.Kind() != reflect.String && !(k.Kind() == reflect.Pointer && k.IsNil()) {
		out, err := m.MarshalText()
		if err != nil {
			return " has a key with the error " + storable(errorText(err), maxReason/2)
		}
		text = string(out)
	}
	if !utf8.ValidString(text) {
		return " has a key with " + notUTF8
	}
	return ""
}

func badUTF8(text []byte) string {
	if utf8.Valid(text) {
		return ""
	}
	return " holds " + notUTF8
}
