package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) rma() *cobra.Command {
	return group("rma", "Follow parts that go back to their makers", a.rmaList(), a.rmaOpen(), a.rmaSet())
}

func (a *app) rmaList() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List parts that are on their way", Args: exactly(), Example: "  gpupool rma list --all",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.RMAList, error) {
				return call.Do[contract.RMAList](c.ListRMAs(cmd.Context(), &contract.ListRMAsParams{Open: opt(!all)}))
			}, func(l contract.RMAList) {
				t := newTable("ID", "STATE", "OUT", "IN", "CASE", "MODEL", "OPENED", "REPAIR")
				for _, m := range l.Items {
					t.row(m.ID, string(m.State), m.SerialOut, m.SerialIn, m.VendorCase, m.Model, words.Ago(m.OpenedAt, nowInstant()), m.Repair)
				}
				t.write(cmd.OutOrStdout(), "No part is on its way.")
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also closed ones")
	return cmd
}

func (a *app) rmaOpen() *cobra.Command {
	var in contract.NewRMA
	cmd := &cobra.Command{
		Use: "open SERIAL [--note TEXT]", Short: "Begin the return of a part that no repair took out", Args: exactly("SERIAL"), Example: "  gpupool rma open 1650924 --note \"dead on arrival\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.SerialOut = args[0]
			return act(a, cmd, func(c *client.Client) (schema.RMA, error) {
				return call.Do[schema.RMA](c.OpenRMA(cmd.Context(), in))
			}, rmaSentence)
		},
	}
	cmd.Flags().StringVar(&in.Note, "note", "", "what is wrong with it")
	return cmd
}

func (a *app) rmaSet() *cobra.Command {
	var in contract.RMAChange
	cmd := &cobra.Command{
		Use: "set ID|SERIAL [--state S] [--case NUMBER] [--serial-in S] [--note TEXT]", Short: "Say what became of it", Args: exactly("ID or SERIAL"),
		Example: "  gpupool rma set 1650924 --state shipped --case C-20871",
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.RMA, error) {
				return call.Do[schema.RMA](c.ChangeRMA(cmd.Context(), args[0], in))
			}, rmaSentence)
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&in.State), "state", "", "shipped, replaced, repaired or denied")
	f.StringVar(&in.VendorCase, "case", "", "the maker's case number")
	f.StringVar(&in.SerialIn, "serial-in", "", "serial of the part that came")
	f.StringVar(&in.Note, "note", "", "what was said")
	return cmd
}

func rmaSentence(m schema.RMA) string {
	return fmt.Sprintf("RMA %s of %s is %s.", m.ID, m.SerialOut, m.State)
}
