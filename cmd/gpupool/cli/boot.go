package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/pxe"
	"gpupool/schema"
)

// BootWatch is `gpupool pxe watch`: it is a client's verb, beside the server's `gpupool pxe`.
func BootWatch() *cobra.Command {
	a := &app{}
	var server, mac string
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show network boots as they happen: each DHCP message, file and script",
		Args:  exactly(),
		Example: `  gpupool pxe watch --server r12s03
  gpupool pxe watch --mac 52:54:00:77:00:01 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			known := serverNames(cmd, c)
			p := contract.ListEventsParams{Server: opt(server), Kind: &[]string{string(schema.EventBoot)}, Limit: opt(500)}
			if p.After = &after; !cmd.Flags().Changed("after") {
				p.Tail = opt(true)
			}
			for shown := 0; ; {
				l, err := again(cmd, func() (contract.EventList, error) {
					return call.Do[contract.EventList](c.ListEvents(cmd.Context(), &p))
				})
				if err != nil {
					return err
				}
				p.After, p.Tail, p.Wait = opt(l.Next), nil, opt(longPoll.String())
				for _, e := range l.Items {
					var seen schema.BootEvidence
					if err := json.Unmarshal(e.Data, &seen); err != nil {
						return fmt.Errorf("event %d: %w", e.Seq, err)
					}
					if mac != "" && seen.MAC != mac {
						continue
					}
					if a.json() {
						err = jsonLine(cmd.OutOrStdout(), e)
					} else {
						seen.Server = known.of(seen.Server)
						_, err = fmt.Fprintln(cmd.OutOrStdout(), words.Printable(pxe.Line(e.At.Time().Local(), seen), false))
					}
					if err != nil {
						return err
					}
					if shown++; shown == limit {
						return nil
					}
				}
			}
		},
	}
	f := cmd.Flags()
	f.StringVar(&server, "server", "", "only of this server")
	f.StringVar(&mac, "mac", "", "only of this MAC, as 52:54:00:77:00:01; also of machines that the inventory doesn't know")
	f.Int64Var(&after, "after", 0, "begin after the event of this number, as -o json shows it; else with what comes from now on")
	f.IntVar(&limit, "limit", 0, "stop after this many; 0 = no limit")
	f.StringVar(&a.url, "url", "", "the pool's address (else GPUPOOL_URL, else the profile's)")
	f.StringVar(&a.profile, "profile", "", "which profile of the configuration file (else GPUPOOL_PROFILE, else the current one)")
	f.StringVarP(&a.output, "output", "o", "table", "table, or json for programs")
	return cmd
}
