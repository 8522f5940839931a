package worker

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"go.temporal.io/sdk/interceptor"
	sdkworker "go.temporal.io/sdk/worker"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/record"
	"gpupool/activities/bmc/watch"
	"gpupool/activities/health"
	"gpupool/activities/install"
	"gpupool/activities/install/bootstore"
	"gpupool/activities/meter"
	"gpupool/activities/progress"
	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/api/console"
	"gpupool/pxe"
	"gpupool/pxe/dhcp"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/worker/config"
	"gpupool/workflows"
)

// bmcs is the one way of this process to BMCs. It logs out of all when the process stops.
func (p *Process) bmcs() (*bmc.Pool, error) {
	c := bmc.Config{ResetsPerDay: max(0, p.Config.BMC.ResetsPerDay), Shared: record.NewShared(p.Store, p.ring), Log: p.log.With("part", "bmc")}
	if file := p.Config.BMC.CA; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("bmc.ca: %w", err)
		}
		if c.CA = x509.NewCertPool(); !c.CA.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("bmc.ca: %s holds no certificate; must be PEM", file)
		}
	}
	pool := bmc.NewPool(c)
	p.onStop(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		if err := pool.Close(ctx); err != nil {
			p.log.Warn("logging out of BMCs", "error", err)
		}
	})
	return pool, nil
}

// site runs what needs a site's BMC network, and offers to watch its servers and to keep their credentials.
func (p *Process) site(ctx context.Context, name string, pool *bmc.Pool) error {
	w := sdkworker.New(p.Client, workflows.SiteQueue(name), sdkworker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityExecutionSize: 256, WorkerStopTimeout: stopWithin, Interceptors: p.interceptors()})
	logins := credential.NewStore(record.Rows{Store: p.Store}, p.ring)
	bmc.Register(w, &bmc.Activities{Store: p.Store, Pool: pool, Credential: logins.For, Renew: logins.Rotate, Keys: p.ring})
	credential.Register(w, &credential.Activities{Store: p.Store, Logins: logins, Pool: pool, After: p.Config.BMC.RotateAfter})
	// What BMCs read is kept, and shown beside what agents read. Nobody is taken for idle by it: it goes to no sampler.
	history := &health.History{Store: p.Store, Source: schema.SourceRedfish, Log: p.log.With("part", "health", "site", name)}
	p.spawn("history of site "+name, history.Run)
	watch.Register(w, &watch.Activities{Store: p.Store, Pool: pool, Credential: logins.For, EventURL: p.Config.BMC.EventURL, Seen: history.Seen,
		Config: watch.Config{Interval: p.Config.BMC.WatchInterval, Events: !p.Config.BMC.PollOnly, Log: p.log.With("part", "watch", "site", name)}})
	if err := w.Start(); err != nil {
		return fmt.Errorf("starting the worker of site %s: %w", name, err)
	}
	p.onStop(w.Stop)
	if err := p.host(ctx, "watch/"+name, workflows.WatchBMCs, name); err != nil {
		return err
	}
	return p.host(ctx, "credentials/"+name, workflows.KeepCredentials, name)
}

// interceptors are those of the workers that run servers' processes.
func (p *Process) interceptors() []interceptor.WorkerInterceptor {
	return []interceptor.WorkerInterceptor{&stopped{}, &progress.Interceptor{Store: p.Store, Log: p.log}}
}

// listen opens the API's address; serve answers on it. They are apart so that its port is known to the boot service.
func (p *Process) listen() (err error) {
	if p.listener, err = net.Listen("tcp", p.Config.API.Listen); err != nil {
		return fmt.Errorf("api.listen: %w (another program has the port? choose another with --set api.listen=127.0.0.1:8081)", err)
	}
	p.onStop(func() { _ = p.listener.Close() }) // where nothing came to serve it
	p.URL = p.Config.URL(p.listener.Addr().String())
	return nil
}

func (p *Process) serve() error {
	sampler := &meter.Sampler{Store: p.Store, Log: p.log.With("part", "meter")}
	p.spawn("samples", func(ctx context.Context) error { return sampler.Run(ctx, time.Minute) })
	history := &health.History{Store: p.Store, Log: p.log.With("part", "health")}
	p.spawn("history", history.Run)
	rules, err := p.webhookRules()
	if err != nil {
		return err
	}
	s, err := api.New(api.Config{Store: p.Store, Samples: func(server string, devices []agentproto.Device) {
		sampler.Seen(server, devices)
		history.Seen(server, devices)
	}, Ring: p.ring, Health: healthRules{p.Store}, Processes: processes{p.Store, p.Client}, Installs: installs{p.profiles, p.URL}, CheckWebhook: rules.Check, Log: p.log.With("part", "api"), ExternalURL: p.URL, HeartbeatEvery: p.Config.Timing.Heartbeat,
		Ready: func(ctx context.Context) error {
			_, err := p.Client.CheckHealth(ctx, nil)
			return err
		},
		Console: func(h http.Handler, a *auth.Authenticator) http.Handler {
			return console.New(console.Config{API: h, Auth: a, Log: p.log.With("part", "console"), Done: p.background.Done(), Watch: func() (<-chan struct{}, func()) {
				w := p.Store.Watch(store.TopicAll)
				return w.C, w.Close
			}})
		}})
	if err != nil {
		return err
	}
	ln := p.listener
	if c := p.Config.API; c.TLSCert != "" {
		if ln, err = tlsListener(ln, c.TLSCert, c.TLSKey); err != nil {
			return err
		}
	}
	p.spawn("api", func(ctx context.Context) error { return s.Run(ctx, ln) })
	return nil
}

// bindBoot opens the sockets of the boot service of this process's sites.
func (p *Process) bindBoot() error {
	c := p.Config.PXE
	if c.Mode == config.PXEOff {
		return nil
	}
	if len(p.Config.Roles) == 1 && os.Getenv("GOGC") == "" { // what the operator sets holds
		debug.SetGCPercent(pxe.GCPercent)
	}
	bs := bootstore.New(p.Store, tokensLive(p.Config.Timing))
	s, err := pxe.New(BootConfig(c, p.URL), pxe.Deps{Inventory: bs, Leases: bootstore.Leases{DB: p.Store}, Tokens: bs, Installer: &install.Installer{Profiles: p.profiles, APIURL: p.URL, Sanitise: p.Store.SanitiseOrder}, Reports: bs, Recorder: bs, Log: p.log.With("part", "pxe")})
	if err != nil {
		return err
	}
	p.Boot = s
	p.onStop(s.Close) // where nothing came to serve them
	return nil
}

// serveBoot serves the boot service, where there is one.
func (p *Process) serveBoot() {
	if p.Boot != nil {
		p.spawn("pxe", p.Boot.Run)
	}
}

// BootConfig is the configuration as the boot service takes it; api is where an installed machine phones home.
func BootConfig(c config.PXE, api string) pxe.Config {
	pc := pxe.Config{Mode: dhcp.Mode(c.Mode), Interface: c.Interface, ServerID: c.ServerID, DHCP: c.DHCPListen, PXE: c.BootListen, TFTP: c.TFTPListen, HTTP: c.HTTPListen,
		TLSCert: c.TLSCert, TLSKey: c.TLSKey, URL: c.ExternalURL, APIURL: api, Root: c.BootDir, Stages: c.Stages, SecureBoot: c.SecureBoot, UserClass: c.UserClass,
		NoProbe: c.NoProbe, OfferHold: c.OfferHold, Quarantine: c.Quarantine, TFTPPerClient: c.TFTPPerClient}
	if c.DiscoverUnknown {
		pc.Unknown = dhcp.Record
	}
	six := c.IPv6
	pc.IPv6 = pxe.IPv6{Address: six.Address, DHCP: six.DHCPListen, TFTP: six.TFTPListen, URL: six.ExternalURL, Advertise: six.Advertise}
	for _, n := range six.Subnets {
		pc.IPv6.Subnets = append(pc.IPv6.Subnets, pxe.Subnet6{CIDR: n.CIDR, Interface: n.Interface, DNS: n.DNS, BootLease: c.BootLeaseTime, Lease: c.LeaseTime})
	}
	for _, n := range c.Subnets {
		sub := pxe.Subnet{CIDR: n.CIDR, Range: n.Range, Relays: n.Relays, Interface: n.Interface, DNS: n.DNS, NTP: n.NTP, Domain: n.Domain, MTU: uint16(n.MTU), BootLease: c.BootLeaseTime, Lease: c.LeaseTime}
		if n.Router != "" {
			sub.Routers = []string{n.Router}
		}
		pc.Subnets = append(pc.Subnets, sub)
	}
	return pc
}

// spawn runs a part until the process stops. A part that ends by itself ends the process: see Failed.
func (p *Process) spawn(name string, run func(context.Context) error) {
	p.wg.Go(func() {
		err := run(p.background)
		if p.background.Err() == nil {
			if err == nil {
				err = errors.New("ended by itself")
			}
			select {
			case p.failed <- fmt.Errorf("%s: %w", name, err):
			default: // another part failed first
			}
		}
	})
}
