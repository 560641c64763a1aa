package cron_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/cron"
)

// The grammar: what is accepted means what the longhand means, and everything else
// is refused with the field and the value.

// refused are expressions that are none, with the field and a part of the reason.
var refused = []struct{ expr, field, reason string }{
	{"", "", "0 fields"},
	{" \t ", "", "0 fields"},
	{", , , , ,", "minute", `"" is not 0 to 59`},
	{"0, * * * *", "minute", `"" is not 0 to 59`},
	{",0 * * * *", "minute", `"" is not 0 to 59`},
	{"0,,5 * * * *", "minute", `"" is not 0 to 59`},
	{"*-5 * * * *", "minute", `"*"`},
	{"* *-5 * * *", "hour", `"*"`},
	{"1-2-3 * * * *", "minute", `"2-3"`},
	{"*/0 * * * *", "minute", `step "0"`},
	{"*/00 * * * *", "minute", `step "00"`},
	{"*/90 * * * *", "minute", `step "90"`},
	{"*/61 * * * *", "minute", `1 to 60`},
	{"0 */25 * * *", "hour", `1 to 24`},
	{"0 0 */32 * *", "day of month", `1 to 31`},
	{"0 0 1 */13 *", "month", `1 to 12`},
	{"0 0 * * */8", "day of week", `1 to 7`},
	{"1-5/0 * * * *", "minute", `step "0"`},
	{"*/ * * * *", "minute", `step ""`},
	{"/5 * * * *", "minute", `""`},
	{"*/5/5 * * * *", "minute", `step "5/5"`},
	{"*/-5 * * * *", "minute", `step "-5"`},
	{"*/* * * * *", "minute", `step "*"`},
	{"5-61 * * * *", "minute", `"61" in "5-61" is not 0 to 59`},
	{"*5 * * * *", "minute", `"*5"`},
	{"** * * * *", "minute", `"**"`},
	{"60 * * * *", "minute", `"60" is not 0 to 59`},
	{"0 24 * * *", "hour", `"24"`},
	{"0 0 0 * *", "day of month", `"0"`},
	{"0 0 32 * *", "day of month", `"32"`},
	{"0 0 1 0 *", "month", `"0"`},
	{"0 0 1 13 *", "month", `"13" is not 1 to 12, nor JAN to DEC`},
	{"0 0 * * 8", "day of week", `"8" is not 0 to 7, nor SUN to SAT`},
	{"+5 * * * *", "minute", `"+5"`},
	{"-5 * * * *", "minute", `""`},
	{"5- * * * *", "minute", `""`},
	{"5-1 * * * *", "minute", "backwards"},
	{"0 0 * * FRI-SUN", "day of week", "backwards: 5 is after 0"},
	{"1.5 * * * *", "minute", `"1.5"`},
	{"0x5 * * * *", "minute", `"0x5"`},
	{"1_0 * * * *", "minute", `"1_0"`},
	{"256 * * * *", "minute", `"256"`},
	{"4294967296 * * * *", "minute", `"4294967296"`},
	{"18446744073709551616 * * * *", "minute", `"18446744073709551616"`},
	{"1-99999999999999999999 * * * *", "minute", `"99999999999999999999"`},
	{"*/99999999999999999999 * * * *", "minute", "step"},
	{"* * * *", "", "4 fields"},
	{"0 * * * * *", "", "6 fields"},
	{"0 0 12 1 1 ? 2026", "", "7 fields"},
	{"\x00 * * * *", "minute", `"\x00"`},
	{"0\x00 * * * *", "minute", `"0\x00"`},
	{"* * * * *\x00", "day of week", `"*\x00"`},
	{"* * * * *\n", "day of week", `"*\n"`},
	{"*\n* * * *", "", "4 fields"},
	{"*\u00a0* * * *", "", "4 fields"},      // a no-break space
	{"٣ * * * *", "minute", `"٣"`},          // an Arabic-Indic digit
	{"５ * * * *", "minute", `"５"`},          // a full-width digit
	{"0 0 * * \u017fun", "day of week", ""}, // a long s, whose upper case is S
	{"0 0 * * \u017fu", "day of week", ""},
	{"0 0 * * \xff\xfe\xfd", "day of week", ""},
	{"0 0 ? * *", "day of month", `"?"`},
	{"0 0 L * *", "day of month", `"L"`},
	{"0 0 15W * *", "day of month", `"15W"`},
	{"0 0 * * 5L", "day of week", `"5L"`},
	{"0 0 * * 5#2", "day of week", `"5#2"`},
	{"H * * * *", "minute", `"H"`},
	{"~ * * * *", "minute", `"~"`},
	{"JAN * * * *", "minute", `"JAN"`},
	{"0 0 * MON *", "month", `"MON"`},
	{"0 0 * * JAN", "day of week", `"JAN"`},
	{"0 0 * * MONDAY", "day of week", `"MONDAY"`},
	{"0 0 * * UNM", "day of week", `"UNM"`}, // inside the list of the names
	{"0 0 * * MO", "day of week", `"MO"`},
	{"0 0 * AUGUST *", "month", `"AUGUST"`},
	{"CRON_TZ=UTC", "", "time zone"},
	{"CRON_TZ=UTC * * * * *", "", "time zone"},
	{"TZ=", "", "time zone"},
	{"TZ=Europe/Paris 0 0 * * *", "", "time zone"},
	{"@", "", `unknown word "@"`},
	{"@reboot", "", `unknown word "@reboot"`},
	{"@every 1h", "", "2 fields"},
	{"@every", "", `unknown word`},
	{"@DAILY", "", `unknown word`},
	{"@daily *", "", "2 fields"},
	{strings.Repeat(" ", 248) + "* * * * *", "", "257 bytes"},
	{strings.Repeat("1,", 1<<20), "", "2097152 bytes"},
}

func TestC11_WhatIsNotAnExpressionIsAnErrorThatNamesItsField(t *testing.T) {
	t.Parallel()
	for _, c := range refused {
		e, err := cron.Parse(c.expr)
		require.Nil(t, e, "%.300q", c.expr)
		requireRefused(t, err, c.expr, c.field, c.reason)
		require.Less(t, len(err.Error()), 2500, "an error fits a log line, however long the expression")
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestSyntax_ShortFormsMeanTheirLongForms(t *testing.T) {
	t.Parallel()
	for short, full := range map[string]string{
		"@hourly":               "0 * * * *",
		"@daily":                "0 0 * * *",
		"@midnight":             "0 0 * * *",
		"@weekly":               "0 0 * * 0",
		"@monthly":              "0 0 1 * *",
		"@yearly":               "0 0 1 1 *",
		"@annually":             "0 0 1 1 *",
		" @daily\t":             "0 0 * * *",
		"  0\t0  *\t* * ":       "0 0 * * *",
		"00 007 01 1 *":         "0 7 1 1 *",
		"*/60 */24 */31 */12 *": "0 0 1 1 *",
		"*/20 1 1 1 *":          "0,20,40 1 1 1 *",
		"5/20 1 1 1 *":          "5,25,45 1 1 1 *",
		"10-40/15 1 1 1 *":      "10,25,40 1 1 1 *",
		"10-12/60 1 1 1 *":      "10 1 1 1 *",
		"0 20/3 1 1 *":          "0 20,23 1 1 *",
		"0 0 1 9/2 *":           "0 0 1 9,11 *",
		"0 0 * * 5/1":           "0 0 * * 5,6,0",
		"0 0 * * 1/3":           "0 0 * * 1,4,7",
		"0 0 * * */2":           "0 0 * * 0,2,4,6",
		"0 0 * * */7":           "0 0 * * 0",
		"0 0 * * 0-7":           "0 0 * * *",
		"0 0 * * MON-fri":       "0 0 * * 1-5",
		"0 0 * * sun,Tue,5":     "0 0 * * 0,2,5",
		"0 0 * * FRI-7":         "0 0 * * 5,6,0",
		"0 0 * * wed/2":         "0 0 * * 3,5,7",
		"0 0 1 jan-MAR,Dec *":   "0 0 1 1,2,3,12 *",
		"0 0 1 feb/4 *":         "0 0 1 2,6,10 *",
		"0 0 5-5 * *":           "0 0 5 * *",
		"1,1,1 0 * * *":         "1 0 * * *",
	} {
		a, b := mustParse(t, short), mustParse(t, full)
		require.Equal(t, short, a.String(), "String is the source")
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 40 {
			require.Equal(t, b.Next(at, time.UTC), a.Next(at, time.UTC), "%s and %s", short, full)
			at = b.Next(at, time.UTC)
		}
	}
}

func TestSyntax_EveryNameIsKnownInEveryCase(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 3, 12, 0, 0, 0, time.UTC) // a Saturday
	for i := range 12 {
		name := time.Month(i + 1).String()[:3]
		for _, s := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
			require.Equal(t, time.Month(i+1), mustParse(t, "0 0 5 "+s+" *").Next(start, time.UTC).Month(), s)
		}
	}
	for i := range 7 {
		name := time.Weekday(i).String()[:3]
		for _, s := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
			want := time.Date(2026, 1, 4+i, 0, 0, 0, 0, time.UTC)
			require.Equal(t, want, mustParse(t, "0 0 * * "+s).Next(start, time.UTC), s)
		}
	}
}

func TestSyntax_TheLongestExpressionHas256Bytes(t *testing.T) {
	t.Parallel()
	mustParse(t, strings.Repeat(" ", 247)+"* * * * *")
	list := strings.Repeat("59,", 82) + "59" // with the other fields 256 bytes
	require.Len(t, list+" * * * *", 256)
	mustParse(t, list+" * * * *")
}
