// Package worker builds a gpupool process from its roles: the record, Temporal (embedded or outside), the workers that
// run workflows and activities, the API with its console, the boot service.
//
// Invariant: what is started is stopped in the reverse order, and every goroutine is waited for. Not here: what the
// parts do.
package worker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	sdkworker "go.temporal.io/sdk/worker"

	"gpupool/activities/allocator"
	"gpupool/activities/bmc"
	"gpupool/activities/deliver"
	"gpupool/activities/health"
	"gpupool/activities/hosted"
	"gpupool/activities/install"
	"gpupool/activities/install/profiles"
	"gpupool/activities/install/setups"
	"gpupool/activities/job"
	"gpupool/activities/meter"
	"gpupool/activities/node"
	"gpupool/activities/webhook"
	"gpupool/pxe"
	"gpupool/schema/secret"
	"gpupool/schema/store"
	"gpupool/worker/config"
	"gpupool/workflows"
)

// stopWithin is how long a worker waits for what is in flight when it stops.
const stopWithin = 5 * time.Second

// attendEvery is how often the record's live jobs and Temporal's processes are compared.
const attendEvery = time.Minute

// Process is a running gpupool process.
type Process struct {
	Config *config.Config
	Store  *store.Store
	Client client.Client // nil where the process is a boot service alone
	Boot   *pxe.Server   // nil where the process has no boot service
	URL    string        // of the API, as others reach it

	log      *slog.Logger
	ring     *secret.Ring
	profiles profiles.Catalogue
	setups   setups.Catalogue
	listener net.Listener

	background context.Context // of spawned parts
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	failed     chan error
	stops      []func() // newest last
}

// Start builds the process. ctx bounds the start only.
func Start(ctx context.Context, c *config.Config, log *slog.Logger) (_ *Process, err error) {
	p := &Process{Config: c, URL: c.API.ExternalURL, log: log, failed: make(chan error, 1)}
	p.background, p.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			p.Stop()
		}
	}()
	if p.Store, err = store.Open(ctx, store.Config{Driver: string(c.Database.Driver), DSN: c.Database.DSN, MaxConnections: c.Database.MaxConnections, Sync: string(c.Durability), SeenEvery: seenEvery(c.Timing), Log: log.With("part", "store")}); err != nil {
		return nil, err
	}
	p.onStop(func() {
		if err := p.Store.Close(); err != nil {
			log.Error("closing the database", "error", err)
		}
	})
	if p.profiles, err = profiles.Load(c.Install.ProfilesDir); err != nil {
		return nil, fmt.Errorf("install.profiles_dir: %w", err)
	}
	if p.setups, err = setups.Load(profiles.SetupsIn(c.Install.ProfilesDir)); err != nil {
		return nil, fmt.Errorf("install.profiles_dir: %w", err)
	}
	if c.UsesSecrets() {
		if p.ring, err = secretsRing(c); err != nil {
			return nil, fmt.Errorf("secrets.key_file: %w", err)
		}
	}
	// Ports first: one that is taken is told before anything has started.
	if c.Has(config.RoleAPI) {
		if err := p.listen(); err != nil {
			return nil, err
		}
	}
	if c.Has(config.RolePXE) {
		if err := p.bindBoot(); err != nil {
			return nil, err
		}
	}
	if c.UsesTemporal() {
		if err := p.connect(ctx); err != nil {
			return nil, err
		}
	}
	// Parts of the process's own end before what they speak to.
	p.onStop(func() { p.cancel(); p.wg.Wait() })
	for _, part := range []struct {
		role  config.Role
		start func(context.Context) error
	}{
		{config.RoleWorker, p.core},
		{config.RoleAllocator, p.allocators},
		{config.RoleAPI, func(context.Context) error { return p.serve() }},
		{config.RolePXE, func(context.Context) error { p.serveBoot(); return nil }},
	} {
		if c.Has(part.role) {
			if err := part.start(ctx); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// secretsRing reads the key of BMC passwords. Only a pool in one process makes it by itself; see payloadKeys.
func secretsRing(c *config.Config) (*secret.Ring, error) {
	if c.Database.Driver == config.SQLite {
		return secret.LoadOrCreate(c.Secrets.KeyFile)
	}
	return secret.Load(c.Secrets.KeyFile)
}

// Failed gives the error of a part that ended by itself: the process is to stop.
func (p *Process) Failed() <-chan error { return p.failed }

func (p *Process) onStop(f func()) { p.stops = append(p.stops, f) }

// Stop ends the parts, newest first. What was in flight is taken up by another process, or by this one's next start.
func (p *Process) Stop() {
	for len(p.stops) > 0 {
		last := len(p.stops) - 1
		f := p.stops[last]
		p.stops = p.stops[:last]
		f()
	}
	p.cancel()
	p.wg.Wait()
}

// core runs all workflows, the activities that need only the database and Temporal, and those of the process's sites.
func (p *Process) core(ctx context.Context) error {
	w := sdkworker.New(p.Client, workflows.CoreQueue, sdkworker.Options{
		MaxConcurrentWorkflowTaskPollers: 8, MaxConcurrentActivityTaskPollers: 4, WorkerStopTimeout: stopWithin, Interceptors: []interceptor.WorkerInterceptor{&stopped{}}, MaxHeartbeatThrottleInterval: hosted.Every,
		// A workflow whose code changed under it waits for a person; its record is not lost.
		WorkflowPanicPolicy: sdkworker.BlockWorkflow,
	})
	for _, wf := range []any{workflows.RunJob, workflows.OnboardServer, workflows.RepairServer, workflows.RetireServer, workflows.Allocator, workflows.Cluster, workflows.Deliver, workflows.Meter, workflows.Webhooks,
		workflows.ActOnBMC, workflows.WatchBMCs, workflows.KeepCredentials} {
		w.RegisterWorkflow(wf)
	}
	rules, err := p.webhookRules()
	if err != nil {
		return err
	}
	onboard, repair, jobs := waits(p.Config.Timing)
	install.Register(w, &install.Activities{Store: p.Store, Timing: onboard, SiteLimit: p.Config.Limits.InstallsPerSite})
	node.Register(w, &node.Activities{Store: p.Store, Suite: p.Config.Install.BurnIn, Setups: p.setups})
	health.Register(w, &health.Activities{Store: p.Store, Timing: repair})
	bmc.RegisterRecord(w, &bmc.Record{Store: p.Store})
	w.RegisterActivity(&job.Activities{Store: p.Store})
	w.RegisterActivity(&meter.Activities{Store: p.Store, Log: p.log.With("part", "meter")})
	w.RegisterActivity(&deliver.Activities{Store: p.Store, Client: p.Client, Route: workflows.Routes{Job: jobs}.Route, Log: p.log.With("part", "deliver"),
		Judge: func(ctx context.Context, fault string) error {
			return health.Judger{Store: p.Store, Timing: repair}.Judge(ctx, fault)
		}})
	w.RegisterActivity(&webhook.Activities{Store: p.Store, Ring: p.ring, Rules: rules, Timing: webhook.Timing{GiveUp: p.Config.Webhooks.GiveUp}, Log: p.log.With("part", "webhooks")})
	if err := w.Start(); err != nil {
		return fmt.Errorf("starting the core worker: %w", err)
	}
	p.onStop(w.Stop)
	pool, err := p.bmcs()
	if err != nil {
		return err
	}
	for _, site := range p.Config.Sites {
		if err := p.site(ctx, site, pool); err != nil {
			return err
		}
	}
	if err := p.clusters(ctx); err != nil {
		return err
	}
	p.spawn("attend", func(ctx context.Context) error { return job.Attend(ctx, p.Store, p.Client, attendEvery) })
	p.spawn("health", func(ctx context.Context) error { return health.WatchSilence(ctx, p.Store, p.Config.Timing.AgentSilent) })
	p.spawn("job-failures", func(ctx context.Context) error { return health.WatchJobs(ctx, p.Store) })
	p.spawn("idle", func(ctx context.Context) error { return health.WatchIdle(ctx, p.Store) })
	p.spawn("clock", func(ctx context.Context) error {
		return meter.WatchClock(ctx, p.Store, 10*time.Second, meter.SystemClock())
	})
	if err := p.host(ctx, "meter", workflows.Meter); err != nil {
		return err
	}
	if err := p.host(ctx, "webhooks", workflows.Webhooks); err != nil {
		return err
	}
	return p.host(ctx, "deliver", workflows.Deliver)
}

// webhookRules are the configuration as those who tell webhooks take it. Its networks were checked.
func (p *Process) webhookRules() (webhook.Rules, error) {
	c, m := p.Config.Webhooks, p.Config.Mail
	r := webhook.Rules{HTTP: c.AllowHTTP, Mail: webhook.Mail{Server: m.Server, From: m.From, TLS: webhook.MailTLS(m.TLS), Username: m.Username, Domains: m.Domains, URL: strings.TrimSuffix(cmp.Or(p.Config.API.ExternalURL, p.URL), "/")}}
	if m.CA != "" {
		pem, err := os.ReadFile(m.CA)
		if err != nil {
			return r, fmt.Errorf("mail.ca: %w", err)
		}
		if r.Mail.CA = x509.NewCertPool(); !r.Mail.CA.AppendCertsFromPEM(pem) {
			return r, fmt.Errorf("mail.ca: %s holds no certificate; must be PEM", m.CA)
		}
	}
	if m.PasswordFile != "" {
		b, err := os.ReadFile(m.PasswordFile)
		if err != nil {
			return r, fmt.Errorf("mail.password_file: %w", err)
		}
		r.Mail.Password = strings.TrimRight(string(b), "\r\n")
	}
	for _, n := range c.AllowNetworks {
		if p, err := netip.ParsePrefix(n); err == nil {
			r.Networks = append(r.Networks, p.Masked())
		}
	}
	return r, nil
}

// allocators offers to run the configured regions' allocators.
func (p *Process) allocators(ctx context.Context) error {
	if len(p.Config.Roles) == 1 && os.Getenv("GOGC") == "" { // what the operator sets holds
		debug.SetGCPercent(allocator.GCPercent)
	}
	for _, region := range p.Config.Regions {
		w := sdkworker.New(p.Client, workflows.AllocatorQueue(region), sdkworker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1, WorkerStopTimeout: stopWithin, Interceptors: []interceptor.WorkerInterceptor{&stopped{}}, MaxHeartbeatThrottleInterval: hosted.Every})
		w.RegisterActivity(&allocator.Activities{Store: p.Store, Policy: policy(p.Config.Queue), Mixed: p.Config.Jobs.MixedTenants, Holder: identity(), Log: p.log.With("part", "allocator")})
		if err := w.Start(); err != nil {
			return fmt.Errorf("starting the allocator of region %s: %w", region, err)
		}
		p.onStop(w.Stop)
		if err := p.host(ctx, "allocator/"+region, workflows.Allocator, region); err != nil {
			return err
		}
	}
	return nil
}

// host starts one of the endless workflows where it does not run yet.
func (p *Process) host(ctx context.Context, id string, wf any, args ...any) error {
	_, err := p.Client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: workflows.CoreQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING, WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE}, wf, args...)
	if err == nil && p.Config.Temporal.Mode == config.Embedded {
		err = takeOver(ctx, p.Client, p.Config.Temporal.Namespace, id)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("starting %s: %w", id, err)
	}
	return err
}

func tlsListener(ln net.Listener, cert, key string) (net.Listener, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("api.tls_cert: %w", err)
	}
	return tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), nil
}
