package cron

import (
	"strings"
	"time"
)

// Time zones: stretches of constant offset, and the loading of a zone by name.
// A period is found by walking forward from a few days earlier, by the ends of the
// stretches alone. The start that ZoneBounds gives may be earlier than the true one
// just behind the last transition that a zone's file lists; no end is ever wrong
// but in one known way, see zoneAt.

// A period is a stretch of minutes with one offset, cut to the last week before the
// minute that was asked for.
type period struct {
	from, to int64 // minutes of UTC: from is in it, to is not
	off      int64 // wall minute = minute of UTC + off

	// high is the first wall minute that no clock had shown when the period began.
	// If from+off is below it, the clock was put back, and the wall minutes up to
	// high are a second pass. If above, the wall minutes from high on were skipped.
	high int64
}

// madeUp says whether the period begins with a jump that fixed times are owed for:
// at most three hours. A longer one is a zone that moved (Apia skipped a whole
// day), and what was due there never was.
func (p period) madeUp() bool {
	missed := p.from + p.off - p.high
	return 0 < missed && missed <= 3*60
}

// periodAt returns the period that holds minute m. It begins at the latest change
// of the clock, or a week before m if that was earlier. The walk starts a day before
// that week, so that a second pass (the longest known took 23 hours) can't reach
// into it unseen.
func periodAt(loc *time.Location, m int64) period {
	p := period{from: m - week}
	p.off, p.to = zoneAt(loc, m-week-day)
	p.high = p.from + p.off
	for p.to <= m {
		off, to := zoneAt(loc, p.to)
		if off != p.off { // else it is only the name that changed, or the year
			p.from, p.off, p.high = p.to, off, p.to+p.off
		}
		p.to = to
	}
	return p
}

// zoneAt returns the offset at minute m and the minute from which it may differ.
// Offsets that are no whole minutes (before 1972) are rounded down, since that is
// what a clock without seconds shows at a whole minute of UTC.
func zoneAt(loc *time.Location, m int64) (off, to int64) {
	t := time.Unix(m*60, 0).In(loc)
	_, seconds := t.Zone()
	off = floorDiv(int64(seconds), 60)
	_, end := t.ZoneBounds()
	if end.IsZero() {
		return off, 2 * maxMinute
	}
	to = floorDiv(end.Unix()+59, 60)
	if to <= m {
		// On the last day of a leap year beyond a zone's table (from 2040, or from
		// 2028 with a short table) Go takes the year for one of 365 days and ends
		// it a day early. The offset holds to the real end of the year.
		to = (floorDiv(m, day) + 1) * day
	}
	return off, to
}

// A ZoneError says why a time zone was refused.
type ZoneError struct {
	Name   string
	Reason string
}

func (e *ZoneError) Error() string {
	return "cron: time zone " + quote(e.Name) + ": " + e.Reason
}

// LoadZone returns the time zone with an IANA name, such as Europe/Paris; "" is UTC.
// Anything else is a *ZoneError: a name that this host doesn't know, Local and its
// like, because the same row must mean the same on every host, and paths. Each call
// reads a file: keep the result.
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if reason := refuseZone(name); reason != "" {
		return nil, &ZoneError{name, reason}
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, &ZoneError{name, err.Error()}
	}
	return loc, nil
}

// refuseZone says what is wrong with a name, "" if nothing is. It comes before
// time.LoadLocation, which opens any file below its directories: also what the host
// has set as its own zone, and copies that count leap seconds.
func refuseZone(name string) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if len(name) > 64 || strings.Trim(name, letters+"0123456789+-_/") != "" {
		return "not an IANA name"
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || !strings.Contains(letters, part[:1]) {
			return "not an IANA name"
		}
	}
	switch first, _, _ := strings.Cut(strings.ToLower(name), "/"); first {
	case "local", "localtime":
		return "depends on the host; name a zone"
	case "posix", "right", "posixrules", "factory":
		return "not an IANA name"
	}
	return ""
}
