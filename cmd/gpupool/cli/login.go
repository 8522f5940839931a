package cli

import (
	"cmp"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema"
)

func (a *app) login() *cobra.Command {
	var ca string
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Check a token and keep it with the pool's address",
		Long: `Check a token against the pool and keep both in ~/.config/gpupool/config.yaml, which only you can read. The token is
asked for, or read from standard input, so that it is in no history and no process list. With --profile several pools
are kept side by side; the last one signed in to is the current one.`,
		Example: `  gpupool login --url https://pool.example.org
  gpupool login --url https://lab.example.org --profile lab < token.txt`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := configPath()
			if err != nil {
				return err
			}
			file, err := loadProfiles(path)
			if err != nil {
				return err
			}
			name := cmp.Or(a.profile, "default")
			p := Profile{URL: cmp.Or(a.url, os.Getenv("GPUPOOL_URL"), file.Profiles[name].URL, defaultURL), CA: cmp.Or(ca, os.Getenv("GPUPOOL_CA"))}
			if err := checkURL(p.URL); err != nil {
				return err
			}
			if p.Token = os.Getenv("GPUPOOL_TOKEN"); p.Token == "" {
				if p.Token, err = secret(cmd, "API token for "+p.URL); err != nil {
					return err
				}
			}
			if p.Token == "" {
				return &schema.Error{Code: schema.CodeInvalid, Field: "token", Message: "is empty", Hint: "gpt_..., as printed when it was made"}
			}
			c, err := dial(p)
			if err != nil {
				return err
			}
			me, err := call.Do[contract.Identity](c.Whoami(cmd.Context()))
			if err != nil {
				return err
			}
			file.Current, file.Profiles[name] = name, p
			if err := file.save(path); err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), me)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Signed in to %s as %s (%s); kept as profile %q.\n", p.URL, me.Name, roleWords(me), name)
			return nil
		},
	}
	cmd.Flags().StringVar(&ca, "ca", "", "PEM file of the authority that signed the pool's certificate")
	return cmd
}

func (a *app) whoami() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show who the token is and what it may do", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			me, err := call.Do[contract.Identity](c.Whoami(cmd.Context()))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), me)
			}
			f := fields{cmd.OutOrStdout()}
			f.put("Name", me.Name)
			f.put("Role", roleWords(me))
			if !me.ExpiresAt.IsZero() {
				f.put("Expires", me.ExpiresAt.String())
			}
			return nil
		},
	}
}

func roleWords(me contract.Identity) string {
	s := string(me.Role)
	if me.Tenant != "" {
		s += " of tenant " + me.Tenant
	}
	if me.Project != "" {
		s += ", project " + me.Project
	}
	return s
}
