// Package pgserver runs a private PostgreSQL server from the binaries that a
// machine already has, for tests, benchmarks and examples.
//
// The one invariant: a server never outlives its owner. Whatever happens to the
// process that started it, SIGKILL included, a guard (see guard.go) stops the
// server and removes its directory within seconds. So nobody has to clean up
// after a run that was interrupted.
package pgserver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config says how a server is to be run. Its zero value is right for tests.
type Config struct {
	// BinDir holds initdb and postgres. If empty, Find looks for it.
	BinDir string

	// Settings go into postgresql.conf and win over the defaults below.
	Settings map[string]string

	// Durable switches fsync, synchronous_commit and full_page_writes back on.
	// Tests do without, because they never outlive a crash of the machine;
	// benchmarks need the true price of a commit.
	Durable bool

	// Dir is where the server's own directory is made; the server's user must be
	// able to reach it. If empty: in memory on Linux if there is room and the
	// server is not durable, else TempDir.
	Dir string

	// Owner is the process whose end ends the server. If zero it is the calling
	// process. With another owner the server survives the caller, so that
	// several processes of one run can share it.
	Owner int

	// AlsoRemove is a directory that is removed together with the server's own.
	// If empty, there is none.
	AlsoRemove string
}

// settings returns everything that is written into postgresql.conf, apart from
// the addresses. What isn't named here (jit, autovacuum) keeps the server's
// default, because users' servers run with those too.
func (c Config) settings() map[string]string {
	durability := "off"
	if c.Durable {
		durability = "on"
	}
	set := map[string]string{
		"fsync":              durability,
		"synchronous_commit": durability,
		"full_page_writes":   durability,

		"max_connections":           "300",
		"shared_buffers":            "256MB",
		"max_prepared_transactions": "10",
		"wal_level":                 "logical", // for tests that make replication slots
		"timezone":                  "UTC",     // not this machine's: the same everywhere
		"log_timezone":              "UTC",
	}
	maps.Copy(set, c.Settings)
	return set
}

// render writes settings as lines of postgresql.conf. Every value is quoted, so
// that units, paths and empty strings all go the same way.
func render(set map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(set)) {
		value := strings.ReplaceAll(set[name], "'", "''")
		fmt.Fprintf(&b, "%s = '%s'\n", name, value)
	}
	return b.String()
}
