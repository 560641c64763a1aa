//go:build rebase_plant_result

package rebase

// Planted: a result that is sent again after a lost reply is written again. See plant.go.

const (
	heldRow    = `p.id = u.id and p.fence = u.fence`
	resultRow  = `p.id = u.id and abs(p.fence) = u.fence`
	spentFence = `-abs(j.fence)`
	leaseOver  = `locked_until < now()`
	renews     = true
)
