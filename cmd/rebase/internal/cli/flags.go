package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebasejobs/rebase"
	"github.com/spf13/cobra"
)

// The values of flags and arguments. Each is checked when it is parsed, before there is a
// connection, and what is refused is named with its flag.

// parseAge reads a duration with days and weeks: 90m, 7d, 1w2d12h.
func parseAge(s string) (time.Duration, error) {
	total, rest := time.Duration(0), s
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		digits, after, ok := strings.Cut(rest, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 31)
		if err != nil || time.Duration(n) > (math.MaxInt64-total)/unit.size {
			return 0, fmt.Errorf("want a duration such as 90m, 12h, 7d or 2w")
		}
		total, rest = total+time.Duration(n)*unit.size, after
	}
	if rest == "" && s != "" {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || d > math.MaxInt64-total {
		return 0, fmt.Errorf("want a duration such as 90m, 12h, 7d or 2w")
	}
	return total + d, nil
}

// An ageFlag is a duration.
type ageFlag time.Duration

func (f *ageFlag) Type() string { return "age" }
func (f *ageFlag) String() string {
	if *f == 0 {
		return ""
	}
	return age(time.Duration(*f))
}

func (f *ageFlag) Set(s string) error {
	d, err := parseAge(s)
	*f = ageFlag(d)
	return err
}

// A momentFlag is an instant, or so long ago by the database's clock.
type momentFlag struct {
	text string
	at   time.Time
	ago  time.Duration
}

func (f *momentFlag) Type() string   { return "time" }
func (f *momentFlag) String() string { return f.text }

func (f *momentFlag) Set(s string) error {
	f.text = s
	for _, layout := range []string{time.RFC3339, time.DateTime + "Z07:00", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			f.at = t
			return nil
		}
	}
	d, err := parseAge(s)
	if err != nil || d == 0 {
		return fmt.Errorf("want a time such as 2026-03-01T12:00:00Z or 2026-03-01 (UTC), or how long ago: 90m, 7d")
	}
	f.ago = d
	return nil
}

func (f *momentFlag) resolve(now time.Time) time.Time {
	if f.ago > 0 {
		return now.Add(-f.ago)
	}
	return f.at
}

// filterFlags are the fields of rebase.Filter.
type filterFlags struct {
	task, lane, key, text                                      string
	meta                                                       []string
	createdAfter, createdBefore, finishedAfter, finishedBefore momentFlag
}

func (a *app) addFilter(cmd *cobra.Command, f *filterFlags) {
	flags := cmd.Flags()
	flags.StringVar(&f.task, "task", "", "jobs of this task")
	flags.StringVar(&f.lane, "lane", "", "jobs of this lane")
	flags.StringVar(&f.key, "key", "", "jobs with this idempotency key")
	flags.StringVar(&f.text, "error", "", "jobs whose last error contains this text")
	flags.StringArrayVar(&f.meta, "meta", nil, "jobs with this entry, `NAME=VALUE`; may be repeated")
	flags.Var(&f.createdAfter, "created-after", "jobs made at or after this time, or less than so long ago")
	flags.Var(&f.createdBefore, "created-before", "jobs made before this time, or more than so long ago")
	flags.Var(&f.finishedAfter, "finished-after", "jobs that ended at or after this time, or less than so long ago")
	flags.Var(&f.finishedBefore, "finished-before", "jobs that ended before this time, or more than so long ago")
	a.completeFlag(cmd, "task", a.taskNames)
}

// ended says whether the filter can only mean finished jobs.
func (f *filterFlags) ended() bool { return f.finishedAfter.text != "" || f.finishedBefore.text != "" }

func (f *filterFlags) filter(now time.Time) (rebase.Filter, error) {
	meta, err := parseMeta(f.meta)
	return rebase.Filter{
		Task: f.task, Lane: f.lane, IdempotencyKey: f.key, ErrorContains: f.text, Meta: meta,
		CreatedAfter: f.createdAfter.resolve(now), CreatedBefore: f.createdBefore.resolve(now),
		FinishedAfter: f.finishedAfter.resolve(now), FinishedBefore: f.finishedBefore.resolve(now),
	}, err
}

func parseMeta(list []string) (map[string]string, error) {
	var meta map[string]string
	for _, entry := range list {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return nil, &usageError{"--meta", entry, "want NAME=VALUE"}
		}
		if _, twice := meta[name]; twice {
			return nil, &usageError{"--meta", entry, "the name was given before"}
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[name] = value
	}
	return meta, nil
}

// parseIDs reads the ids of jobs, each once.
func parseIDs(args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, &usageError{"id", arg, "want the number of a job"}
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// idArgs checks ids with the rest of the command line.
func idArgs(count cobra.PositionalArgs) cobra.PositionalArgs {
	return cobra.MatchAll(count, func(_ *cobra.Command, args []string) error {
		_, err := parseIDs(args)
		return err
	})
}
