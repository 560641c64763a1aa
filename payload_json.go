package rebase

// One pass over the bytes of a payload, without allocation: is this JSON by RFC 8259, and does jsonb take it? jsonb is
// narrower: no NUL, no lone surrogates, only numbers that a numeric can hold. The invariant: refused here exactly if
// the server would refuse it, but for nesting, which ends at 500 here.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// jsonCheck reads JSON once, by RFC 8259 and by what jsonb takes of it. Its methods take the index of the next byte
// and return the one behind what they read, or where the fault is and what it is. It is a loop over bits, not a
// recursion or a slice of levels, so that it neither allocates nor needs stack.
type jsonCheck struct {
	b           []byte
	nest        [maxNesting/64 + 1]uint64 // one bit a level: set for an object
	depth       int
	tokens      int   // values and keys seen
	grown       int64 // bytes that exponents add when they are printed
	replacement bool  // a U+FFFD was seen, as itself or escaped, perhaps twice
	escaped     bool  // it was seen as a plain escape
}

// The reasons that more than one place gives.
const (
	endsEarly     = "the JSON ends early"
	badEscape     = "unknown escape"
	loneSurrogate = "lone surrogate"
	notUTF8       = "invalid UTF-8"
	badNumber     = "malformed number"
	bigNumber     = "a number that PostgreSQL's numeric can't hold (131072 digits before the point, 16383 after it)"
)

// run returns "" or why the bytes are refused, and where.
func (c *jsonCheck) run() (at int, why string) {
	for i := 0; ; {
		if i, why = c.value(i); why != "" {
			return i, why
		}
		var more bool
		if i, more, why = c.after(i); why != "" || !more {
			return i, why
		}
	}
}

// value reads one scalar or empty container, after any containers (and a first key of each) that open before it.
func (c *jsonCheck) value(i int) (int, string) {
	for {
		if i = c.space(i); i == len(c.b) {
			return i, endsEarly
		}
		c.tokens++
		ch := c.b[i]
		switch {
		case ch == '"':
			return c.str(i + 1)
		case ch != '{' && ch != '[':
			return c.scalar(i)
		case c.depth == maxNesting:
			return i, "nesting deeper than " + strconv.Itoa(maxNesting)
		}
		bit := uint64(1) << (c.depth % 64)
		c.nest[c.depth/64] &^= bit
		if ch == '{' {
			c.nest[c.depth/64] |= bit
		}
		c.depth++
		i = c.space(i + 1)
		if i < len(c.b) && c.b[i] == ch+2 { // the codes of '}' and ']'
			c.depth--
			return i + 1, ""
		}
		if ch == '{' {
			var why string
			if i, why = c.key(i); why != "" {
				return i, why
			}
		}
	}
}

// after reads what follows a value: closings, and the comma (and key) before the next one. more is false at the end.
func (c *jsonCheck) after(i int) (at int, more bool, why string) {
	for i = c.space(i); c.depth > 0; i = c.space(i + 1) {
		if i == len(c.b) {
			return i, false, endsEarly
		}
		top := c.depth - 1
		object := c.nest[top/64]>>(top%64)&1 == 1
		switch ch := c.b[i]; {
		case ch == ',' && object:
			i, why = c.key(i + 1)
			return i, true, why
		case ch == ',':
			return i + 1, true, ""
		case ch == '}' && object, ch == ']' && !object:
			c.depth--
		default:
			return i, false, unexpectedByte(ch)
		}
	}
	if i < len(c.b) {
		return i, false, "something follows the JSON value"
	}
	return i, false, ""
}

// key reads a key and its colon. A key counts as a token like a value, since jsonb keeps a header for each of them.
func (c *jsonCheck) key(i int) (int, string) {
	c.tokens++
	if i = c.space(i); i == len(c.b) {
		return i, endsEarly
	} else if c.b[i] != '"' {
		return i, unexpectedByte(c.b[i])
	}
	i, why := c.str(i + 1)
	if why != "" {
		return i, why
	}
	if i = c.space(i); i == len(c.b) {
		return i, endsEarly
	} else if c.b[i] != ':' {
		return i, unexpectedByte(c.b[i])
	}
	return i + 1, ""
}

// space skips JSON's white space. The first comparison alone decides for compact JSON, which is nearly all there is.
func (c *jsonCheck) space(i int) int {
	for i < len(c.b) && c.b[i] <= ' ' && (c.b[i] == ' ' || c.b[i] == '\n' || c.b[i] == '\r' || c.b[i] == '\t') {
		i++
	}
	return i
}

// unexpectedByte names a byte. One outside ASCII is perhaps half a character, so it is given as a number: a reason is
// text that may be stored and logged.
func unexpectedByte(ch byte) string {
	if ch < ' ' || ch >= utf8.RuneSelf {
		return fmt.Sprintf("unexpected byte 0x%02x", ch)
	}
	return fmt.Sprintf("unexpected %q", ch)
}

// str reads a string from behind its opening quote, eight bytes at a time while nothing in them is special. Bytes
// above ASCII only leave a trace in high; whether they are UTF-8 is judged once, at the end of the string.
func (c *jsonCheck) str(start int) (int, string) {
	b, high := c.b, uint64(0)
	for i := start; i < len(b); {
		if len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			m := special(w)
			if m == 0 {
				high |= w
				i += 8
				continue
			}
			n := bits.TrailingZeros64(m) &^ 7
			high |= w & (1<<n - 1)
			i += n / 8
		}
		switch ch := b[i]; {
		case ch == '"':
			if high&highBits == 0 {
				return i + 1, ""
			}
			return c.wide(start, i)
		case ch == '\\' && i+1 < len(b) && plainEscape[b[i+1]]:
			i += 2
		case ch == '\\':
			var why string
			if i, why = c.escape(i); why != "" {
				return i, why
			}
		case ch < ' ':
			return i, "unescaped control character in a string"
		default:
			high |= uint64(ch)
			i++
		}
	}
	return len(b), endsEarly
}

// wide judges the string in b[start:end], which isn't all ASCII.
func (c *jsonCheck) wide(start, end int) (int, string) {
	text := c.b[start:end]
	if !utf8.Valid(text) {
		return start + invalidAt(string(text)), notUTF8
	}
	c.replacement = c.replacement || bytes.Contains(text, []byte("\ufffd"))
	return end + 1, ""
}

const eachByte, highBits = 0x0101010101010101, 0x8080808080808080

// special sets the high bit of each byte of w that ends a plain run: '"', '\' and below 0x20. A borrow can set one
// too many, but only above a right one, and only the lowest counts.
func special(w uint64) uint64 {
	quote, slash := w^(eachByte*'"'), w^(eachByte*'\\')
	return ((quote-eachByte)&^quote | (slash-eachByte)&^slash | (w-eachByte*' ')&^w) & highBits
}

// plainEscape has the bytes that may follow a backslash and need no second look.
var plainEscape = [256]bool{'"': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escape reads an escape that isn't plain. NUL is refused however it is written, for PostgreSQL's text can't hold it;
// behind an escaped backslash u0000 is five letters. Half a surrogate pair is no character: the server refuses it, and
// json.Unmarshal would have made U+FFFD of it.
func (c *jsonCheck) escape(i int) (int, string) {
	b := c.b
	if i+1 >= len(b) {
		return len(b), endsEarly
	}
	if b[i+1] == '\\' { // a string under the tag option ",string" is encoded twice, and so is its \ufffd
		c.replacement = c.replacement || hex4(b, i+2) == utf8.RuneError
		return i + 2, ""
	}
	switch r := hex4(b, i+1); {
	case r < 0:
		return i, badEscape
	case r == 0:
		return i, `NUL character (\u0000)`
	case r >= 0xdc00 && r < 0xe000:
		return i, loneSurrogate
	case r >= 0xd800 && r < 0xdc00:
		if i+6 >= len(b) || b[i+6] != '\\' {
			return i, loneSurrogate
		}
		if low := hex4(b, i+7); low < 0xdc00 || low >= 0xe000 {
			return i, loneSurrogate
		}
		return i + 12, ""
	case r == utf8.RuneError:
		c.replacement, c.escaped = true, true
	}
	return i + 6, ""
}

// hex4 is the value of the "u" and four hexadecimal digits at i, -1 if they aren't there.
func hex4(b []byte, i int) (r rune) {
	if len(b)-i < 5 || b[i] != 'u' {
		return -1
	}
	for _, ch := range b[i+1 : i+5] {
		switch {
		case ch >= '0' && ch <= '9':
			r = r<<4 | rune(ch-'0')
		case ch|0x20 >= 'a' && ch|0x20 <= 'f':
			r = r<<4 | rune(ch|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// scalar reads a number or one of the three words.
func (c *jsonCheck) scalar(i int) (int, string) {
	ch := c.b[i]
	if ch == '-' || ch >= '0' && ch <= '9' {
		return c.number(i)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if rest := c.b[i:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			return i + len(word), ""
		}
	}
	return i, unexpectedByte(ch)
}

// number reads a number; a fault of it is reported where it starts.
func (c *jsonCheck) number(start int) (int, string) {
	b, i := c.b, start
	if b[i] == '-' {
		i++
	}
	first := i
	i = skipDigits(b, i)
	whole := i - first
	if whole == 0 || whole > 1 && b[first] == '0' {
		return start, badNumber
	}
	scale := 0
	if i < len(b) && b[i] == '.' {
		i = skipDigits(b, i+1)
		if scale = i - first - whole - 1; scale == 0 {
			return start, badNumber
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		return c.exponent(start, first, whole, scale, i+1)
	}
	if whole > maxDigits || scale > maxScale {
		return start, bigNumber
	}
	return i, ""
}

// exponent reads the exponent at i of the number at start and judges the whole as numeric_in does: the first digit
// that isn't zero must stand below 10^131072, and the digits behind the point, as written and then moved by the
// exponent, must be 16383 at most, trailing zeros and zero itself included (0e-16384 is refused, 0e99999999 is 0).
func (c *jsonCheck) exponent(start, first, whole, scale, i int) (int, string) {
	b, negative := c.b, false
	if i < len(b) && (b[i] == '+' || b[i] == '-') {
		negative = b[i] == '-'
		i++
	}
	end, e := skipDigits(b, i), 0
	if end == i {
		return start, badNumber
	}
	for ; i < end && e <= maxExponent; i++ { // and no further: thousands of digits would overflow e
		e = e*10 + int(b[i]-'0')
	}
	if e > maxExponent {
		return start, bigNumber
	}
	if negative {
		e = -e
	}
	lead, zero := whole-1, false // the power of ten of the first digit that isn't zero
	if b[first] == '0' {
		n := 0
		for n < scale && b[first+2+n] == '0' {
			n++
		}
		lead, zero = -1-n, n == scale
	}
	scale = max(0, scale-e)
	if scale > maxScale || !zero && lead+e >= maxDigits {
		return start, bigNumber
	}
	printed := first - start + 1 // the sign and one digit at least
	if !zero {
		printed += max(0, lead+e)
	}
	if scale > 0 {
		printed += 1 + scale
	}
	c.grown += int64(max(0, printed-(end-start)))
	return end, ""
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}
