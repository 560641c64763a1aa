//go:build unix && !linux

// Only Linux has a directory in memory that every user may write to and that is
// there without being asked for. Elsewhere servers live on disk.

package pgserver

func ramDir() string { return "" }
