package main

// How much of each scenario is done, and how often. One number for all keeps a quick look short;
// one for a single scenario, such as the one over five million finished jobs, keeps a whole run
// within an hour. Names that don't exist are refused, since a misspelt one would cost that hour.

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// An amount is the value of -scale or -n: "0.1", or "1,held=0.5,retained=0.2".
type amount struct {
	all   float64
	some  map[string]float64
	whole bool // no fractions
}

func (s *amount) Set(text string) error {
	s.some = map[string]float64{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, named := strings.Cut(part, "=")
		if !named {
			name, value = "", part
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || !(f > 0 && f <= 100) {
			return fmt.Errorf("%q is not a number above 0 and at most 100", value)
		}
		if s.whole && f != math.Trunc(f) {
			return fmt.Errorf("%q is not a whole number", value)
		}
		switch {
		case !named:
			s.all = f
		case !slices.Contains(scenarioNames(), name):
			return fmt.Errorf("unknown scenario %q", name)
		default:
			s.some[name] = f
		}
	}
	return nil
}

func (s *amount) String() string {
	parts := []string{strconv.FormatFloat(s.all, 'g', -1, 64)}
	for _, name := range slices.Sorted(maps.Keys(s.some)) {
		parts = append(parts, fmt.Sprintf("%s=%g", name, s.some[name]))
	}
	return strings.Join(parts, ",")
}

func (s *amount) of(scenario string) float64 {
	if f, ok := s.some[scenario]; ok {
		return f
	}
	return s.all
}
