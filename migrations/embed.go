// Package migrations holds the schema of rebase as numbered SQL files. They can
// be applied by rebase's own Queue.Migrate or by goose; each file records itself
// in rebase.migrations, so Migrate goes on where goose has stopped. Not the other
// way round: goose keeps a record of its own.
//
// A file, once released, is never changed. A new file may only add: an older
// binary goes on working as long as the new row's min_reader is not above the
// newest version that it knows.
package migrations

import "embed"

// FS holds the files, named NNNN_name.sql.
//
//go:embed *.sql
var FS embed.FS
