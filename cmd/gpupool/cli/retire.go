package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
)

func (a *app) serverRetire() *cobra.Command {
	var in contract.RetireOptions
	cmd := &cobra.Command{
		Use: "retire NAME --reason TEXT", Short: "Take a server out for good; every disk of it is made to forget", Args: exactly("NAME"),
		Long: `Take a server out for good. Its jobs end first, and until then gpupool server undrain takes it back. Then its BMC is proven to be
its own, its cluster lets it go, every disk of it is sanitised by the strongest command that the disk has and read back, and its
power is cut. Its row stays, with a certificate for each drive: gpupool server certificates. The repair of a server that waits for a
technician is given up.

A drive that may still hold data stops it: retry it, or skip the step with what became of the drive. The certificates say so.`,
		Example: `  gpupool server retire r12s03 --reason "lease is over"
  gpupool server show r12s03
  gpupool server certificates r12s03`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := call.Do[contract.Server](c.RetireServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			return a.said(cmd, s, "%s is taken out for good once its jobs have ended. See how far it is: gpupool server show %s", s.Name, s.Name)
		},
	}
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; kept in the audit (required)")
	cmd.Flags().BoolVar(&in.Overwrite, "overwrite", false, "let drives that have no command of their own be overwritten; otherwise they stop it")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverCertificates() *cobra.Command {
	return &cobra.Command{
		Use: "certificates NAME", Short: "Show what became of a retired server's drives, each by its serial", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[contract.RetirementReport](c.GetRetirement(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if a.json() {
				return printJSON(out, r)
			}
			if r.Retirement == nil {
				fmt.Fprintf(out, "%s was never asked to go.\n", args[0])
				return nil
			}
			f := fields{out}
			f.put("Retired", words.Retired(*r.Retirement, nowInstant()))
			for _, d := range r.Certificates {
				fmt.Fprintln(out)
				f.put("Drive", strings.TrimSpace(fmt.Sprintf("%s %s, %s", d.Model, d.Serial, words.Bytes(d.Bytes))))
				f.put("Outcome", strings.TrimSpace(fmt.Sprintf("%s %s", d.Outcome, d.Trouble)))
				f.put("Method", cmp.Or(d.Method, "none"))
				f.put("Verified", cmp.Or(d.Verified, "not read back"))
				if d.NotReached != "" {
					f.put("Not reached", d.NotReached)
				}
				f.put("Words", words.Printable(d.Words, true))
				f.put("When", d.Ended.String())
			}
			return nil
		},
	}
}

func (a *app) serverDrain() *cobra.Command {
	var detach bool
	var in contract.Why
	cmd := &cobra.Command{
		Use:   "drain NAME --reason TEXT",
		Short: "Take no new jobs, and wait until the running ones have ended",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			w, err := newWatch(cmd, c)
			if err != nil {
				return err
			}
			s, err := call.Do[contract.Server](c.DrainServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			if detach || a.json() {
				return a.said(cmd, s, "%s is %s.", s.Name, s.Phase)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is draining; waiting for its jobs to end.\n", s.Name)
			return w.drained(s)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; shown to everyone who looks (required)")
	required(cmd, "reason")
	return cmd
}
