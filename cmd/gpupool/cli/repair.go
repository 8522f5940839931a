package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) repair() *cobra.Command {
	return group("repair", "See what waits for a technician, and say what was done", a.repairList(), a.repairShow(), a.repairWatch(), a.repairClaim(), a.repairDone(), a.repairGiveUp(), a.repairDrainNow(), a.repairLight(), a.repairPhoto(), a.repairPhotos(), a.repairEvidence())
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
			now := nowInstant()
			t := newTable("ID", "STATE", "OPENED", "LOCATION", "CAUSE")
			for _, r := range l.Items {
				state := string(r.State)
				if r.Owner == schema.OwnerOperators {
					state = "could not be fixed"
				}
				t.row(r.ID, state, words.Ago(r.OpenedAt, now), r.Location, r.Cause)
			}
			t.write(cmd.OutOrStdout(), "Nothing to repair.")
			held, err := heldBack(cmd, c)
			if n := len(held); n > 0 && server == "" {
				is := "are"
				if n == 1 {
					is = "is"
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s kept from being repaired by a breaker: gpupool health breakers\n", words.Count(n, "server"), is)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also closed ones")
	cmd.Flags().StringVar(&server, "server", "", "only of this server")
	return cmd
}

func (a *app) repairShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID|SERVER", Short: "Show a repair: where, what is wrong, what is asked", Args: exactly("ID or SERVER"),
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
			f.put("What to do", repairNext(r))
			if r.ClosedAt.IsZero() {
				f.put("Next", r.NextStep+" ("+r.Owner+", by "+words.Clock(r.Deadline, now)+")")
			}
			f.put("Tried", r.Tried)
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
			f.put("Claimed by", r.ClaimedBy)
			if l, err := call.Do[contract.RepairLightAct](c.GetRepairLight(cmd.Context(), r.ID)); err == nil {
				f.put("Locator light", words.Light(l.Lit, l.By, l.EndedAt, l.Failure))
			}
			if l, err := call.Do[contract.RepairPhotoList](c.ListRepairPhotos(cmd.Context(), r.ID)); err == nil && len(l.Items) > 0 {
				f.put("Photos", strconv.Itoa(len(l.Items))+": gpupool repair photos "+r.ID)
			}
			f.put("Done by", r.DoneBy)
			f.put("Did", string(r.Did))
			f.put("Note", r.Note)
			f.put("Opened", words.Clock(r.OpenedAt, now)+" ("+words.Ago(r.OpenedAt, now)+")")
			f.put("Drained", words.Clock(r.DrainedAt, now))
			f.put("Done", words.Clock(r.DoneAt, now))
			f.put("Closed", words.Clock(r.ClosedAt, now))
			f.put("On probation until", words.Clock(r.ProbationUntil, now))
			return nil
		},
	}
}

// repairNext is the command that comes next for a repair.
func repairNext(r schema.Repair) string {
	switch {
	case r.State == schema.RepairWaiting && r.OldSerial != "":
		return "gpupool repair done " + r.ID + " \\\n  --old-serial " + r.OldSerial + " --new-serial NEW --note TEXT"
	case r.State == schema.RepairWaiting:
		return "gpupool repair done " + r.ID + " --note TEXT"
	case r.ClosedAt.IsZero():
		return "gpupool repair watch " + r.ID
	}
	return ""
}

func (a *app) repairDone() *cobra.Command {
	var in contract.RepairDone
	var detach bool
	cmd := &cobra.Command{
		Use:   "done ID|SERVER [--old-serial S --new-serial S] [--note TEXT]",
		Short: "Say what was done; watch the hardware being proven",
		Long: `Say what was done to a server that waits for a technician. Hardware does not return by this: the server is inspected and
what was touched is burnt in first. The watch ends when it is back in the pool (exit code 0), or waits again (20).`,
		Args: exactly("ID or SERVER"),
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
			return watchRepair(cmd, c, r, beforeProof(r))
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.OldSerial, "old-serial", "", "serial of the part taken out")
	f.StringVar(&in.NewSerial, "new-serial", "", "serial of the part put in")
	f.StringVar((*string)(&in.Did), "did", "", "replaced, reseated, cleaned, firmware, cabling, nothing-found or other")
	f.StringVar(&in.Note, "note", "", "what was found and done")
	f.BoolVar(&detach, "detach", false, "return at once")
	return cmd
}

func (a *app) repairClaim() *cobra.Command {
	var in contract.RepairClaim
	cmd := &cobra.Command{
		Use: "claim ID|SERVER", Short: "Say that you work on it", Args: exactly("ID or SERVER"), Example: "  gpupool repair claim rep_01k8",
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Repair, error) {
				return call.Do[schema.Repair](c.ClaimRepair(cmd.Context(), args[0], in))
			}, func(r schema.Repair) string {
				return fmt.Sprintf("%s is %s's: %s at %s.", r.ID, r.ClaimedBy, r.Part, r.Location)
			})
		},
	}
	cmd.Flags().BoolVar(&in.Force, "force", false, "take it over from who claimed it")
	return cmd
}

func (a *app) repairGiveUp() *cobra.Command {
	var in contract.RepairNote
	cmd := &cobra.Command{
		Use: "could-not-fix ID|SERVER --note TEXT", Short: "Say that it can't be done here: operators are called, the server stays out", Args: exactly("ID or SERVER"),
		Example: "  gpupool repair could-not-fix rep_01k8 --note \"two cards failed in the same slot\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Repair, error) {
				return call.Do[schema.Repair](c.GiveUpRepair(cmd.Context(), args[0], in))
			}, func(r schema.Repair) string {
				return r.ID + " waits for " + r.Owner + ": " + r.NextStep + "."
			})
		},
	}
	cmd.Flags().StringVar(&in.Note, "note", "", "what was tried (required)")
	required(cmd, "note")
	return cmd
}

func (a *app) repairDrainNow() *cobra.Command {
	var in contract.WithReason
	cmd := &cobra.Command{
		Use: "drain-now ID|SERVER --reason TEXT", Short: "Ask the jobs on its server to end, and don't wait for them", Args: exactly("ID or SERVER"),
		Example: "  gpupool repair drain-now r12s03 --reason \"the tenant agrees\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Repair, error) {
				return call.Do[schema.Repair](c.DrainRepairNow(cmd.Context(), args[0], in))
			}, func(r schema.Repair) string { return r.ID + " is " + string(r.State) + ": its jobs were asked to end." })
		},
	}
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why its jobs are not waited for (required)")
	required(cmd, "reason")
	return cmd
}

func (a *app) repairLight() *cobra.Command {
	return &cobra.Command{
		Use: "light ID|SERVER on|off", Short: "Switch the locator light of its server", Args: exactly("ID or SERVER", "on or off"), Example: "  gpupool repair light rep_01k8 on",
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] != "on" && args[1] != "off" {
				return schema.Invalid("light", args[1], "on or off")
			}
			return act(a, cmd, func(c *client.Client) (contract.RepairLightAct, error) {
				return call.Do[contract.RepairLightAct](c.LightRepair(cmd.Context(), args[0], contract.RepairLight{Lit: args[1] == "on"}))
			}, func(contract.RepairLightAct) string {
				return "The locator light of " + args[0] + " is being switched " + args[1] + "."
			})
		},
	}
}

func (a *app) repairPhoto() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use: "photo ID|SERVER FILE... [--note TEXT]", Short: "Keep photos with a repair", Example: "  gpupool repair photo rep_01k8 IMG_2041.jpg --note \"burnt connector\"",
		Long: "Keep photos with a repair: JPEG or PNG, up to 16 MiB each, 20 for a repair. They are kept as they are, with what the camera\nwrote into them. The same photo again changes nothing.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var kept contract.RepairPhotoList
			for _, name := range args[1:] {
				p, err := sendPhoto(cmd, c, args[0], name, note)
				if e, ok := errors.AsType[*schema.Error](err); ok && e.Field == "photo" { // which of several it is
					e.Field = name
				}
				if err != nil {
					return err
				}
				kept.Items = append(kept.Items, p)
				if !a.json() {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: kept as %s, %d x %d pixels.\n", words.Printable(name, false), p.ID[:12], p.Width, p.Height)
				}
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), kept)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "what they show")
	return cmd
}

// sendPhoto reads no more of a file than a photo may have: what it is is the pool's to say.
func sendPhoto(cmd *cobra.Command, c *client.Client, repair, name, note string) (schema.RepairPhoto, error) {
	f, err := os.Open(name)
	if err != nil {
		return schema.RepairPhoto{}, err
	}
	defer f.Close()
	return call.Do[schema.RepairPhoto](c.AddRepairPhotoWithBody(cmd.Context(), repair, &contract.AddRepairPhotoParams{Note: opt(note)}, "image/jpeg", io.LimitReader(f, schema.MaxPhotoBytes+1)))
}

func (a *app) repairPhotos() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "photos ID|SERVER [--to FOLDER]", Short: "List a repair's photos, or fetch them", Args: exactly("ID or SERVER"), Example: "  gpupool repair photos rep_01k8 --to ./photos",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			l, err := call.Do[contract.RepairPhotoList](c.ListRepairPhotos(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			if dir != "" {
				for _, p := range l.Items {
					if err := fetchPhoto(cmd, c, p, dir); err != nil {
						return err
					}
				}
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), l)
			}
			t := newTable("PHOTO", "TYPE", "SIZE", "PIXELS", "BY", "WHEN", "NOTE")
			for _, p := range l.Items {
				t.row(photoName(p), p.Type, strconv.FormatInt(p.Bytes, 10), fmt.Sprintf("%dx%d", p.Width, p.Height), p.By, words.Ago(p.At, nowInstant()), p.Note)
			}
			t.write(cmd.OutOrStdout(), "No photo was kept.")
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "to", "", "write them into this folder")
	return cmd
}

// photoName is what its file is called: nothing that somebody typed is in it.
func photoName(p schema.RepairPhoto) string {
	return p.ID[:12] + "." + strings.TrimPrefix(p.Type, "image/")
}

func fetchPhoto(cmd *cobra.Command, c *client.Client, p schema.RepairPhoto, dir string) error {
	resp, err := c.GetRepairPhoto(cmd.Context(), p.Repair, p.ID)
	if err := call.Check(resp, err); err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, schema.MaxPhotoBytes))
	if err != nil {
		return fmt.Errorf("reading photo %s: %w", p.ID, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, photoName(p)), b, 0o644)
}

func (a *app) repairEvidence() *cobra.Command {
	return &cobra.Command{
		Use: "evidence ID|SERVER", Short: "Print what was told, seen, tried and tested, as JSON: the bundle for the maker", Args: exactly("ID or SERVER"), Example: "  gpupool repair evidence rep_01k8 > evidence.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			e, err := call.Do[contract.RepairEvidence](c.GetRepairEvidence(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), e)
		},
	}
}

func (a *app) serverBurnIn() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use:   "burnin NAME",
		Short: "Take a server without jobs out of the pool, prove its accelerators, and watch",
		Long: `Prove the accelerators of a server whose burn-in was skipped, or that is doubted. It must hold no job: drain it first. It
comes back into the pool by itself once every device has passed (exit code 0); where one fails, it waits for a technician
(exit code 20).`,
		Example: `  gpupool server drain r12s03 --reason "burn-in was skipped"
  gpupool server burnin r12s03
  gpupool server uncordon r12s03`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[schema.Repair](c.BurnInServer(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			if detach || a.json() {
				return a.said(cmd, r, "%s is being burnt in. Watch: gpupool repair watch %s", args[0], r.ID)
			}
			if err := watchRepair(cmd, c, r, beforeProof(r)); err != nil {
				return err
			}
			return stillCordoned(cmd, c, r.Server)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	return cmd
}

// stillCordoned says where a server that came back takes no jobs yet, and what lifts that.
func stillCordoned(cmd *cobra.Command, c *client.Client, server string) error {
	s, err := call.Do[contract.Server](c.GetServer(cmd.Context(), server, &contract.GetServerParams{}))
	if err != nil {
		return err
	}
	l, err := call.Do[contract.CordonList](c.ListCordons(cmd.Context(), &contract.ListCordonsParams{Server: &s.Id}))
	if err != nil || len(l.Items) == 0 {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "It is still cordoned: %s. Next: gpupool server uncordon %s\n", words.Printable(l.Items[0].Reason, false), s.Name)
	return nil
}

func (a *app) repairWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID|SERVER", Short: "Watch a repair until it is back in the pool or waits for a technician again", Args: exactly("ID or SERVER"),
		Example: "  gpupool repair watch rep_01k8",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[schema.Repair](c.GetRepair(cmd.Context(), args[0], &contract.GetRepairParams{}))
			if err != nil {
				return err
			}
			return watchRepair(cmd, c, r, r.Returns)
		},
	}
}

// beforeProof is how often a repair that is to be proven now had come back before: one that waits again has failed its
// proof before the answer was read.
func beforeProof(r schema.Repair) int {
	if r.State == schema.RepairWaiting {
		return r.Returns - 1
	}
	return r.Returns
}

// watchRepair shows a repair's changes until its proof has come out. Waiting counts as an outcome only where it has come
// back more than returns times.
func watchRepair(cmd *cobra.Command, c *client.Client, r schema.Repair, returns int) error {
	last := ""
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
