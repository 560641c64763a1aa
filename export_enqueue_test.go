package rebase

import "context"

// What the tests of migrations call: applying one that isn't in the files.

// NewestVersion is what this binary knows.
func NewestVersion() int { return newestVersion() }

// ApplyMigration applies one migration as Migrate does each of its own.
func (q *Queue) ApplyMigration(ctx context.Context, version int, sql string) error {
	return q.applyPatiently(ctx, migration{version, sql})
}
