package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) server() *cobra.Command {
	return group("server", "Enrol servers, onboard them, keep jobs off them",
		a.serverList(), a.serverEnroll(), a.serverShow(), a.serverOnboard(), a.serverWatch(),
		a.serverRetry(), a.serverSkip(), a.serverAccept(), a.serverPause(), a.serverContinue(), a.serverAbort(), a.serverReinstall(), a.serverRetire(), a.serverCertificates(),
		a.serverCordon(), a.serverUncordon(), a.serverDrain(), a.serverUndrain(), a.serverBurnIn(),
		a.serverFlag("protect", "Refuse every destructive step on a server", true),
		a.serverFlag("unprotect", "Allow destructive steps on a server again", false))
}

func (a *app) serverEnroll() *cobra.Command {
	var in contract.NewServer
	var file, passwordFile string
	var memory size
	cmd := &cobra.Command{
		Use:   "enroll NAME --bmc URL --bmc-user USER ... | enroll -f FILE",
		Short: "Make servers known, one by flags or many from a file",
		Long: `Make servers known to the pool. Nothing on a server changes until it is onboarded.

A file is YAML or JSON (servers: and a list) or CSV (a header line), told by its ending; - is standard input, as YAML.
It is checked whole first: either all its servers are enrolled or none.

The BMC's password comes from --bmc-password-file, from GPUPOOL_BMC_PASSWORD, or is asked for. Where one BMC serves several servers
(blades, two-node chassis) each but the first names its own with --bmc-system, and needs neither user nor password.`,
		Example: `  gpupool server enroll -f rack12.yaml
  gpupool server enroll r12s03 --region eu --site ams1 --rack r12 --serial J1X2Y3 --mac 0c:42:a1:00:00:01 \
      --bmc https://10.0.12.3 --bmc-user gpupool --model nvidia-h100-80gb --accelerators 8`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (file == "") == (len(args) == 0) || len(args) > 1 {
				return usageError{fmt.Errorf("takes either one NAME, or -f FILE")}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var got contract.ServerList
			if file != "" {
				got, err = enrollFile(cmd, c, file)
			} else {
				in.Name, in.MemoryBytes = args[0], memory.bytes
				if in.BmcSystem == "" || in.BmcUsername != "" { // else the one of the BMC's other servers
					if in.BmcPassword, err = bmcPassword(cmd, passwordFile); err != nil {
						return err
					}
				}
				var one contract.Server
				one, err = call.Do[contract.Server](c.EnrollServer(cmd.Context(), in))
				got.Items = []contract.Server{one}
			}
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), got)
			}
			names := make([]string, len(got.Items))
			for i, s := range got.Items {
				names[i] = s.Name
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Enrolled %s: %s\n", words.Count(len(names), "server"), words.Printable(strings.Join(names, " "), false))
			fmt.Fprintln(cmd.ErrOrStderr(), "Next: gpupool server onboard "+onboardHint(names))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "YAML, JSON or CSV file with servers; - for standard input")
	f.StringVar(&in.Region, "region", "", "region")
	f.StringVar(&in.Site, "site", "", "site: one provisioning network")
	f.StringVar(&in.Rack, "rack", "", "rack")
	f.IntVar(&in.Unit, "unit", 0, "rack unit")
	f.StringVar(&in.Serial, "serial", "", "chassis serial as ordered")
	f.StringSliceVar(&in.Macs, "mac", nil, "MAC address of a network port; several are allowed")
	f.StringVar(&in.Arch, "arch", "", "x86_64 or arm64")
	f.StringVar(&in.BmcAddress, "bmc", "", "the BMC's address, https://host[:port]")
	f.StringVar(&in.BmcProtocol, "bmc-protocol", "", "redfish or ipmi")
	f.StringVar(&in.BmcSystem, "bmc-system", "", "where the BMC serves several servers: the id of the Redfish system that is this one, such as Node2")
	f.BoolVar(&in.Again, "again", false, "take over the name, serial and MACs that a retired server has: the machine came back, or another stands in its place")
	f.StringVar(&in.BmcUsername, "bmc-user", "", "the BMC's user")
	f.StringVar(&passwordFile, "bmc-password-file", "", "file whose first line is the BMC's password")
	f.StringVar(&in.Model, "model", "", "accelerator model ordered, such as nvidia-h100-80gb")
	f.BoolVar(&in.AllowUnknownModel, "allow-unknown-model", false, "the model is new: neither in the catalogue nor in the pool yet")
	f.IntVar(&in.Accelerators, "accelerators", 0, "how many accelerators were ordered")
	f.IntVar(&in.Cpus, "cpus", 0, "CPU cores")
	f.Var(&memory, "memory", "memory, such as 2TiB")
	f.StringVar(&in.Build, "build", "", "build that it was ordered as; nothing = the one named as its model, if there is one")
	f.StringVar(&in.Profile, "install-profile", "", "install profile")
	f.StringVar(&in.Backend, "backend", "", "node, slurm or kubernetes")
	f.StringVar(&in.Cluster, "cluster", "", "with backend slurm or kubernetes: the cluster that it is a node of")
	f.StringVar(&in.NvlinkDomain, "nvlink-domain", "", "NVLink domain that the server belongs to")
	return cmd
}

func onboardHint(names []string) string {
	if len(names) > 4 {
		return "--all"
	}
	return strings.Join(names, " ")
}

func enrollFile(cmd *cobra.Command, c *client.Client, file string) (contract.ServerList, error) {
	kind := "application/yaml"
	switch strings.ToLower(filepath.Ext(file)) {
	case ".csv":
		kind = "text/csv"
	case ".json":
		kind = "application/json"
	}
	var body []byte
	var err error
	if file == "-" {
		body, err = io.ReadAll(cmd.InOrStdin())
	} else {
		body, err = os.ReadFile(file)
	}
	if err != nil {
		return contract.ServerList{}, &schema.Error{Code: schema.CodeInvalid, Field: "file", Message: err.Error(), Hint: "a readable YAML, JSON or CSV file"}
	}
	return call.Do[contract.ServerList](c.EnrollServersWithBody(cmd.Context(), kind, bytes.NewReader(body)))
}

func bmcPassword(cmd *cobra.Command, file string) (string, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", &schema.Error{Code: schema.CodeInvalid, Field: "bmc-password-file", Message: err.Error()}
		}
		line, _, _ := strings.Cut(string(b), "\n")
		return strings.TrimRight(line, "\r"), nil
	}
	if p := os.Getenv("GPUPOOL_BMC_PASSWORD"); p != "" {
		return p, nil
	}
	return secret(cmd, "BMC password")
}

func (a *app) serverList() *cobra.Command {
	var p contract.ListServersParams
	var region, site, rack, phase, model string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List servers with their phase and what they wait for", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p.Region, p.Site, p.Rack, p.Model = opt(region), opt(site), opt(rack), opt(model)
			p.Phase = opt(schema.Phase(phase))
			all, err := pages(limit, func(after string, n int) ([]contract.Server, string, error) {
				p.After, p.Limit = opt(after), &n
				l, err := call.Do[contract.ServerList](c.ListServers(cmd.Context(), &p))
				return l.Items, l.Next, err
			})
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), contract.ServerList{Items: all})
			}
			cordons, err := call.Do[contract.CordonList](c.ListCordons(cmd.Context(), &contract.ListCordonsParams{}))
			if err != nil && !schema.Is(err, schema.CodeForbidden) {
				return err
			}
			off := map[string]string{}
			for _, cd := range cordons.Items {
				if by := string(cd.Owner); !strings.Contains(off[cd.Server], by) {
					off[cd.Server] = strings.TrimPrefix(off[cd.Server]+", "+by, ", ")
				}
			}
			needs, err := whatServersNeed(cmd, c)
			if err != nil {
				return err
			}
			t := newTable("NAME", "PHASE", "ACCELERATORS", "RACK", "NEEDS")
			for _, s := range all {
				t.row(s.Name, stateCell(s, off[s.Id]), fmt.Sprintf("%d x %s", s.Accelerators, s.Model), strings.Trim(s.Site+"/"+s.Rack, "/"), needs(s))
			}
			t.write(cmd.OutOrStdout(), "No servers. Enrol some: gpupool server enroll --help")
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&region, "region", "", "only this region")
	f.StringVar(&site, "site", "", "only this site")
	f.StringVar(&rack, "rack", "", "only this rack")
	f.StringVar(&phase, "phase", "", "only this phase: "+join(schema.Phases.States()))
	f.StringVar(&model, "model", "", "only this accelerator model")
	f.IntVar(&limit, "limit", 0, "at most this many; 0 = all")
	return cmd
}

func phaseCell(s contract.Server) string {
	if s.Protected {
		return string(s.Phase) + " (protected)"
	}
	return string(s.Phase)
}

// stateCell is the phase with the step of an onboarding and who cordoned the server.
func stateCell(s contract.Server, cordons string) string {
	out := phaseCell(s)
	if s.Phase == schema.PhaseOnboarding && s.Step != "" {
		out += ": " + string(s.Step)
		switch {
		case s.Failure != nil:
			out += " failed"
		case s.Pause != nil && s.Pause.HeldAt != 0:
			out += ", paused"
		}
	}
	if cordons != "" {
		out += ", cordoned by " + cordons
	}
	return out
}

// whatServersNeed reads what else than the server itself tells what a person has to do: open repairs, faults that a breaker
// holds back, and accelerators that were never proven.
func whatServersNeed(cmd *cobra.Command, c *client.Client) (func(contract.Server) string, error) {
	repairs, err := call.Do[contract.RepairList](c.ListRepairs(cmd.Context(), &contract.ListRepairsParams{Open: opt(true)}))
	if err != nil && !schema.Is(err, schema.CodeForbidden) {
		return nil, err
	}
	waiting := map[string]bool{}
	for _, r := range repairs.Items {
		waiting[r.Server] = waiting[r.Server] || r.State == schema.RepairWaiting
	}
	held, err := heldBack(cmd, c)
	if err != nil {
		return nil, err
	}
	unproven := map[string]int{}
	list, err := pages(0, func(after string, n int) ([]schema.Accelerator, string, error) {
		l, err := call.Do[contract.AcceleratorList](c.ListAccelerators(cmd.Context(), &contract.ListAcceleratorsParams{Health: opt(schema.HealthUnknown), After: opt(after), Limit: &n}))
		return l.Items, l.Next, err
	})
	if err != nil && !schema.Is(err, schema.CodeForbidden) {
		return nil, err
	}
	for _, x := range list {
		if x.InstalledAt.IsZero() {
			unproven[x.Server]++
		}
	}
	return func(s contract.Server) string {
		switch {
		case s.Phase == schema.PhaseEnrolled:
			return "gpupool server onboard " + s.Name
		case (s.Phase == schema.PhaseOnboarding || s.Phase == schema.PhaseRetiring) && s.Failure != nil:
			return "gpupool server retry " + s.Name
		case s.Pause != nil && s.Pause.HeldAt != 0:
			return "gpupool server continue " + s.Name
		case waiting[s.Id]:
			return "gpupool repair list --server " + s.Name
		case s.Failure != nil:
			return "gpupool server show " + s.Name
		case len(held[s.Id]) > 0:
			return "gpupool health breakers"
		case unproven[s.Id] > 0 && (s.Phase == schema.PhaseAvailable || s.Phase == schema.PhaseDraining):
			return "gpupool server burnin " + s.Name
		}
		return ""
	}, nil
}

// heldBack are the breakers that hold faults of a server back, by server.
func heldBack(cmd *cobra.Command, c *client.Client) (map[string][]schema.Breaker, error) {
	l, err := call.Do[contract.BreakerList](c.ListBreakers(cmd.Context(), &contract.ListBreakersParams{}))
	if err != nil && !schema.Is(err, schema.CodeForbidden) {
		return nil, err
	}
	out := map[string][]schema.Breaker{}
	for _, b := range l.Items {
		for _, h := range b.Held {
			if of := out[h.Server]; len(of) == 0 || of[len(of)-1].ID != b.ID {
				out[h.Server] = append(of, b)
			}
		}
	}
	return out, nil
}

func (a *app) serverShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a server: phase, steps, cordons, accelerators, faults", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, w := cmd.Context(), cmd.OutOrStdout()
			s, err := call.Do[contract.Server](c.GetServer(ctx, args[0], &contract.GetServerParams{}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(w, s)
			}
			steps, err := call.Do[contract.StepList](c.ListSteps(ctx, s.Id, &contract.ListStepsParams{}))
			if err != nil {
				return err
			}
			acc, err := call.Do[contract.AcceleratorList](c.ListAccelerators(ctx, &contract.ListAcceleratorsParams{Server: &s.Id, Removed: opt(true), Limit: opt(1000)}))
			if err != nil {
				return err
			}
			cordons, err := call.Do[contract.CordonList](c.ListCordons(ctx, &contract.ListCordonsParams{Server: &s.Id}))
			if err != nil && !schema.Is(err, schema.CodeForbidden) {
				return err
			}
			faults, err := call.Do[contract.FaultList](c.ListFaults(ctx, &contract.ListFaultsParams{Server: &s.Id}))
			if err != nil && !schema.Is(err, schema.CodeForbidden) {
				return err
			}
			held, err := heldBack(cmd, c)
			if err != nil {
				return err
			}
			differ, err := call.Do[contract.DifferenceList](c.ListDifferences(ctx, s.Id))
			if err != nil {
				return err
			}
			showServer(w, s, steps, acc.Items, cordons.Items, faults.Items, held[s.Id], differ.Items)
			return nil
		},
	}
}

func showServer(w io.Writer, s contract.Server, steps contract.StepList, acc []schema.Accelerator, cordons []schema.Cordon, faults []schema.Fault, held []schema.Breaker, differ []schema.Difference) {
	now := nowInstant()
	f := fields{w}
	f.put("Name", s.Name+"  ("+s.Id+")")
	f.put("Phase", phaseCell(s)+": "+words.Phase(s.Phase))
	slots := slotsOf(acc)
	acc = slices.DeleteFunc(acc, func(x schema.Accelerator) bool { return !x.RemovedAt.IsZero() })
	unproven := 0
	for _, x := range acc {
		if x.Health == schema.HealthUnknown && x.InstalledAt.IsZero() {
			unproven++
		}
	}
	if s.Failure != nil {
		f.put("Stopped", stoppedAt(s)+s.Failure.Text+" ("+s.Failure.Code+")")
		f.put("What to do", remedy(s))
	} else {
		switch {
		case s.Phase == schema.PhaseEnrolled:
			f.put("What to do", "gpupool server onboard "+s.Name)
		case unproven > 0 && (s.Phase == schema.PhaseAvailable || s.Phase == schema.PhaseDraining):
			f.put("Unproven", words.Count(unproven, "accelerator")+" never passed a burn-in and take no jobs")
			f.put("What to do", "gpupool server burnin "+s.Name)
		case s.Phase == schema.PhaseRepairing || s.Phase == schema.PhaseDraining && len(faults) > 0:
			f.put("What to do", "gpupool repair list --server "+s.Name)
		}
	}
	if s.Pause != nil {
		f.put("Paused", words.Paused(*s.Pause, now))
		f.put("What to do", "gpupool server continue "+s.Name)
	}
	for _, d := range differ {
		f.put("Differs", fmt.Sprintf("%s: %s in the place of %s; %s", d.Item, d.Found, d.Ordered, words.Differs(d, now)))
	}
	for _, b := range held {
		f.put("Held back", fmt.Sprintf("faults are not acted on since %s, because %s (breaker %q)", words.Clock(b.OpenedAt, now), b.Why, b.Scope))
		f.put("What to do", resetBreaker(b))
	}
	f.put("Place", strings.Trim(strings.Join([]string{s.Region, s.Site, s.Rack}, " / "), " /")+unit(s.Unit))
	f.put("Hardware", strings.TrimSpace(s.Manufacturer+" "+s.Product))
	f.put("Serial", s.Serial)
	f.put("Ordered", fmt.Sprintf("%d x %s", s.Accelerators, s.Model))
	f.put("BMC", strings.TrimSpace(s.BmcAddress+" ("+s.BmcProtocol+") "+s.BmcSystem))
	f.put("MACs", strings.Join(s.Macs, " "))
	f.put("Backend", strings.TrimSpace(s.Backend+" "+s.Cluster))
	f.put("Agent seen", words.Ago(s.AgentSeen, now))
	if s.Shared != nil {
		f.put("Jobs there", "are not kept apart: "+*s.Shared)
	}
	for _, c := range cordons {
		what := "the server"
		if c.Accelerator != "" {
			what = slots.of(c.Accelerator)
		}
		f.put("Cordon", fmt.Sprintf("%s, by %s (%s) %s: %s", what, c.By, c.Owner, words.Ago(c.At, now), c.Reason))
	}
	if len(steps.Items) > 0 {
		of := "Onboarding"
		if s.Phase == schema.PhaseRetiring || s.Phase == schema.PhaseRetired {
			of = "Retirement"
		}
		fmt.Fprintf(w, "\n%s, attempt %d\n", of, steps.Attempt)
		for _, l := range stepLines(steps.Items, now) {
			for i, part := range wrap(l.text(), maxWidth) {
				if i > 0 {
					part = strings.Repeat(" ", 25) + part
				}
				fmt.Fprintln(w, part)
			}
		}
	}
	if len(acc) > 0 {
		fmt.Fprintln(w)
		acceleratorTable(acc, false, nil).write(w, "")
	}
	if len(faults) > 0 {
		fmt.Fprintln(w)
		t := newTable("FAULT", "SEVERITY", "DEVICE", "WHEN", "VERDICT", "TEXT")
		for _, x := range faults {
			t.row(strings.TrimSpace(x.Kind+" "+x.Code), string(x.Severity), slots.of(x.Accelerator), words.Ago(x.At, now), words.Verdict(x), x.Text)
		}
		t.write(w, "")
	}
}

// slotsOf names accelerators by their slots.
func slotsOf(acc []schema.Accelerator) names {
	n := names{}
	for _, x := range acc {
		if n[x.ID] = x.Slot; x.Slot == "" {
			n[x.ID] = "gpu" + strconv.Itoa(x.Index)
		}
	}
	return n
}

// stoppedWords lead from a server's name to why it waits for a person.
func stoppedWords(s contract.Server) string {
	if s.Failure.Step == "" {
		return ": "
	}
	return " stopped " + stoppedAt(s)
}

// stoppedAt names the step that stopped, where a step did.
func stoppedAt(s contract.Server) string {
	if s.Failure.Step == "" {
		return ""
	}
	return "at " + string(s.Failure.Step) + ": "
}

func unit(u int) string {
	if u == 0 {
		return ""
	}
	return " / U" + strconv.Itoa(u)
}

// remedy is what can be done about a stopped server, as commands: first what puts the cause right, last what goes on without
// proof. Only an onboarding has steps; anything else that stops and waits for a person belongs to a repair.
func remedy(s contract.Server) string {
	if s.Phase == schema.PhaseRetiring {
		return "gpupool server retry " + s.Name + "\ngpupool server skip " + s.Name + " " + string(s.Failure.Step) + " --reason TEXT"
	}
	if s.Phase != schema.PhaseOnboarding {
		return "gpupool repair show " + s.Name
	}
	out := []string{"gpupool server retry " + s.Name, "gpupool server abort " + s.Name}
	if s.Failure.Code == string(schema.FailHardware) {
		out = append(out, "gpupool server accept "+s.Name+" --reason TEXT")
	}
	if s.Failure.Step != schema.StepRegister { // without it the server is not in the pool
		out = append(out, "gpupool server skip "+s.Name+" "+string(s.Failure.Step)+" --reason TEXT")
	}
	return strings.Join(out, "\n")
}

func (a *app) serverCordon() *cobra.Command {
	var in contract.NewCordon
	cmd := &cobra.Command{
		Use: "cordon NAME --reason TEXT", Short: "Keep new jobs off a server or one accelerator; running jobs go on", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			got, err := call.Do[contract.Cordon](c.CordonServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			return a.said(cmd, got, "%s takes no new jobs.", args[0])
		},
	}
	cmd.Flags().StringVar(&in.Accelerator, "accelerator", "", "only this accelerator, by slot, serial or id")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; shown to everyone who looks (required)")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverUncordon() *cobra.Command {
	var in contract.Uncordon
	cmd := &cobra.Command{
		Use: "uncordon NAME", Short: "Lift the operator's cordon; cordons of other owners stay", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			got, err := call.Do[contract.Server](c.UncordonServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			left, err := call.Do[contract.CordonList](c.ListCordons(cmd.Context(), &contract.ListCordonsParams{Server: &got.Id}))
			if err != nil {
				return err
			}
			if n := len(left.Items); n > 0 {
				return a.said(cmd, got, "The operator's cordon of %s is lifted; %s left: %s (%s).", args[0], words.Count(n, "cordon"), left.Items[0].Reason, left.Items[0].Owner)
			}
			return a.said(cmd, got, "%s may take jobs again.", args[0])
		},
	}
	cmd.Flags().StringVar(&in.Accelerator, "accelerator", "", "only this accelerator's cordon, by slot, serial or id")
	return cmd
}

func (a *app) serverUndrain() *cobra.Command {
	return &cobra.Command{
		Use: "undrain NAME", Short: "Bring a draining server back into the pool", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			got, err := call.Do[contract.Server](c.UndrainServer(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			return a.said(cmd, got, "%s is %s.", got.Name, got.Phase)
		},
	}
}

func (a *app) serverFlag(verb, short string, on bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			set, said := c.ProtectServer, "%s is protected: nothing will wipe, reinstall or power it off."
			if !on {
				set, said = c.UnprotectServer, "%s is no longer protected."
			}
			got, err := call.Do[contract.Server](set(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			return a.said(cmd, got, said, got.Name)
		},
	}
}
