//go:build unix

// The adversary does harm at random, by a seed. Each fault is a function that does it,
// waits, and takes it back, whatever happens meanwhile; up to four are under way at once.
// Each is noted with its time and its victim, so that the checker knows which lost lease
// had a reason.

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/faultnet"
	"github.com/rebasejobs/rebase/internal/pgserver"
)

type adversary struct {
	record *record
	server *pgserver.Server
	fleet  *fleet
	app    *faultnet.Proxy // the enqueuers' link
	direct *pgxpool.Pool   // past all links
	pool   *pgxpool.Pool   // the enqueuers'
	pooler *pooler         // nil without
	lease  time.Duration
	kinds  []fault

	restarting sync.Mutex // held by whoever stops the server
}

// A fault is one kind of harm. do returns whom it struck; "" means that it struck nobody.
// Its context says when the chaos ends: then it takes back early what it did.
type fault struct {
	name   string
	weight int
	do     func(a *adversary, ctx context.Context, r *rand.Rand) (victim string, err error)
}

// faults is the list of all; what each does is in faults_*.go.
var faults = []fault{
	{"kill", 12, (*adversary).kill},
	{"freeze", 8, (*adversary).freeze},
	{"blink", 5, (*adversary).blink},
	{"term", 7, (*adversary).term},
	{"restart fast", 3, (*adversary).restartFast},
	{"restart immediate", 3, (*adversary).restartImmediate},
	{"outage", 1, (*adversary).outage},
	{"read-only", 3, (*adversary).readOnly},
	{"connections", 2, (*adversary).connections},
	{"terminate", 8, (*adversary).terminate},
	{"cut", 8, (*adversary).cut},
	{"stall", 6, (*adversary).stall},
	{"black hole", 5, (*adversary).blackHole},
	{"refuse", 3, (*adversary).refuse},
	{"delay", 4, (*adversary).delay},
	{"lost reply", 12, (*adversary).loseReply},
	{"snapshot", 5, (*adversary).snapshot},
	{"row locks", 6, (*adversary).rowLocks},
	{"claim locks", 4, (*adversary).claimLocks},
	{"table lock", 3, (*adversary).tableLock},
	{"full pool", 4, (*adversary).fullPool},
	{"pooler", 4, (*adversary).killPooler},
	{"migrate", 3, (*adversary).migrate},
	{"vacuum", 3, (*adversary).vacuum},
	{"rewind", 4, (*adversary).rewind},
}

// only returns the faults of a list of names with commas between, all of them if it is empty.
func only(list string) (kinds []fault, err error) {
	if list == "" {
		return faults, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
		kinds = append(kinds, faults[i])
	}
	return kinds, nil
}

// run does harm until ctx ends, and returns when all of it is taken back.
func (a *adversary) run(ctx context.Context, r *rand.Rand) {
	weights := 0
	for _, f := range a.kinds {
		weights += f.weight
	}
	var under sync.WaitGroup
	defer under.Wait()
	free := make(chan struct{}, 4)
	for weights > 0 && pause(ctx, between(r, 50*time.Millisecond, 500*time.Millisecond)) == nil {
		f := a.draw(r.IntN(weights))
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		under.Go(func() {
			defer func() { <-free }()
			a.inflict(ctx, f, own)
		})
	}
}

func (a *adversary) draw(n int) fault {
	for _, f := range a.kinds {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("torture: weights don't add up")
}

// inflict carries out a fault and notes it, also if it could not be taken back in order.
func (a *adversary) inflict(ctx context.Context, f fault, r *rand.Rand) {
	from := time.Now().UnixMicro()
	victim, err := f.do(a, ctx, r)
	n := note{Kind: noteFault, What: f.name, On: victim, From: from}
	if err != nil {
		n.Text = err.Error()
	}
	if victim != "" {
		a.record.note(n)
	} else if err != nil { // mostly because the server is away; counted, so that none fails for ever
		a.record.note(note{Kind: noteDud, What: f.name, Text: err.Error()})
	}
}

// await lets a fault last: for d, or until the chaos ends.
func await(ctx context.Context, d time.Duration) { _ = pause(ctx, d) }

// between draws a time.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// withoutEnd is for taking back: it must not be cut short by the end of the chaos.
func withoutEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
}

// migrate runs Migrate again, beside whatever is going on.
func (a *adversary) migrate(ctx context.Context, r *rand.Rand) (string, error) {
	return "tables", rebase.New(a.direct, nil).Migrate(ctx)
}
