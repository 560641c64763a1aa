//go:build !rebase_plant_fence && !rebase_plant_renewal && !rebase_plant_reaper && !rebase_plant_result

package rebase

// The places where internal/torture plants a fault, to prove that it would find it: what a
// right to a row rests on, one line each. This file is the queue as it is meant to be; each
// plant_*.go, which only a build tag selects, has one of the lines wrong. All are constants,
// so a program that is built without tags has nothing of this in it.

const (
	heldRow    = `p.id = u.id and p.fence = u.fence` // what a renewal may extend
	resultRow  = `p.id = u.id and p.fence = u.fence` // where a result may be written
	spentFence = `-j.fence`                          // what it leaves there
	leaseOver  = `locked_until < now()`              // what a reaper may take
	renews     = true
)
