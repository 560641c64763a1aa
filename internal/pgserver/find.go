// Finding the server's binaries. initdb and postgres in one directory are
// enough: no psql, no pg_ctl, no pg_isready is ever called, because several
// packagings of the server leave them out. What the user named explicitly is
// either used or an error, never passed over in silence.

package pgserver

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// places are the usual homes of the binaries outside PATH, in order. Of several
// that one pattern matches, the newest version comes first.
var places = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // Red Hat, Fedora with the PGDG packages
	"/usr/local/pgsql/bin",                               // built from source
	"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew on ARM
	"/usr/local/opt/postgresql@*/bin",                    // Homebrew on Intel
	"/opt/homebrew/opt/postgresql/bin",                   // Homebrew, unversioned
	"/usr/local/opt/postgresql/bin",                      //
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/opt/local/lib/postgresql*/bin",                     // MacPorts
	"/usr/libexec/postgresql*",                           // Alpine
}

// NotFoundError says that no server binaries are on this machine.
type NotFoundError struct {
	Looked []string // directories and patterns, in order
}

func (e *NotFoundError) Error() string {
	return "pgserver: no directory holds both initdb and postgres; looked in PATH and " + strings.Join(e.Looked, ", ")
}

// Find returns the directory of PostgreSQL's server binaries: $REBASE_PG_BIN if
// it is set, else the first directory of PATH that has them, else the newest
// version in the places where packages put them. A $REBASE_PG_BIN without the
// binaries is an error; none at all is a *NotFoundError.
func Find() (string, error) {
	if dir := os.Getenv("REBASE_PG_BIN"); dir != "" {
		if err := checkBinDir(dir); err != nil {
			return "", fmt.Errorf("pgserver: REBASE_PG_BIN=%q: %w", dir, err)
		}
		return dir, nil
	}
	return findIn(filepath.SplitList(os.Getenv("PATH")), places)
}

// findIn is Find without the environment.
func findIn(path, patterns []string) (string, error) {
	for _, dir := range path {
		if filepath.IsAbs(dir) && checkBinDir(dir) == nil {
			return dir, nil
		}
	}
	for _, pattern := range patterns {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("pgserver: pattern %q: %w", pattern, err)
		}
		slices.SortFunc(matches, newestFirst)
		for _, dir := range matches {
			if checkBinDir(dir) == nil {
				return dir, nil
			}
		}
	}
	return "", &NotFoundError{Looked: patterns}
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)?`)

// newestFirst orders directories by the last number in their names, so that 18
// comes before 9.6, which plain string order gets wrong.
func newestFirst(a, b string) int {
	return cmp.Or(cmp.Compare(version(b), version(a)), strings.Compare(a, b))
}

func version(dir string) float64 {
	numbers := versionNumber.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return 0
	}
	v, err := strconv.ParseFloat(numbers[len(numbers)-1], 64)
	if err != nil {
		return 0
	}
	return v
}

// checkBinDir says what a directory lacks to run a server from it.
func checkBinDir(dir string) error {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if info.IsDir() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is not a program", filepath.Join(dir, name))
		}
	}
	return nil
}
