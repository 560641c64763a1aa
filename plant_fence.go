//go:build rebase_plant_fence

package rebase

// Planted: whoever has ever had a job may write its result. See plant.go.

const (
	heldRow    = `p.id = u.id and p.fence > 0`
	resultRow  = `p.id = u.id and p.fence > 0`
	spentFence = `-j.fence`
	leaseOver  = `locked_until < now()`
	renews     = true
)
