package rebase

// Text that others wrote, an error or a panic value, is kept as true as the column allows. PostgreSQL refuses NUL and
// invalid UTF-8, and one refused row would hold up the whole batch of results. The invariant: whatever goes in, what
// comes out can be stored, has at most the given number of characters and says so if it was cut. Nothing here
// panics, whatever the methods of the value do.

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxErrorText is the cap of last_error, in characters.
const maxErrorText = 4000

// storable is s with ␀ for each NUL and U+FFFD for each byte that isn't UTF-8, cut to limit characters. A cut text
// ends with a mark, which counts in the limit, with the length of the whole; a limit too small for it gets none.
// Little more than limit characters are read, so a text of megabytes costs no more than one that is just too long.
func storable(s string, limit int) string {
	var mark string
	if end := runePrefix(s, limit); end < len(s) {
		mark = fmt.Sprintf("… (cut, %d bytes in all)", len(s))
		if keep := limit - utf8.RuneCountInString(mark); keep >= 0 {
			end = runePrefix(s, keep)
		} else {
			mark = ""
		}
		s = s[:end]
	}
	// Map writes what isn't UTF-8 as U+FFFD by itself.
	return strings.Map(func(r rune) rune {
		if r == 0 {
			return '␀'
		}
		return r
	}, s) + mark
}

// runePrefix is the length in bytes of the first n characters of s.
func runePrefix(s string, n int) int {
	if len(s) <= n {
		return len(s)
	}
	for i := range s {
		if n <= 0 {
			return i
		}
		n--
	}
	return len(s)
}

// errorText is what last_error gets. An Error method that panics, as that of a nil pointer often does, costs only its
// text; and an error without a text gets one, since an empty last_error would look like no error.
func errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	defer func() {
		if r := recover(); r != nil {
			text = storable(fmt.Sprintf("%T: its Error method panicked: %s", err, panicText(r)), maxErrorText)
		}
	}()
	if text = storable(err.Error(), maxErrorText); text == "" {
		text = storable(fmt.Sprintf("%T without a text", err), maxErrorText)
	}
	return text
}
