//go:build rebase_plant_reaper

package rebase

// Planted: the reaper comes two seconds before a lease is over. See plant.go.

const (
	heldRow    = `p.id = u.id and p.fence = u.fence`
	resultRow  = `p.id = u.id and p.fence = u.fence`
	spentFence = `-j.fence`
	leaseOver  = `locked_until < now() + interval '2 s'`
	renews     = true
)
