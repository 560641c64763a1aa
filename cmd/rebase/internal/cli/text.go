package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rebasejobs/rebase"
)

// Words and numbers for people. Every text that comes from a row goes through clean or
// cleanLines before it is printed: a payload or an error is written by others, and must not
// move the cursor, retitle the window, or turn the direction of the text around it.

// clean makes a text one line without control characters, which it writes as escapes.
func clean(s string) string {
	if !strings.ContainsFunc(s, unsafe) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !unsafe(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// unsafe are control characters of both blocks, those that change the direction of text,
// and those that break a line.
func unsafe(r rune) bool {
	switch {
	case unicode.IsControl(r), r == 0x061c, r == 0x200e, r == 0x200f, r == 0xfeff:
		return true
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x2028, r == 0x2029:
		return true
	}
	return false
}

// cleanLines keeps the line ends of a text.
func cleanLines(s string) []string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, line := range lines {
		lines[i] = clean(strings.ReplaceAll(line, "\t", "    "))
	}
	return lines
}

// firstLine is what a table shows of an error.
func firstLine(s string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if rest != "" {
		line += " …"
	}
	return clean(line)
}

// age shows a duration by its two largest units.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	d = d.Abs()
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return pair(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	case d < day:
		return pair(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	case d < 365*day:
		return pair(d/day, "d", d%day/time.Hour, "h")
	}
	return pair(d/(365*day), "y", d%(365*day)/day, "d")
}

func pair(n time.Duration, unit string, m time.Duration, smaller string) string {
	if m == 0 {
		return fmt.Sprintf("%d%s", n, unit)
	}
	return fmt.Sprintf("%d%s%d%s", n, unit, m, smaller)
}

// since is the age of an instant, in words.
func since(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	if t.After(now) {
		return "in " + age(t.Sub(now))
	}
	return age(now.Sub(t)) + " ago"
}

// when is what matters about the times of a job.
func when(j *rebase.Job, now time.Time) string {
	switch {
	case j.FinishedAt != nil:
		return since(now, *j.FinishedAt)
	case j.Status == rebase.StatusRunning && j.StartedAt == nil:
		return "claimed ahead"
	case j.Status == rebase.StatusRunning:
		return "for " + age(now.Sub(*j.StartedAt))
	case j.RunAt.After(now):
		return "due in " + age(j.RunAt.Sub(now))
	}
	return "due for " + age(now.Sub(j.RunAt))
}

// instant shows a time for reading and for copying.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// number groups digits by thousands.
func number[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// capped is a number that was counted up to a limit.
func capped(n, limit int) string {
	if n >= limit {
		return number(limit) + "+"
	}
	return number(n)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(n) + " " + what + "s"
}

// percent shows a share from 0 to 1.
func percent(x float64) string { return strconv.FormatFloat(x*100, 'g', 2, 64) + " %" }
