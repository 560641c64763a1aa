package cron

import (
	"fmt"
	"strconv"
	"strings"
)

// Parsing: text to bit masks. The grammar is closed: what is not listed at Parse is
// an error that names the field and the value, never a guess. Each field becomes a
// mask on its own; whether it begins with * is asked of its text, as cron does, so
// "*,5" begins with * and "5,*" doesn't.

const maxLength = 256 // bytes

// A ParseError says why an expression was refused.
type ParseError struct {
	Expr   string
	Field  string // minute, hour, day of month, month, day of week; "" for the whole
	Reason string
}

func (e *ParseError) Error() string {
	s := "cron: " + quote(e.Expr) + ": "
	if e.Field != "" {
		s += e.Field + ": "
	}
	return s + e.Reason
}

// quote makes foreign text safe for one line of a log, also when it is huge.
func quote(s string) string {
	if len(s) > maxLength {
		return strconv.Quote(s[:maxLength]) + "…"
	}
	return strconv.Quote(s)
}

// A field is one of the five: its name, its values, its longest step (the number of
// its values: */60 is minute 0), and the names that stand for min, min+1 and so on.
type field struct {
	name           string
	min, max, step int
	names          string
}

// The order is that of the expression. Day of week runs to 7, a second Sunday.
var fields = [...]field{
	{"minute", 0, 59, 60, ""},
	{"hour", 0, 23, 24, ""},
	{"day of month", 1, 31, 31, ""},
	{"month", 1, 12, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"},
	{"day of week", 0, 7, 7, "SUNMONTUEWEDTHUFRISAT"},
}

// shorthand returns the five fields that a word stands for, "" if it is none.
func shorthand(word string) string {
	switch word {
	case "@hourly":
		return "0 * * * *"
	case "@daily", "@midnight":
		return "0 0 * * *"
	case "@weekly":
		return "0 0 * * 0"
	case "@monthly":
		return "0 0 1 * *"
	case "@yearly", "@annually":
		return "0 0 1 1 *"
	}
	return ""
}

// Parse reads an expression of at most 256 bytes: minute, hour, day of month, month
// and day of week, separated by spaces or tabs. Each is a list of *, a, a-b, */n,
// a-b/n or a/n (from a to the greatest value). Months and weekdays may be named by
// three letters in any case; weekdays run from 0 to 7, both ends Sunday. Or it is
// one of @hourly @daily @midnight @weekly @monthly @yearly @annually.
//
// Every error is a *ParseError. An expression that can never match (30 February) is
// refused too.
func Parse(expr string) (*Expr, error) {
	fail := func(field, format string, args ...any) (*Expr, error) {
		return nil, &ParseError{expr, field, fmt.Sprintf(format, args...)}
	}
	if len(expr) > maxLength {
		return fail("", "%d bytes, at most %d are allowed", len(expr), maxLength)
	}
	words := strings.FieldsFunc(expr, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 1 && words[0][0] == '@' {
		five := shorthand(words[0])
		if five == "" {
			return fail("", "unknown word %q", words[0])
		}
		words = strings.Fields(five)
	}
	if len(words) > 0 && strings.Contains(words[0], "TZ=") {
		return fail("", "the time zone is not part of the expression")
	}
	if len(words) != len(fields) {
		return fail("", "%d fields, want 5: minute, hour, day of month, month, day of week", len(words))
	}

	e := &Expr{source: expr}
	for i, mask := range []*uint64{&e.minute, &e.hour, &e.dom, &e.month, &e.dow} {
		var reason string
		if *mask, reason = fields[i].parse(words[i]); reason != "" {
			return fail(fields[i].name, "%s", reason)
		}
	}
	e.dow = (e.dow | e.dow>>7) & 0x7f // 7 is Sunday

	e.fixed = words[0][0] != '*' && words[1][0] != '*'
	e.bothDays = words[2][0] == '*' || words[4][0] == '*'
	if _, ok := e.wallFrom(0); !ok {
		return fail("day of month", "never matches: no such day in the months given")
	}
	return e, nil
}

// parse returns the mask of a field's list, or the reason why it is refused.
func (f field) parse(list string) (mask uint64, reason string) {
	for item := range strings.SplitSeq(list, ",") {
		from, to, step, reason := f.parseItem(item)
		if reason != "" {
			return 0, reason
		}
		for v := from; v <= to; v += step {
			mask |= 1 << v
		}
	}
	return mask, ""
}

// parseItem reads one item of a list: its first and last value and its step.
func (f field) parseItem(item string) (from, to, step int, reason string) {
	values, n, stepped := strings.Cut(item, "/")
	step = 1
	if stepped {
		var ok bool
		if step, ok = number(n); !ok || step < 1 || step > f.step {
			return 0, 0, 0, fmt.Sprintf("step %q in %q is not 1 to %d", n, item, f.step)
		}
	}
	if values == "*" {
		return f.min, f.max, step, ""
	}
	a, b, ranged := strings.Cut(values, "-")
	if from, reason = f.value(a, item); reason != "" {
		return 0, 0, 0, reason
	}
	switch {
	case ranged:
		if to, reason = f.value(b, item); reason != "" {
			return 0, 0, 0, reason
		}
	case stepped:
		to = f.max
	default:
		to = from
	}
	if from > to {
		return 0, 0, 0, fmt.Sprintf("range %q runs backwards: %d is after %d", item, from, to)
	}
	return from, to, step, ""
}

// value reads a number or a name.
func (f field) value(s, item string) (v int, reason string) {
	// Both lengths: Unicode has letters outside ASCII whose upper case is S or I.
	if up := strings.ToUpper(s); len(s) == 3 && len(up) == 3 {
		if i := strings.Index(f.names, up); i >= 0 && i%3 == 0 {
			return f.min + i/3, ""
		}
	}
	v, ok := number(s)
	if ok && v >= f.min && v <= f.max {
		return v, ""
	}
	reason = fmt.Sprintf("%q is not %d to %d", s, f.min, f.max)
	if s != item {
		reason = fmt.Sprintf("%q in %q is not %d to %d", s, item, f.min, f.max)
	}
	if n := len(f.names); n > 0 {
		reason += ", nor " + f.names[:3] + " to " + f.names[n-3:]
	}
	return 0, reason
}

// number reads ASCII digits: ParseUint takes no sign, no other script, nothing huge.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return int(n), err == nil
}
