// Package sqltest proves that services on database/sql and on wrappers of it enqueue and
// complete in their own transactions. It is a module of its own, so that the wrappers are no
// requirement of rebase.
package sqltest
