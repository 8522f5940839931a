package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) install() *cobra.Command {
	return group("install", "Install profiles: how operating systems get onto servers", a.installList(), a.installProfiles(), a.installPreview(), a.installSet(), a.installUnset())
}

func (a *app) installList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List which profile servers, racks and models get", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.InstallChoiceList, error) {
				return call.Do[contract.InstallChoiceList](c.ListInstallChoices(cmd.Context()))
			}, func(l contract.InstallChoiceList) {
				t := newTable("FOR", "NAME", "PROFILE", "VALUES", "BY", "SINCE")
				for _, x := range l.Items {
					name := x.Name
					if x.Server != "" {
						name = x.Server
					}
					t.row(string(x.Scope), name, x.Profile, valueWords(x.Values), x.By, words.Clock(x.At, nowInstant()))
				}
				t.write(cmd.OutOrStdout(), "Nothing is chosen: servers are installed with the profile image, but for those that name another.")
			})
		},
	}
}

// valueWords are values on one line, as --value takes them.
func valueWords(values map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		out = append(out, key+"="+words.Printable(values[key], false))
	}
	return strings.Join(out, " ")
}

func (a *app) installProfiles() *cobra.Command {
	return &cobra.Command{
		Use: "profiles [NAME]", Short: "List the profiles there are, or show what may be set of one", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(a, cmd, func(c *client.Client) (contract.InstallProfileList, error) {
				l, err := call.Do[contract.InstallProfileList](c.ListInstallProfiles(cmd.Context()))
				if err == nil && len(args) == 1 {
					all := l.Items
					l.Items = slices.DeleteFunc(slices.Clone(all), func(p contract.InstallProfile) bool { return p.Name != args[0] })
					if len(l.Items) == 0 {
						names := make([]string, len(all))
						for i, p := range all {
							names[i] = p.Name
						}
						err = schema.Invalid("profile", args[0], "one of "+strings.Join(names, ", "))
					}
				}
				return l, err
			}, func(l contract.InstallProfileList) {
				out := cmd.OutOrStdout()
				if len(args) == 0 {
					t := newTable("NAME", "ARCH", "SOURCE", "WHAT")
					for _, p := range l.Items {
						t.row(p.Name, strings.Join(p.Arch, ","), p.Source, p.Title)
					}
					t.write(out, "No profiles.")
					return
				}
				p := l.Items[0]
				fmt.Fprintf(out, "%s: %s (%s; %s)\n%s\nDocuments: %s\n\n", p.Name, words.Printable(p.Title, false), p.Source, strings.Join(p.Arch, ", "), words.Printable(p.Help, true), strings.Join(p.Documents, ", "))
				t := newTable("VALUE", "TYPE", "DEFAULT", "WHAT")
				for _, v := range p.Values {
					kind := v.Type
					if len(v.Options) > 0 {
						kind = strings.Join(v.Options, "|")
					}
					t.row(v.Name, kind, v.Default, v.Help)
				}
				t.write(out, "Nothing may be set of it.")
			})
		},
	}
}

func (a *app) installPreview() *cobra.Command {
	var in contract.PreviewOptions
	var values []string
	var document string
	cmd := &cobra.Command{
		Use: "preview SERVER", Short: "Show what a server would boot and fetch; nothing is armed", Args: exactly("SERVER"),
		Long: `Show what a server would boot and fetch, with stand-ins where an attempt has its boot token. Nothing is armed and no token is
made. Without flags it is what the server would get now; --install-profile and --value try something else.`,
		Example: `  gpupool install preview r12s03
  gpupool install preview r12s03 --install-profile debian-preseed --value disk=/dev/nvme0n1 --document preseed.cfg`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if in.Values, err = readValues(values); err != nil {
				return err
			}
			return show(a, cmd, func(c *client.Client) (contract.InstallPreview, error) {
				p, err := call.Do[contract.InstallPreview](c.PreviewInstall(cmd.Context(), args[0], in))
				if err == nil && document != "" && !slices.ContainsFunc(p.Documents, func(d contract.InstallDocument) bool { return d.Name == document }) {
					names := make([]string, len(p.Documents))
					for i, d := range p.Documents {
						names[i] = d.Name
					}
					err = schema.Invalid("document", document, "one of "+strings.Join(names, ", "))
				}
				return p, err
			}, func(p contract.InstallPreview) {
				out := cmd.OutOrStdout()
				for _, d := range p.Documents {
					if d.Name == document {
						fmt.Fprint(out, words.Printable(d.Body, true))
						return
					}
				}
				fmt.Fprintf(out, "%s would be installed with %s (chosen for: %s).\n", p.Server, p.Profile, p.ChosenFor)
				if len(p.Values) > 0 {
					fmt.Fprintf(out, "values  %s\n", valueWords(p.Values))
				}
				fmt.Fprintf(out, "kernel  %s\ninitrd  %s\nargs    %s\n", p.Kernel, strings.Join(p.Initrd, " "), p.Args)
				for _, d := range p.Documents {
					fmt.Fprintf(out, "\n--- %s (%s)\n%s", d.Name, d.ContentType, words.Printable(d.Body, true))
				}
				fmt.Fprintf(out, "\n--- agent.json: made at the fetch, once; it holds the attempt's phone-home token.\n")
			})
		},
	}
	cmd.Flags().StringVar(&in.Profile, "install-profile", "", "this profile, instead of the server's")
	cmd.Flags().StringArrayVar(&values, "value", nil, "a value of the profile, NAME=VALUE; a list with commas between")
	cmd.Flags().StringVar(&document, "document", "", "only this document")
	return cmd
}

// readValues reads NAME=VALUE.
func readValues(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, p := range pairs {
		name, text, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--value %q: want NAME=VALUE", p)}
		}
		out[name] = text
	}
	return out, nil
}

// choiceFlags name what a choice is for; exactly one.
type choiceFlags struct{ server, rack, model string }

func (f *choiceFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.server, "server", "", "for one server")
	cmd.Flags().StringVar(&f.rack, "rack", "", "for the servers of a rack, as SITE/RACK")
	cmd.Flags().StringVar(&f.model, "model", "", "for the servers of an accelerator model")
	cmd.MarkFlagsMutuallyExclusive("server", "rack", "model")
	cmd.MarkFlagsOneRequired("server", "rack", "model")
}

func (f *choiceFlags) scope() (schema.InstallScope, string) {
	switch {
	case f.server != "":
		return schema.InstallServer, f.server
	case f.rack != "":
		return schema.InstallRack, f.rack
	default:
		return schema.InstallModel, f.model
	}
}

func (a *app) installSet() *cobra.Command {
	var of choiceFlags
	var values []string
	cmd := &cobra.Command{
		Use: "set PROFILE --server NAME | --rack SITE/RACK | --model MODEL", Short: "Choose a profile for a server, a rack or a model", Args: exactly("PROFILE"),
		Long: `Choose a profile, in the place of what was chosen. The nearest choice holds: a server's own, else its rack's, else its model's,
else the profile image. A server that is being installed goes on with what it was armed with.`,
		Example: `  gpupool install set debian-preseed --model nvidia-h100-80gb --value mirror=http://mirror.example.net/debian
  gpupool install set ubuntu-autoinstall --rack ams1/r12 --value packages=chrony,curl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := contract.NewInstallChoice{Profile: args[0]}
			in.Scope, in.Name = of.scope()
			var err error
			if in.Values, err = readValues(values); err != nil {
				return err
			}
			return act(a, cmd, func(c *client.Client) (contract.InstallChoice, error) {
				x, err := call.Do[contract.InstallChoice](c.SetInstallChoice(cmd.Context(), in))
				if err != nil {
					return x, err
				}
				return x, warnOfEmptyRack(cmd, c, x)
			}, func(x contract.InstallChoice) string {
				return fmt.Sprintf("%s %s is installed with %s from now on.", x.Scope, in.Name, x.Profile)
			})
		},
	}
	of.add(cmd)
	cmd.Flags().StringArrayVar(&values, "value", nil, "a value of the profile, NAME=VALUE; a list with commas between")
	return cmd
}

// warnOfEmptyRack says where a choice is of a rack that has no server: it holds for those to come, or its name is misspelt.
func warnOfEmptyRack(cmd *cobra.Command, c *client.Client, x contract.InstallChoice) error {
	if x.Scope != schema.InstallRack {
		return nil
	}
	site, rack, _ := strings.Cut(x.Name, "/")
	l, err := call.Do[contract.ServerList](c.ListServers(cmd.Context(), &contract.ListServersParams{Site: &site, Rack: &rack, Limit: opt(1)}))
	if err == nil && len(l.Items) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "No server of the pool is in %s: it holds for those that come. If it is misspelt: gpupool install unset --rack %s\n", x.Name, x.Name)
	}
	return err
}

func (a *app) installUnset() *cobra.Command {
	var of choiceFlags
	cmd := &cobra.Command{
		Use: "unset --server NAME | --rack SITE/RACK | --model MODEL", Short: "Take a choice back; the next wider one holds", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			scope, name := of.scope()
			if err := call.Check(c.RemoveInstallChoice(cmd.Context(), &contract.RemoveInstallChoiceParams{Scope: scope, Name: name})); err != nil {
				return err
			}
			return a.said(cmd, struct{}{}, "The choice of %s %s is taken back.", scope, name)
		},
	}
	of.add(cmd)
	return cmd
}
