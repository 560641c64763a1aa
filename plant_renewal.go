//go:build rebase_plant_renewal

package rebase

// Planted: leases are not renewed. See plant.go.

const (
	heldRow    = `p.id = u.id and p.fence = u.fence`
	resultRow  = `p.id = u.id and p.fence = u.fence`
	spentFence = `-j.fence`
	leaseOver  = `locked_until < now()`
	renews     = false
)
