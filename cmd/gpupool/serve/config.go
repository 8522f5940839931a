package serve

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/worker/config"
)

//go:generate go run gpupool/cmd/gpupool/serve/gendocs ../../../docs/reference

// configCommand is `gpupool config`: what a server process can be told, and what it was told.
func configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Show what a server process can be told, and what it was told"}
	f := &flags{}
	show := &cobra.Command{Use: "show", Short: "Check the configuration and print it whole, defaults filled in and passwords hidden", Args: cobra.NoArgs,
		Long: "Check the configuration and print it whole, defaults filled in and passwords hidden. The file, the environment and the flags are read as a server's verb would. " +
			"What is allowed but probably not meant is said on standard error.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load(nil)
			if err != nil {
				return err
			}
			for _, w := range c.Warnings() {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), c)
			return err
		}}
	f.sources(show)
	c.AddCommand(show,
		&cobra.Command{Use: "example", Short: "Print a configuration file with every setting in it, commented out", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return config.WriteExample(cmd.OutOrStdout()) }},
		&cobra.Command{Use: "reference", Short: "Print all settings with their meaning as a table in Markdown", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return config.WriteReference(cmd.OutOrStdout()) }})
	return c
}

// keysCommand is `gpupool keys`: key files for pools of several processes. Alone, `gpupool up` makes its own.
func keysCommand() *cobra.Command {
	c := &cobra.Command{Use: "keys", Short: "Make the key files that the processes of a pool share"}
	for _, k := range []struct{ name, short, use string }{
		{"payload", "Make the file of temporal.payload_key_file: it encrypts what workflows carry", "Every process that speaks to Temporal needs this file. To rotate it: put a new key's line first everywhere, and drop the old one when temporal.retention has passed."},
		{"secrets", "Make the file of secrets.key_file: it encrypts BMC passwords in the database", "Back it up apart from the database: lost with it are the passwords."},
	} {
		c.AddCommand(&cobra.Command{Use: k.name + " [FILE]", Short: k.short, Args: cobra.MaximumNArgs(1), Long: k.short + ". With FILE it is written there, for its owner only, and never in the place of one that is there; without, it is printed. " + k.use,
			RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					_, err := cmd.OutOrStdout().Write(secret.Keys{secret.NewKey()}.Format())
					return err
				}
				if _, err := os.Lstat(args[0]); err == nil {
					return &schema.Error{Code: schema.CodeConflict, Field: "FILE", Message: args[0] + " is there already", Hint: "to rotate, print a new key and put its line first in the file; the old one goes on reading what it wrote"}
				}
				keys, err := secret.LoadOrCreateKeys(args[0])
				if err == nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s holds key %s\n", args[0], keys[0].ID)
				}
				return err
			}})
	}
	return c
}
