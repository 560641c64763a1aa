// The consumer's side (SPEC M2, J7, J13): what becomes of an attempt is what its span says, and
// the worker sees all that the handler did as if there were no span.

package rebaseotel_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rebasejobs/rebase"
	rebaseotel "github.com/rebasejobs/rebase/otel"
)

// M2: the attributes that the conventions ask for, and those of the queue.
func TestTheSpanOfAnAttemptHasTheAttributesOfTheConventions(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	done := r.enqueue(rebase.Item{Task: "x", Options: &rebase.EnqueueOptions{Lane: "l"}})
	r.once("x", rebase.WorkerOptions{Name: "w"}, returns(nil))
	require.Equal(t, map[string]any{
		"messaging.system": "rebase", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "x", "messaging.message.id": strconv.FormatInt(done.ID, 10), "messaging.client.id": r.job(done.ID).LockedBy,
		"messaging.rebase.attempt": int64(1), "messaging.rebase.max_attempts": int64(3), "messaging.rebase.run": int64(1),
		"messaging.rebase.lane": "l", "messaging.rebase.outcome": "succeeded",
	}, attrs(r.only("process x").Attributes))
}

// An error that says of itself what it is.
type typed struct{}

func (typed) Error() string     { return "typed" }
func (typed) ErrorType() string { return "quota" }

func panics(context.Context, *rebase.Job) error { panic("at the disco") }

// M2, J7, J13: each way to end. Putting a job off and cancelling it are no errors.
func TestTheSpanSaysHowTheAttemptEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h         rebase.Handler
		opts      rebase.WorkerOptions
		status    rebase.Status
		outcome   string
		errorType string
	}{
		"success":          {h: returns(nil), status: rebase.StatusSucceeded, outcome: "succeeded"},
		"an error":         {h: returns(fmt.Errorf("sending: %w", errBoom)), status: rebase.StatusFailed, outcome: "failed", errorType: "*errors.errorString"},
		"a typed error":    {h: returns(fmt.Errorf("sending: %w", typed{})), status: rebase.StatusFailed, outcome: "failed", errorType: "quota"},
		"of the database":  {h: returns(&pgconn.PgError{Code: "23505"}), status: rebase.StatusFailed, outcome: "failed", errorType: "23505"},
		"permanent":        {h: returns(rebase.Permanent(&rebase.StateError{})), status: rebase.StatusFailed, outcome: "failed", errorType: "*rebase.StateError"},
		"permanent snooze": {h: returns(rebase.Permanent(rebase.Snooze(0))), status: rebase.StatusFailed, outcome: "failed", errorType: "*rebase.snoozeError"},
		"snooze":           {h: returns(rebase.Snooze(time.Hour)), status: rebase.StatusPending, outcome: "snoozed"},
		"wrapped snooze":   {h: returns(fmt.Errorf("later: %w", rebase.Snooze(time.Hour))), status: rebase.StatusPending, outcome: "snoozed"},
		"cancelled":        {h: returns(fmt.Errorf("useless: %w", rebase.ErrCancelled)), status: rebase.StatusCancelled, outcome: "cancelled"},
		"a panic":          {h: panics, status: rebase.StatusFailed, outcome: "panicked", errorType: "panic"},
		"a Goexit": {h: func(context.Context, *rebase.Job) error { runtime.Goexit(); return nil },
			status: rebase.StatusFailed, outcome: "panicked", errorType: "goexit"},
		"a timeout": {h: func(ctx context.Context, _ *rebase.Job) error { <-ctx.Done(); return nil },
			opts: rebase.WorkerOptions{Timeout: 20 * time.Millisecond}, status: rebase.StatusFailed, outcome: "failed", errorType: "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rebaseotel.Options{})
			done := r.enqueue(rebase.Item{Task: "x", Options: &rebase.EnqueueOptions{MaxAttempts: 1}})
			r.once("x", c.opts, c.h)
			require.Equal(t, c.status, r.job(done.ID).Status)
			until(t, func() bool { return len(r.named("process x")) == 1 }, "the span has ended")
			span := r.only("process x")
			got := attrs(span.Attributes)
			require.Equal(t, c.outcome, got["messaging.rebase.outcome"])
			if c.errorType == "" {
				require.NotContains(t, got, "error.type")
				require.Equal(t, codes.Unset, span.Status.Code)
				require.Empty(t, span.Events)
				return
			}
			require.Equal(t, c.errorType, got["error.type"])
			require.Equal(t, codes.Error, span.Status.Code)
			require.Len(t, span.Events, 1)
			require.Equal(t, span.Status.Description, attrs(span.Events[0].Attributes)["exception.message"])
		})
	}
}

// J7: the worker must see the panic where it happened, and its value.
func TestAPanicReachesTheWorkerWithItsStack(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	done := r.enqueue(rebase.Item{Task: "x", Options: &rebase.EnqueueOptions{MaxAttempts: 1}})
	r.once("x", rebase.WorkerOptions{}, panics)
	last := r.job(done.ID).LastError
	require.Contains(t, last, "panic: at the disco")
	require.Contains(t, last, "otel_test.panics")
	event := attrs(r.only("process x").Events[0].Attributes)
	require.Equal(t, "panic: at the disco", event["exception.message"])
	require.Contains(t, event["exception.stacktrace"], "otel_test.panics")
}

// J12, J15, J18: a context that was ended from outside says why in the span.
func TestAnAttemptThatIsInterruptedSaysByWhat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cause              error
		err                error
		outcome, errorType string
	}{
		"shutdown, in vain":       {rebase.ErrShutdown, context.Canceled, "released", "shutdown"},
		"shutdown, in time":       {rebase.ErrShutdown, nil, "succeeded", ""},
		"a lost lease":            {rebase.ErrLeaseLost, context.Canceled, "released", "lease_lost"},
		"cancelled":               {rebase.ErrCancelled, context.Canceled, "cancelled", ""},
		"a timeout that is a nil": {rebase.ErrTimeout, nil, "failed", "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{t: t}
			r.observe(rebaseotel.Options{})
			ctx, cancel := context.WithCancelCause(t.Context())
			h := r.tel.Middleware(func(context.Context, *rebase.Job) error { cancel(c.cause); return c.err })
			require.Equal(t, c.err, h(ctx, &rebase.Job{Task: "x"}))
			got := attrs(r.only("process x").Attributes)
			require.Equal(t, c.outcome, got["messaging.rebase.outcome"])
			require.Equal(t, c.errorType != "", got["error.type"] != nil)
			if c.errorType != "" {
				require.Equal(t, c.errorType, got["error.type"])
			}
		})
	}
}

// counts are a counter's values by destination and error.type.
func (r *rig) counts(name string) map[string]int64 {
	r.t.Helper()
	sum, ok := r.metrics()[name].Data.(metricdata.Sum[int64])
	require.True(r.t, ok, name)
	require.True(r.t, sum.IsMonotonic)
	all := map[string]int64{}
	for _, p := range sum.DataPoints {
		all[key(p.Attributes)] += p.Value
	}
	return all
}

func key(set attribute.Set) string {
	m := attrs(set.ToSlice())
	k := fmt.Sprint(m["messaging.destination.name"])
	if m["error.type"] != nil {
		k += " " + fmt.Sprint(m["error.type"])
	}
	return k
}

// M2: the four metrics of the conventions, with their units, bounds and labels; neither the
// worker nor the job's id is one.
func TestTheMetricsAreThoseOfTheConventions(t *testing.T) {
	t.Parallel()
	r := newRig(t, rebaseotel.Options{})
	r.enqueue(rebase.Item{Task: "good"})
	_, err := r.tel.EnqueueMany(t.Context(), r.q, []rebase.Item{{Task: "good"}, {Task: "bad", Options: &rebase.EnqueueOptions{MaxAttempts: 1}}})
	require.NoError(t, err)
	r.once("good", rebase.WorkerOptions{}, returns(nil))
	r.once("bad", rebase.WorkerOptions{}, returns(errBoom))
	require.Equal(t, map[string]int64{"good": 2, "bad": 1}, r.counts("messaging.client.sent.messages"))
	require.Equal(t, map[string]int64{"good": 2, "bad *errors.errorString": 1}, r.counts("messaging.client.consumed.messages"))
	all := r.metrics()
	require.Equal(t, []string{"messaging.client.consumed.messages", "messaging.client.operation.duration", "messaging.client.sent.messages", "messaging.process.duration"},
		slices.Sorted(maps.Keys(all)))
	for name, want := range map[string]map[string]uint64{
		"messaging.client.operation.duration": {"good": 1, "<nil>": 1}, // a batch of two tasks has no destination
		"messaging.process.duration":          {"good": 2, "bad *errors.errorString": 1},
	} {
		require.Equal(t, "s", all[name].Unit)
		got := map[string]uint64{}
		for _, p := range all[name].Data.(metricdata.Histogram[float64]).DataPoints {
			got[key(p.Attributes)] = p.Count
			require.Equal(t, []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}, p.Bounds)
			require.Equal(t, "rebase", attrs(p.Attributes.ToSlice())["messaging.system"])
			require.LessOrEqual(t, p.Attributes.Len(), 5)
		}
		require.Equal(t, want, got, name)
	}
	for _, name := range []string{"messaging.client.sent.messages", "messaging.client.consumed.messages"} {
		require.Equal(t, "{message}", all[name].Unit)
	}
}
