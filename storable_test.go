package rebase_test

// What an error or a panic says must always fit its column: Q30's NUL, invalid UTF-8, megabytes and methods that panic.

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

// selfPanic panics with itself, which even fmt doesn't survive; nilPointerError panics on a nil pointer.
type (
	selfPanic       struct{}
	nilPointerError struct{ text string }
	panickingError  struct{ with any }
)

func (s selfPanic) Error() string        { panic(s) }
func (e *nilPointerError) Error() string { return e.text }
func (e panickingError) Error() string   { panic(e.with) }

// J20: text is replaced where it can't be stored, and cut to characters with the length of the whole.
func TestStorableMendsAndCuts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		limit int
		out   string
	}{
		{"", 10, ""},
		{"plain é\n", 10, "plain é\n"},
		{"a\x00b\x00", 10, "a␀b␀"},
		{"a\xffb\xed\xa0\x80\ufffd", 10, "a\ufffdb\ufffd\ufffd\ufffd\ufffd"},
		{strings.Repeat("é", 40), 40, strings.Repeat("é", 40)},
		{strings.Repeat("é", 41), 40, strings.Repeat("é", 16) + "… (cut, 82 bytes in all)"},
		{strings.Repeat("\x00", 41), 40, strings.Repeat("␀", 16) + "… (cut, 41 bytes in all)"},
		{strings.Repeat("\xff", 41), 24, "… (cut, 41 bytes in all)"},
		{strings.Repeat("\xff", 41), 3, "\ufffd\ufffd\ufffd"}, // no room for the mark
		{"abc", 0, ""},
		{"abc", -1, ""},
	} {
		require.Equal(t, c.out, rebase.Storable(c.in, c.limit), "%q %d", c.in, c.limit)
	}
}

// Q30: an error's text is kept whatever it is and whatever its method does.
func TestErrorTextIsAlwaysStorable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   error
		want string
	}{
		{nil, ""},
		{errors.New("boom"), "boom"},
		{fmt.Errorf("a\x00: %w", errors.New("\xff")), "a␀: \ufffd"},
		{errors.New(""), "*errors.errorString without a text"},
		{(*nilPointerError)(nil), "*rebase_test.nilPointerError: its Error method panicked: runtime error: invalid memory address or nil pointer dereference"},
		{panickingError{"why\x00"}, "rebase_test.panickingError: its Error method panicked: why␀"},
	} {
		require.Equal(t, c.want, rebase.ErrorText(c.in))
	}
	for _, err := range []error{selfPanic{}, panickingError{panickingError{1}}} { // even the panic can't be printed
		require.Regexp(t, `^rebase_test\.\w+: its Error method panicked: .*rebase_test\.\w+`, rebase.ErrorText(err))
	}
	for _, err := range []error{errors.New(strings.Repeat("\xff", 1<<20)), panickingError{strings.Repeat("é", 1<<19)}} {
		text := rebase.ErrorText(err)
		require.Equal(t, 4000, utf8.RuneCountInString(text))
		require.Contains(t, text, "bytes in all)")
	}
}

// Q30: the server takes what comes out, NUL and invalid UTF-8 in it or not.
func TestTheServerStoresWhatStorableGives(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	for _, in := range []string{"", "a\x00\xff\xed\xa0\x80", strings.Repeat("\xf0\x9f\x98", 2000), "\U0010ffff\ufffe"} {
		var back string
		var n int
		want := rebase.Storable(in, 500)
		require.NoError(t, pool.QueryRow(t.Context(), `select $1::text, length($1::text)`, want).Scan(&back, &n))
		require.Equal(t, want, back)
		require.Equal(t, utf8.RuneCountInString(want), n) // the server counts characters as we do
	}
}

// A text of megabytes costs what one that is just too long costs.
func BenchmarkStorable(b *testing.B) {
	for _, size := range []int{100, 5_000, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := strings.Repeat("x", size)
			for b.Loop() {
				rebase.Storable(s, 4000)
			}
		})
	}
}
