package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// Agent is one server's agent. Make it with New, run it once.
type Agent struct{ cfg Config }

// New checks nothing and touches nothing: Run does.
func New(cfg Config) *Agent { return &Agent{cfg: cfg} }

// enrolment is what the agent remembers of its registration.
type enrolment struct {
	Server    string `json:"server"`
	Attempt   int    `json:"attempt"`
	API       string `json:"api"`
	Heartbeat int64  `json:"heartbeat_every_ms"`
}

// Run registers, where that wasn't done, and works until ctx ends. Jobs live on after it. A *RefusedError says that
// the API doesn't want this install; only a person can help then.
func (a *Agent) Run(ctx context.Context) (err error) {
	cfg, err := a.cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.Metrics != nil {
		defer cfg.Metrics.Close()
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("agent's state: %w", err)
	}
	key, err := loadKey(cfg.StateDir)
	if err != nil {
		return fmt.Errorf("agent's key: %w", err)
	}
	if cfg.HTTP == nil {
		if cfg.HTTP, err = NewHTTP(cfg.PhoneHome.CA, 1); err != nil {
			return err
		}
		defer cfg.HTTP.CloseIdleConnections()
	}
	m := cfg.Machine()
	cfg.Log = cfg.Log.With("server", cfg.PhoneHome.Server)
	c := &client{http: cfg.HTTP, base: strings.TrimRight(cfg.PhoneHome.API, "/"), server: cfg.PhoneHome.Server, key: key, now: cfg.Now}
	devs := newDevices(cfg)
	t, err := openTasks(cfg, m.BootID, devs)
	if err != nil {
		return fmt.Errorf("agent's tasks: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		err = errors.Join(err, t.close())
	}()
	ev, err := openEvidence(cfg.StateDir, m.BootID, t.now)
	if err != nil {
		return fmt.Errorf("agent's evidence: %w", err)
	}
	// Jobs are taken up before the API is asked for anything: they may have ended long ago.
	if err := t.resume(ctx); err != nil {
		return fmt.Errorf("take up what ran before: %w", err)
	}
	en, err := enrol(ctx, cfg, c, m)
	if err != nil {
		return err
	}
	b := &beat{cfg: cfg, c: c, m: m, tasks: t, devices: devs, evidence: ev, every: time.Duration(en.Heartbeat) * time.Millisecond}
	if err := readJSON(filepath.Join(cfg.StateDir, "seen.json"), &b.memory); err != nil {
		return err
	}
	if cfg.Metrics != nil {
		b.metrics = newMetrics(devs, cfg.Version)
	}
	devs.read(ctx) // so that the first sign finds its device, and the first job too
	var wg sync.WaitGroup
	wg.Go(func() { b.loop(ctx) })
	if cfg.Metrics != nil {
		wg.Go(func() { b.metrics.serve(ctx, cfg.Metrics, cfg.Log) })
	}
	wg.Go(func() { pollLoop(ctx, cfg, c, t) })
	wg.Go(func() { t.reportLoop(ctx, c) })
	for _, r := range cfg.Readers {
		wg.Go(func() { watchLoop(ctx, cfg, r, devs, ev) })
	}
	<-ctx.Done()
	wg.Wait()
	return nil
}

// enrol registers until it is accepted or refused. The key is on the disk by now, so that an answer that got lost on
// its way costs nothing: the same key may ask again.
func enrol(ctx context.Context, cfg Config, c *client, m Machine) (enrolment, error) {
	var en enrolment
	path := filepath.Join(cfg.StateDir, "enrolment.json")
	if err := readJSON(path, &en); err != nil {
		return en, err
	}
	p := cfg.PhoneHome
	if en.Server == p.Server && en.Attempt == p.Attempt && en.API == p.API {
		return en, nil
	}
	req := agentproto.Register{
		Server: p.Server, Attempt: p.Attempt, PublicKey: base64.StdEncoding.EncodeToString(c.key.Public().(ed25519.PublicKey)),
		BootID: m.BootID, Serial: m.Serial, UUID: m.UUID, Version: cfg.Version, Hostname: orElse(m.Hostname, p.Hostname),
	}
	retry := backoff{min: cfg.RetryMin, max: cfg.RetryMax}
	for {
		got, err := c.register(ctx, p.Token, req)
		if err == nil {
			en = enrolment{Server: p.Server, Attempt: p.Attempt, API: p.API, Heartbeat: got.HeartbeatEvery}
			b, err := json.Marshal(en)
			if err != nil {
				return en, err
			}
			cfg.Log.InfoContext(ctx, "registered", "attempt", p.Attempt)
			return en, writeFile(path, b, true)
		}
		var refused *RefusedError
		if errors.As(err, &refused) {
			return en, err
		}
		if ctx.Err() != nil {
			return en, ctx.Err()
		}
		cfg.Log.WarnContext(ctx, "not registered yet", "err", err)
		if err := retry.wait(ctx); err != nil {
			return en, err
		}
	}
}

// pollLoop asks for work until ctx ends.
func pollLoop(ctx context.Context, cfg Config, c *client, t *tasks) {
	retry := backoff{min: cfg.RetryMin, max: cfg.RetryMax}
	again := true
	for ctx.Err() == nil {
		asked := time.Now()
		batch, err := c.tasks(ctx, cfg.PollWait, again)
		fresh := 0
		if err == nil {
			for _, task := range batch {
				if task.Stop || !t.known(task.ID) {
					fresh++
				}
			}
			err = t.receive(ctx, batch)
		}
		if err != nil {
			again = true // an answer may have been lost, or could not be kept
			if ctx.Err() != nil {
				return
			}
			cfg.Log.WarnContext(ctx, "no tasks could be had", "err", err)
			if retry.after(ctx, err) != nil {
				return
			}
			continue
		}
		again = false
		retry.reset()
		// An API that answers at once without news is not to be asked in a circle.
		if fresh == 0 && time.Since(asked) < cfg.RetryMin && pause(ctx, cfg.RetryMin) != nil {
			return
		}
	}
}

// watchLoop keeps what a vendor's driver tells.
func watchLoop(ctx context.Context, cfg Config, r accelerator.Reader, devs *devices, ev *evidence) {
	retry := backoff{min: cfg.RetryMin, max: 4 * cfg.RetryMax}
	for {
		err := r.Watch(ctx, func(s accelerator.Sign) {
			if err := ev.add(string(r.Vendor()), s.Resolve(devs.cached())); err != nil {
				cfg.Log.ErrorContext(ctx, "evidence could not be kept on the disk", "err", err)
			}
		})
		if err == nil || ctx.Err() != nil || errors.Is(err, accelerator.ErrNoDriver) || errors.Is(err, accelerator.ErrNotBuilt) {
			return
		}
		cfg.Log.WarnContext(ctx, "events of a driver can't be had", "vendor", r.Vendor(), "err", err)
		if retry.wait(ctx) != nil {
			return
		}
	}
}

// beat is the heartbeat. Only its own goroutine uses memory, hung and saved.
type beat struct {
	cfg      Config
	c        *client
	m        Machine
	tasks    *tasks
	devices  *devices
	evidence *evidence
	every    time.Duration

	metrics *metrics // shows the last reading; nil = nobody asks

	memory accelerator.Memory
	saved  []byte
	hung   map[schema.Vendor]bool
}

func (b *beat) loop(ctx context.Context) {
	if b.every <= 0 {
		b.every = b.cfg.Heartbeat
	}
	tick := time.NewTicker(b.every)
	defer tick.Stop()
	retry := backoff{min: b.cfg.RetryMin, max: b.cfg.RetryMax}
	var list []agentproto.Device
	read := true // evidence alone doesn't wait for a reading
	for {
		if read {
			list = b.read(ctx)
		}
		err := b.send(ctx, list)
		list, read = nil, false
		if err != nil && ctx.Err() == nil {
			b.cfg.Log.WarnContext(ctx, "heartbeat was not taken", "err", err)
			if len(b.evidence.pending()) > 0 {
				if retry.after(ctx, err) != nil {
					return
				}
				continue
			}
		} else {
			retry.reset()
		}
		select {
		case <-tick.C:
			read = true
		case <-b.evidence.wake:
		case <-ctx.Done():
			return
		}
	}
}

// read reads the devices, and keeps as evidence what the reading shows beside what was seen before.
func (b *beat) read(ctx context.Context) []agentproto.Device {
	list, known := b.devices.read(ctx)
	if b.metrics != nil {
		b.metrics.show(list)
	}
	hung := map[schema.Vendor]bool{}
	for _, v := range b.devices.hung(b.cfg.Hang) {
		hung[v] = true
		if !b.hung[v] {
			b.keep(ctx, "agent", accelerator.Sign{Kind: "driver-hang", Code: string(v), Severity: schema.SeverityCritical,
				Text: fmt.Sprintf("the %s driver has not answered for %s", v, schema.Setting(b.cfg.Hang))})
		}
	}
	b.hung = hung
	if !known {
		return nil // a list that isn't whole would make devices look gone
	}
	now := b.tasks.now()
	for _, s := range append(b.memory.Step(b.m.BootID, now, list), b.memory.StepParts(b.m.BootID, now, b.devices.parts())...) {
		b.keep(ctx, "agent", s)
	}
	if m, err := json.Marshal(b.memory); err == nil && !bytes.Equal(m, b.saved) {
		if err := writeFile(filepath.Join(b.cfg.StateDir, "seen.json"), m, false); err != nil {
			b.cfg.Log.ErrorContext(ctx, "what was seen of the devices could not be kept", "err", err)
		} else {
			b.saved = m
		}
	}
	return list
}

func (b *beat) keep(ctx context.Context, source string, s accelerator.Sign) {
	if err := b.evidence.add(source, s); err != nil {
		b.cfg.Log.ErrorContext(ctx, "evidence could not be kept on the disk", "err", err)
	}
}

func (b *beat) send(ctx context.Context, list []agentproto.Device) error {
	reply, err := b.c.heartbeat(ctx, agentproto.Heartbeat{
		BootID: b.m.BootID, Version: b.cfg.Version, Devices: list, Evidence: b.evidence.pending(), Running: b.tasks.running(), Apart: b.cfg.Apart != nil, Shared: b.cfg.Shared,
	})
	if err != nil {
		return err
	}
	b.tasks.kill(reply.Unknown)
	more, err := b.evidence.acknowledge(reply.Acknowledged)
	if more {
		select {
		case b.evidence.wake <- struct{}{}:
		default:
		}
	}
	return err
}
