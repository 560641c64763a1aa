package rebase_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
)

// Q13, Q34: what is said of an outage is decided by two connections. A round that hung in it and
// fails when the other connection is back already is no second outage; but one that fails again
// and again is told, whatever the other connection does.
func TestQ13ARoundThatHungInAnOutageIsNoSecondOne(t *testing.T) {
	t.Parallel()
	const claims, results = true, false
	r := newRig(t)
	lost := rebase.LostRound(errBoom)
	told := func(rounds func(o *rebase.Outages)) (away, back int) {
		of := &rig{log: newLogbook(t)}
		rounds(rebase.NewOutages(rebase.NewWorker(rebase.New(r.pool, &rebase.Options{Logger: slog.New(of.log)}), nil)))
		return of.outageLines()
	}
	outage := func(o *rebase.Outages) (hung time.Time) {
		o.Round(claims, time.Now(), nil)
		o.Round(results, time.Now(), lost)
		o.Round(claims, time.Now(), lost)
		hung = time.Now() // the claims' next try, which gets no answer
		o.Round(results, time.Now(), lost)
		return hung
	}

	away, back := told(func(o *rebase.Outages) {
		hung := outage(o)
		o.Round(results, time.Now(), nil)
		o.Round(claims, hung, lost)
		o.Round(claims, time.Now(), nil)
	})
	require.Equal(t, []int{1, 1}, []int{away, back})

	away, back = told(func(o *rebase.Outages) {
		hung := outage(o)
		o.Round(results, time.Now(), nil)
		o.Round(claims, hung, lost)
		o.Round(claims, hung, lost)
	})
	require.Equal(t, []int{2, 1}, []int{away, back}, "the second such round counts")

	away, back = told(func(o *rebase.Outages) {
		hung := outage(o)
		o.Round(claims, time.Now(), lost)
		o.Round(results, time.Now(), nil)
		o.Round(claims, hung, lost)
		o.Round(claims, time.Now(), nil)
	})
	require.Equal(t, []int{1, 1}, []int{away, back}, "both were away: it is back when both are")
}
