package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"gpupool/activities/bmc"
	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// found is a BMC that answered, with what a login showed where one was asked for.
type found struct {
	bmc.Found
	Serial string `json:"serial,omitempty"`
	Model  string `json:"model,omitempty"`
	// Listed says whether the serial is one of the allow-list.
	Listed bool   `json:"listed,omitempty"`
	Error  string `json:"error,omitempty"`
}

func (a *app) bmcDiscover() *cobra.Command {
	var allow, user, file, site, from string
	var port, logins int
	var plain bool
	cmd := &cobra.Command{
		Use: "discover RANGE", Short: "Look for BMCs in an address range, from this machine or from a site", Args: exactly("RANGE"),
		Long: `Ask every address of a range, such as 10.20.0.0/24, for a Redfish service, from the machine that this runs on, or with --from SITE
from a worker of that site, where its BMC network is reached. Each is asked once and nothing is logged in to: what is shown is what a
BMC tells everyone. With --from and --user each that answers is logged in to, once, and its serial held against the site's
allow-list (` + "`gpupool bmc allow`" + `).

With --allow FILE, the serials of the machines that you ordered, one a line, those that answer are logged in to, each with the one
password given, once, and are marked where their serial is on the list. Only these are yours to enrol. The password comes from
--password-file, from GPUPOOL_BMC_PASSWORD, or is asked for.

With --site what was found is kept with the pool, for ` + "`gpupool bmc found`" + `, and with --from always. Nothing is enrolled by this.`,
		Example: `  gpupool bmc discover 10.20.0.0/24
  gpupool bmc discover 10.20.0.0/24 --site hall-1
  gpupool bmc discover 10.20.0.0/24 --from hall-1
  gpupool bmc discover 10.20.0.0/24 --from hall-1 --user root --password-file factory.txt
  gpupool bmc discover 10.20.0.0/24 --allow serials.txt --user root --password-file factory.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := netip.ParsePrefix(args[0])
			if err != nil {
				return schema.Invalid("range", args[0], "an address and the length of its network, like 10.20.0.0/24")
			}
			if port < 0 || port > 65535 {
				return schema.Invalid("port", port, "1 to 65535, or 0 for 443")
			}
			if from != "" {
				if allow != "" || site != "" {
					return usageError{errors.New("--from keeps what it finds, and goes by the site's own allow-list: it goes with neither --site nor --allow")}
				}
				in := contract.NewBMCProbe{Site: from, Range: prefix.String(), Port: port, PlainHttp: plain, Username: user}
				if user != "" {
					if in.Password, err = bmcPassword(cmd, file); err != nil {
						return err
					}
				}
				return a.discoverFrom(cmd, in)
			}
			if (allow == "") != (user == "") {
				return usageError{errors.New("--allow and --user go together: serials are read by logging in")}
			}
			var serials map[string]bool
			var password string
			if allow != "" {
				if serials, err = readSerials(allow); err != nil {
					return err
				}
				if password, err = bmcPassword(cmd, file); err != nil {
					return err
				}
			}
			list, err := bmc.Probe(cmd.Context(), prefix, bmc.ProbeConfig{Port: port, HTTP: plain, Timeout: 3 * time.Second})
			if err != nil {
				return err
			}
			known := make([]bmc.Recognised, len(list))
			if allow != "" {
				known = bmc.Recognise(cmd.Context(), list, user, password, logins)
			}
			out := make([]found, len(list))
			for i, f := range list {
				out[i] = found{Found: f, Serial: known[i].Serial, Model: known[i].Model, Listed: serials[strings.ToUpper(known[i].Serial)]}
				if known[i].Err != nil {
					out[i].Error = known[i].Err.Error()
				}
			}
			if site != "" {
				if err := a.keepFound(cmd, site, out, allow != ""); err != nil {
					return err
				}
			}
			return a.showFound(cmd, out, allow != "", noneAnswers(port, plain))
		},
	}
	f := cmd.Flags()
	f.IntVar(&port, "port", 0, "port to ask; 0 = 443")
	f.BoolVar(&plain, "http", false, "plain HTTP, for labs")
	f.StringVar(&allow, "allow", "", "file with the serials of your machines, one a line")
	f.StringVar(&user, "user", "", "account to read serials with")
	f.StringVar(&file, "password-file", "", "file whose first line is its password")
	f.StringVar(&site, "site", "", "keep what was found with the pool, as of this site")
	f.StringVar(&from, "from", "", "have a worker of this site ask, rather than this machine")
	f.IntVar(&logins, "at-once", 16, "how many are logged in to at once")
	return cmd
}

// discoverFrom has a worker of a site probe a range, and waits for it.
func (a *app) discoverFrom(cmd *cobra.Command, in contract.NewBMCProbe) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	p, err := call.Do[schema.BMCProbe](c.ProbeBMCs(cmd.Context(), in))
	for err == nil && p.EndedAt == 0 {
		p, err = again(cmd, func() (schema.BMCProbe, error) {
			return call.Do[schema.BMCProbe](c.GetBMCProbe(cmd.Context(), p.ID, &contract.GetBMCProbeParams{Since: &p.Version, Wait: opt(longPoll.String())}))
		})
	}
	if err == nil && p.Failure != "" {
		err = &schema.Error{Code: p.FailureCode, Message: p.Failure}
	}
	if err != nil {
		return err
	}
	if a.json() {
		return printJSON(cmd.OutOrStdout(), map[string]any{"items": p.Found})
	}
	t := newTable("ADDRESS", "VENDOR", "PRODUCT", "UUID")
	if p.LogsIn {
		t = newTable("ADDRESS", "MODEL", "SERIAL", "LISTED", "TROUBLE")
	}
	for _, f := range p.Found {
		if p.LogsIn {
			t.row(f.Address, f.Product, f.Serial, string(f.Listed), f.Trouble)
		} else {
			t.row(f.Address, f.Vendor, f.Product, f.UUID)
		}
	}
	t.write(cmd.OutOrStdout(), noneAnswers(in.Port, in.PlainHttp))
	return nil
}

// noneAnswers says what was asked where no BMC answered.
func noneAnswers(port int, plain bool) string {
	by := "HTTPS"
	if plain {
		by = "plain HTTP"
	}
	return fmt.Sprintf("Nothing there speaks Redfish by %s at port %d. Other ports: --port; plain HTTP, as in the lab: --http.", by, cmp.Or(port, 443))
}

func readSerials(file string) (map[string]bool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "allow", Message: err.Error(), Hint: "a text file with one serial a line"}
	}
	out := map[string]bool{}
	for lines := bufio.NewScanner(strings.NewReader(string(b))); lines.Scan(); {
		if s := strings.ToUpper(strings.TrimSpace(lines.Text())); s != "" && !strings.HasPrefix(s, "#") {
			out[s] = true
		}
	}
	if len(out) == 0 {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "allow", Message: "there is no serial in " + file, Hint: "one serial a line"}
	}
	return out, nil
}

func (a *app) showFound(cmd *cobra.Command, list []found, named bool, none string) error {
	if a.json() {
		return printJSON(cmd.OutOrStdout(), map[string]any{"items": list})
	}
	t := newTable("ADDRESS", "VENDOR", "PRODUCT", "UUID", "REDFISH")
	if named {
		t = newTable("ADDRESS", "MODEL", "SERIAL", "LISTED", "TROUBLE")
	}
	for _, f := range list {
		if !named {
			t.row(f.Address, f.Vendor, f.Product, f.UUID, f.Redfish)
			continue
		}
		listed := "no"
		if f.Listed {
			listed = "yes"
		}
		t.row(f.Address, f.Model, f.Serial, listed, f.Error)
	}
	t.write(cmd.OutOrStdout(), none)
	return nil
}

// keepFound tells the pool. With an allow-list only what is on it is told.
func (a *app) keepFound(cmd *cobra.Command, site string, list []found, allowed bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	in := contract.NewFoundBMCs{Site: site, Items: []contract.NewFoundBMC{}}
	for _, f := range list {
		if !allowed || f.Listed {
			in.Items = append(in.Items, contract.NewFoundBMC{Address: f.Address, Vendor: f.Vendor, Product: cmp.Or(f.Model, f.Product), Uuid: f.UUID, Serial: f.Serial, TlsKey: f.TLSPin})
		}
	}
	_, err = call.Do[contract.FoundBMCList](c.KeepFoundBMCs(cmd.Context(), in))
	return err
}

func (a *app) bmcFound() *cobra.Command {
	var site string
	var enrollment bool
	cmd := &cobra.Command{
		Use: "found", Short: "List BMCs that were found and that no server is enrolled with", Args: cobra.NoArgs,
		Long: `List BMCs that answered ` + "`gpupool bmc discover --site`" + ` or that asked the pool's DHCP for an address (pxe.discover_unknown), and that
no server is enrolled with. An address that begins with mac: is one that has been given none yet. LISTED says whether its serial is on
the site's allow-list; unknown is one that nobody has logged in to.

With --enrollment those with an address are printed as servers to enrol: fill in what a BMC does not tell, and give the file to
` + "`gpupool server enroll -f FILE`" + `.`,
		Example: "  gpupool bmc found --site hall-1\n  gpupool bmc found --site hall-1 --enrollment > servers.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			list, err := call.Do[contract.FoundBMCList](c.ListFoundBMCs(cmd.Context(), &contract.ListFoundBMCsParams{Site: opt(site)}))
			if err != nil {
				return err
			}
			switch {
			case a.json():
				return printJSON(cmd.OutOrStdout(), list)
			case enrollment:
				return printEnrollment(cmd.OutOrStdout(), list.Items)
			}
			now := nowInstant()
			t := newTable("ADDRESS", "SITE", "VENDOR", "PRODUCT", "SERIAL", "LISTED", "VIA", "SEEN")
			for _, f := range list.Items {
				t.row(f.Address, f.Site, f.Vendor, f.Product, f.Serial, cmp.Or(string(f.Listed), "-"), f.Via, words.Ago(f.LastSeen, now))
			}
			t.write(cmd.OutOrStdout(), "None was found that is not enrolled.")
			return nil
		},
	}
	cmd.Flags().StringVar(&site, "site", "", "only of this site")
	cmd.Flags().BoolVar(&enrollment, "enrollment", false, "print them as servers to enrol")
	return cmd
}

func (a *app) bmcAllow() *cobra.Command {
	var site string
	var none bool
	cmd := &cobra.Command{
		Use: "allow [FILE] --site SITE", Short: "Say by their serials which machines a site was sent, or show the list", Args: cobra.MaximumNArgs(1),
		Long: `Say which machines a site was sent: FILE has their serials, one a line, and takes the place of the list before. While a site has a
list, a machine whose serial is not on it is neither kept when a probe finds it, nor enrolled, nor installed. Without FILE the list
is printed; --none takes it away, and all are allowed again.`,
		Example: "  gpupool bmc allow ordered.txt --site hall-1\n  gpupool bmc allow --site hall-1 > ordered.txt\n  gpupool bmc allow --site hall-1 --none",
		RunE: func(cmd *cobra.Command, args []string) error {
			if none && len(args) > 0 {
				return usageError{errors.New("--none takes the list away: it goes with no FILE")}
			}
			in := contract.AllowedSerials{Site: site, Serials: []string{}}
			if len(args) > 0 {
				serials, err := readSerials(args[0])
				if err != nil {
					return err
				}
				in.Serials = slices.Sorted(maps.Keys(serials))
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			if none || len(args) > 0 {
				list, err := call.Do[contract.AllowedSerials](c.SetAllowedSerials(cmd.Context(), in))
				switch {
				case err != nil:
					return err
				case none:
					return a.said(cmd, list, "Site %s has no allow-list: all machines are allowed.", site)
				}
				return a.said(cmd, list, "Site %s allows these machines and no others: %d", site, len(list.Serials))
			}
			list, err := call.Do[contract.AllowedSerials](c.ListAllowedSerials(cmd.Context(), &contract.ListAllowedSerialsParams{Site: site}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), list)
			}
			for _, s := range list.Serials {
				fmt.Fprintln(cmd.OutOrStdout(), words.Printable(s, false))
			}
			if len(list.Serials) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), words.Printable("Site "+site+" has no allow-list: all machines are allowed.", false))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&site, "site", "", "the site (required)")
	cmd.Flags().BoolVar(&none, "none", false, "take the list away")
	required(cmd, "site")
	return cmd
}

// printEnrollment prints what is known of each, and the rest to be filled in: an empty field is refused by its name.
func printEnrollment(w io.Writer, list []schema.BMCFound) error {
	var out []any
	for _, f := range list {
		if strings.HasPrefix(f.Address, "mac:") || f.Listed == schema.ListedNo {
			continue
		}
		out = append(out, struct {
			Name         string   `yaml:"name"`
			Region       string   `yaml:"region"`
			Site         string   `yaml:"site"`
			Rack         string   `yaml:"rack"`
			Serial       string   `yaml:"serial"`
			MACs         []string `yaml:"macs"`
			Address      string   `yaml:"bmc_address"`
			Username     string   `yaml:"bmc_username"`
			Password     string   `yaml:"bmc_password"`
			Model        string   `yaml:"model"`
			Accelerators int      `yaml:"accelerators"`
			CPUs         int      `yaml:"cpus"`
			Memory       int64    `yaml:"memory_bytes"`
		}{Site: f.Site, Serial: f.Serial, MACs: []string{}, Address: f.Address})
	}
	b, err := yaml.Marshal(map[string]any{"servers": append([]any{}, out...)})
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}
