// Package serve is the server's verbs: up (everything in one process), one verb for each role, and what prepares a
// configuration for them.
//
// Not here: building a process (worker), what the roles do.
package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpupool/deploy/lab"
	"gpupool/schema"
	"gpupool/worker"
	"gpupool/worker/config"
)

// flags of every server verb.
type flags struct {
	file      string
	set       []string
	dataDir   string
	sites     []string
	regions   []string
	lab       string
	labTrees  string
	readyFile string
}

// Commands are up, api, worker, allocator and pxe, and what prepares a configuration for them: config and keys.
func Commands() []*cobra.Command {
	up := &flags{}
	c := up.command(&cobra.Command{Use: "up", Short: "Run everything in this process: API and console, workflows, allocator, network boot",
		Long: "Run everything in this process, on an embedded Temporal server and SQLite. With --lab a simulated data centre on loopback runs beside it."}, nil)
	c.Flags().StringVar(&up.lab, "lab", "", "run a simulated data centre beside it: \"demo\", or a lab file")
	c.Flags().StringVar(&up.labTrees, "lab-trees", "", "let the lab's BMCs serve the captured Redfish trees that are in this folder (nvidia_viking.tar.xz, supermicro.tar.xz; needs xz)")
	out := []*cobra.Command{c, configCommand(), keysCommand()}
	for _, r := range []struct {
		role        config.Role
		short, long string
		own         func(f *flags, c *cobra.Command)
	}{
		{config.RoleAPI, "Run the API and console", "Any number of them may run.", func(*flags, *cobra.Command) {}},
		{config.RoleWorker, "Run workflows and the activities of the sites", "Run it where the sites' BMC networks are reached. Workers of one site share its work.", withSites},
		{config.RoleAllocator, "Offer to run the regions' allocators", "One of those that offer a region runs it. When it dies another takes over within seconds.", func(f *flags, c *cobra.Command) {
			c.Flags().StringArrayVar(&f.regions, "region", nil, "a region to allocate (regions); repeatable")
		}},
		{config.RolePXE, "Run the network boot service of the sites", "It needs the database only: a site boots its servers while Temporal is away.", withSites},
	} {
		f := &flags{}
		c := f.command(&cobra.Command{Use: string(r.role), Short: r.short, Long: r.short + ", on PostgreSQL and an external Temporal. " + r.long}, []config.Role{r.role})
		r.own(f, c)
		if r.role == config.RolePXE {
			c.AddCommand(doctorCommand())
		}
		out = append(out, c)
	}
	return out
}

func withSites(f *flags, c *cobra.Command) {
	c.Flags().StringArrayVar(&f.sites, "site", nil, "a site (provisioning network) that this process reaches (sites); repeatable")
}

// command makes c run the roles; nil = all.
func (f *flags) command(c *cobra.Command, roles []config.Role) *cobra.Command {
	c.Args = cobra.NoArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout(), roles) }
	f.sources(c)
	c.Flags().StringVar(&f.readyFile, "ready-file", "", "write {url, token, pid} as JSON here when ready (mode 0600)")
	return c
}

// sources are the flags that say where the configuration comes from.
func (f *flags) sources(c *cobra.Command) {
	c.Flags().StringVarP(&f.file, "config", "c", "", "configuration file (else GPUPOOL_CONFIG)")
	c.Flags().StringArrayVar(&f.set, "set", nil, "one setting, as api.listen=:8443; repeatable")
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "folder for what the process keeps (data_dir)")
}

func (f *flags) load(roles []config.Role) (*config.Config, error) {
	set := slices.Clone(f.set)
	if f.dataDir != "" {
		set = append(set, "data_dir="+f.dataDir)
	}
	if roles != nil {
		set = append(set, "roles="+string(roles[0]))
	}
	for path, values := range map[string][]string{"sites": f.sites, "regions": f.regions} {
		if len(values) > 0 {
			set = append(set, path+"="+strings.Join(values, ","))
		}
	}
	if f.lab != "" {
		set = append(labSettings(), set...)
	}
	c, err := config.Load(config.Source{File: f.file, Environ: os.Environ(), Set: set})
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeInvalid, Message: err.Error(), Hint: "gpupool config reference", Err: err}
	}
	return c, nil
}

// Ready is what the ready file says.
type Ready struct {
	URL   string `json:"url"`
	Token string `json:"token,omitempty"` // the first operator token, only when it was made by this start
	PID   int    `json:"pid"`
	Lab   string `json:"lab,omitempty"` // the lab's folder
	// Trees says for each captured tree which of the lab's servers serve it, or why none does.
	Trees []string `json:"lab_trees,omitempty"`

	faults []string // which of the lab's servers begin with a fault
}

func (f *flags) run(ctx context.Context, out io.Writer, roles []config.Role) (err error) {
	begun := time.Now()
	c, err := f.load(roles)
	if err != nil {
		return err
	}
	log := logger(c)
	for _, w := range c.Warnings() {
		log.Warn(w)
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil { // before anything makes it readable to others
		return fmt.Errorf("data_dir: %w", err)
	}
	if f.lab != "" {
		if err := lab.BootFiles(c.PXE.BootDir); err != nil {
			return err
		}
	}
	p, err := worker.Start(ctx, c, log)
	if err != nil {
		return err
	}
	defer p.Stop()
	r := Ready{URL: p.URL, PID: os.Getpid()}
	if c.Has(config.RoleAPI) {
		if r.Token, err = p.Store.EnsureFirstToken(ctx); err != nil {
			return err
		}
	}
	labEnded := make(chan error, 1)
	if f.lab != "" {
		l, servers, trees, err := f.startLab(ctx, c, p, log)
		if err != nil {
			return err
		}
		labCtx, cancel := context.WithCancel(ctx)
		go func() { labEnded <- l.Run(labCtx) }()
		defer func() {
			cancel()
			if e := <-labEnded; e != nil && err == nil {
				err = e
			}
		}()
		r.Lab, r.Trees, r.faults = labDir(c), trees, faulty(servers)
	}
	say(out, c, r, time.Since(begun))
	if f.readyFile != "" {
		if err := writeReady(f.readyFile, r); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.Failed():
		return err
	case err := <-labEnded:
		labEnded <- nil
		if err == nil {
			return nil
		}
		return fmt.Errorf("the lab ended: %w", err)
	}
}

func say(out io.Writer, c *config.Config, r Ready, took time.Duration) {
	fmt.Fprintf(out, "gpupool is ready (%.1f s)\n", took.Seconds())
	if c.Has(config.RoleAPI) {
		fmt.Fprintf(out, "  API and console   %s\n", r.URL)
	}
	fmt.Fprintf(out, "  data              %s\n", c.DataDir)
	if r.Lab != "" {
		fmt.Fprintf(out, "  lab               %s\n", r.Lab)
	}
	for _, t := range r.Trees {
		fmt.Fprintf(out, "                    %s\n", t)
	}
	if r.Token != "" {
		fmt.Fprintf(out, "  operator's token  %s   (shown this once; only its hash is kept)\n\nNext, in another shell:\n  gpupool login --url %s     it asks for the token\n  gpupool overview\n", r.Token, r.URL)
	}
	if r.Token != "" && r.Lab != "" {
		fmt.Fprintf(out, "  gpupool lab --data-dir %s enrollment | gpupool server enroll -f -\n  gpupool server onboard --all\n", c.DataDir)
		for _, s := range r.faults {
			fmt.Fprintln(out, "      "+s)
		}
	}
}

// faulty says of each server that begins with faults which they are.
func faulty(servers []lab.ServerConfig) []string {
	var out []string
	for _, s := range servers {
		if len(s.Faults) > 0 {
			out = append(out, s.Name+" is made faulty: "+strings.Join(s.Faults, ", "))
		}
	}
	return out
}

func writeReady(path string, r Ready) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return os.Rename(tmp, path)
}

func logger(c *config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		level = slog.LevelInfo // Validate has refused what is no level
	}
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, o)
	if c.Log.Format == config.FormatJSON || c.Log.Format == config.FormatAuto && !terminal(os.Stderr) {
		h = slog.NewJSONHandler(os.Stderr, o)
	}
	log := slog.New(h)
	slog.SetDefault(log)
	return log
}

func terminal(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0
}

func labDir(c *config.Config) string { return filepath.Join(c.DataDir, "lab") }

// labSettings make the boot service answer the lab's relay on loopback, on ports that need no root, and let tenants share
// the lab's servers, whose agents are all of one machine. What the user sets goes before them.
func labSettings() []string {
	return []string{"regions=eu-north", "sites=lab", "jobs.mixed_tenants=true", "pxe.mode=relay", "pxe.server_id=127.0.0.1", "pxe.dhcp_listen=127.0.0.1:0", "pxe.tftp_listen=127.0.0.1:0", "pxe.http_listen=127.0.0.1:0",
		"pxe.subnets=[{cidr: 127.77.0.0/16, range: 127.77.1.1-127.77.9.250}]"}
}

// startLab also says what the lab's servers are, and which captured trees its BMCs serve. A tree that can't be had is no reason not to start.
func (f *flags) startLab(ctx context.Context, c *config.Config, p *worker.Process, log *slog.Logger) (*lab.Lab, []lab.ServerConfig, []string, error) {
	lc := lab.Config{Servers: lab.Demo()}
	if f.lab != "demo" {
		var err error
		if lc, err = lab.ReadConfig(f.lab); err != nil {
			return nil, nil, nil, err
		}
	}
	if p.Boot == nil {
		return nil, nil, nil, fmt.Errorf("--lab needs the boot service: pxe.mode is %q", c.PXE.Mode)
	}
	var trees []string
	if f.labTrees != "" {
		var missing error
		lc.Servers, missing = lab.WithTrees(lc.Servers, f.labTrees)
		trees = served(lc.Servers)
		if missing != nil {
			log.Warn("captured trees", "error", missing)
			trees = append(trees, strings.Split(missing.Error(), "\n")...)
		}
	}
	lc.Dir, lc.Log = labDir(c), log.With("part", "lab")
	lc.DHCP, lc.TFTPPort = p.Boot.Addrs().DHCP.String(), int(p.Boot.Addrs().TFTP.Port())
	l, err := lab.New(lc)
	if err != nil {
		return nil, nil, nil, err
	}
	log.Info("lab runs", "servers", strings.Join(names(l.State()), " "))
	return l, lc.Servers, trees, ctx.Err()
}

// served says for each captured tree which servers' BMCs serve it.
func served(servers []lab.ServerConfig) []string {
	by := map[string][]string{}
	for _, s := range servers {
		if s.Tree != "" {
			by[s.Tree] = append(by[s.Tree], s.Name)
		}
	}
	var out []string
	for _, tree := range slices.Sorted(maps.Keys(by)) {
		out = append(out, fmt.Sprintf("the BMCs of %s serve what a real one served: %s", strings.Join(by[tree], ", "), tree))
	}
	return out
}

func names(s []lab.ServerState) []string {
	var out []string
	for _, v := range s {
		out = append(out, v.Name)
	}
	return out
}
