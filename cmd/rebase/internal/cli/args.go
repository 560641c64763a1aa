package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Positional arguments: how many a command takes. What is refused is answered with the
// command's own line of usage, which names them.

// takes checks the number of arguments; most below zero is any number.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: an argument is missing, want '%s'", cmd.Name(), usage(cmd))
		case most >= 0 && len(args) > most:
			return &usageError{cmd.Name() + ": argument", args[most], "is one too many, want '" + usage(cmd) + "'"}
		}
		return nil
	}
}

// takesFlags is for commands that choose jobs by flags alone; instead is how a single one is named.
func takesFlags(instead string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return &usageError{cmd.Name() + ": argument", args[0], "jobs are chosen by flags here; for single ones see 'rebase " + instead + "'"}
	}
}

// usage is the command's line without the word that stands for its flags.
func usage(cmd *cobra.Command) string { return strings.TrimSuffix(cmd.UseLine(), " [flags]") }
