package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) repair() *cobra.Command {
	return group("repair", "See what waits for a technician, and say what was done", a.repairList(), a.repairShow(), a.repairDone())
}

func (a *app) repairList() *cobra.Command {
	var all bool
	var server string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List open repairs", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			l, err := call.Do[contract.RepairList](c.ListRepairs(cmd.Context(), &contract.ListRepairsParams{Server: opt(server), Open: opt(!all)}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), l)
			}
			names := serverNames(cmd, c)
			now := nowInstant()
			t := newTable("ID", "SERVER", "STATE", "LOCATION", "PART", "OPENED", "CAUSE")
			for _, r := range l.Items {
				t.row(r.ID, names.of(r.Server), string(r.State), r.Location, r.Part, words.Ago(r.OpenedAt, now), r.Cause)
			}
			t.write(cmd.OutOrStdout(), "Nothing to repair.")
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also closed ones")
	cmd.Flags().StringVar(&server, "server", "", "only of this server")
	return cmd
}

func (a *app) repairShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a repair: where, what is wrong, what is asked", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[schema.Repair](c.GetRepair(cmd.Context(), args[0], &contract.GetRepairParams{}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), r)
			}
			now := nowInstant()
			f := fields{cmd.OutOrStdout()}
			f.put("Repair", r.ID)
			f.put("State", string(r.State)+": "+words.Repair(r))
			f.put("Server", serverNames(cmd, c).of(r.Server))
			f.put("Location", r.Location)
			f.put("Part", r.Part)
			f.put("Cause", r.Cause)
			f.put("Waits because", r.WaitingWhy)
			if r.Returns > 0 {
				f.put("Came back", strconv.Itoa(r.Returns))
			}
			f.put("Old serial", r.OldSerial)
			f.put("New serial", r.NewSerial)
			f.put("Done by", r.DoneBy)
			f.put("Note", r.Note)
			f.put("Opened", words.Clock(r.OpenedAt, now)+" ("+words.Ago(r.OpenedAt, now)+")")
			f.put("Drained", words.Clock(r.DrainedAt, now))
			f.put("Done", words.Clock(r.DoneAt, now))
			f.put("Closed", words.Clock(r.ClosedAt, now))
			return nil
		},
	}
}

func (a *app) repairDone() *cobra.Command {
	var in contract.RepairDone
	var detach bool
	cmd := &cobra.Command{
		Use:   "done ID [--old-serial S --new-serial S] [--note TEXT]",
		Short: "Say what was done; watch the hardware being proven",
		Long: `Say what was done to a server that waits for a technician. Hardware does not return by this: the server is inspected and
what was touched is burnt in first. The watch ends when it is back in the pool (exit code 0), or waits again (20).`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[schema.Repair](c.FinishRepair(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			if detach || a.json() {
				return a.said(cmd, r, "%s is %s.", r.ID, r.State)
			}
			return watchRepair(cmd, c, r)
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.OldSerial, "old-serial", "", "serial of the part taken out")
	f.StringVar(&in.NewSerial, "new-serial", "", "serial of the part put in")
	f.StringVar(&in.Note, "note", "", "what was found and done")
	f.BoolVar(&detach, "detach", false, "return at once")
	return cmd
}

// watchRepair shows a repair's changes until its proof has come out. Waiting counts as an outcome only with a later
// return than at the start: the repair may still be waiting when the technician's word has just been taken.
func watchRepair(cmd *cobra.Command, c *client.Client, r schema.Repair) error {
	returns, last := r.Returns, ""
	for {
		if l := string(r.State) + ": " + words.Repair(r); l != last {
			last = l
			fmt.Fprintln(cmd.OutOrStdout(), nowInstant().Time().Format("15:04:05Z")+"  "+words.Printable(l, false))
		}
		switch {
		case r.State == schema.RepairReturned:
			return nil
		case r.State == schema.RepairCancelled:
			return &exitError{code: ExitStopped}
		case r.State == schema.RepairWaiting && r.Returns > returns:
			return &exitError{ExitStopped, "not proven: " + r.WaitingWhy}
		}
		next, err := again(cmd, func() (schema.Repair, error) {
			return call.Do[schema.Repair](c.GetRepair(cmd.Context(), r.ID, &contract.GetRepairParams{Since: &r.Version, Wait: opt(longPoll.String())}))
		})
		if err != nil {
			return err
		}
		r = next
	}
}
