package bmc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	ipmi "github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"
	"github.com/stmcginnis/gofish/schemas"
)

// IPMIClient speaks IPMI 2.0 (RMCP+) to BMCs that have no Redfish. It has the verbs of [Controller] and the event log.
// Each verb opens a session and closes it: IPMI sessions are few, and some BMCs don't end them by themselves. One session
// is open at a time at one BMC; logins count into the same budget as Redfish's.
type IPMIClient struct {
	pool       *Pool
	host       string
	port       int
	address    string
	account    string // whose login budget is used: the BMC's, whichever way its account is tried
	credential Credential
	slot       chan struct{}
}

// IPMI returns a client for host[:port]; the port is 623 if none is named. It sends nothing.
func (p *Pool) IPMI(ep Endpoint) (*IPMIClient, error) {
	if ep.Credential == nil {
		return nil, fmt.Errorf("bmc %s: no credential", ep.Address)
	}
	host, port := strings.TrimPrefix(ep.Address, "ipmi://"), 623
	if h, ps, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.Atoi(ps)
		if err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("bmc address %q: port %q: want 1 to 65535", ep.Address, ps)
		}
		host, port = h, n
	}
	if host == "" || strings.ContainsAny(host, "/@ ") {
		return nil, fmt.Errorf("bmc address %q: want host[:port]", ep.Address)
	}
	address := "ipmi://" + net.JoinHostPort(host, strconv.Itoa(port))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errPoolClosed
	}
	if p.ipmi[address] == nil {
		p.ipmi[address] = make(chan struct{}, 1)
	}
	return &IPMIClient{pool: p, host: host, port: port, address: address, account: address, credential: ep.Credential, slot: p.ipmi[address]}, nil
}

// Address is the BMC's, as ipmi://host:port.
func (c *IPMIClient) Address() string { return c.address }

func (c *IPMIClient) fail(op string, kind, err error) *Error {
	return &Error{Kind: kind, Op: op, Address: c.address, Err: err}
}

// session runs f in one IPMI session, within the login budget.
func (c *IPMIClient) session(ctx context.Context, op string, f func(context.Context, *ipmi.Client) error) error {
	select {
	case c.slot <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s %s: waiting for another session: %w", op, c.address, context.Cause(ctx))
	}
	defer func() { <-c.slot }()
	l, err := c.credential(ctx)
	if err != nil {
		return fmt.Errorf("credential of bmc %s: %w", c.address, err)
	}
	s, err := c.login(ctx, op, l)
	if isKind(err, ErrCredential) && l.Pending != nil {
		if again, second := c.login(ctx, op, *l.Pending); second == nil {
			s, err = again, nil
		}
	}
	if err != nil {
		return err
	}
	defer c.end(ctx, s)
	if err := f(ctx, s); err != nil {
		var e *Error
		if errors.As(err, &e) || ctx.Err() != nil {
			return err
		}
		return c.fail(op, ErrRefused, err)
	}
	return nil
}

// login opens a session with one secret.
func (c *IPMIClient) login(ctx context.Context, op string, l Login) (*ipmi.Client, error) {
	rev, t := l.revision(), c.pool.cfg.Timing
	for {
		err := c.pool.shared.Update(ctx, c.account, func(s *State) error { return s.permit(rev, now(), t.Call) })
		if err == nil {
			break
		}
		var open *errBreaker
		switch {
		case errors.As(err, &open):
			e := c.fail(op, ErrCredential, open)
			e.Hint = hintPassword
			return nil, e
		case !errors.Is(err, errTrying):
			return nil, err
		}
		if err := sleep(ctx, min(t.Poll, 100*time.Millisecond)); err != nil {
			return nil, err
		}
	}
	settle := func(change func(*State)) error {
		return c.pool.shared.Update(context.WithoutCancel(ctx), c.account, func(s *State) error { s.over(); change(s); return nil })
	}
	s, err := c.connect(ctx, l)
	if err == nil {
		return s, settle((*State).proven)
	}
	if errors.Is(err, errUserName) {
		return nil, errors.Join(c.fail(op, ErrUnsupported, err), settle(func(s *State) { s.takeBack(rev) }))
	}
	// RAKP tells a wrong user or password apart from silence (IPMI 2.0 section 13.24, status codes 0Dh, 0Fh, 12h).
	if rakpRefused(err) {
		e := c.fail(op, ErrCredential, nil) // the library's words could hold what was sent
		e.Detail, e.Hint = "the RAKP exchange failed for user "+l.User, hintPassword
		return nil, errors.Join(e, settle(func(*State) {}))
	}
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, errors.Join(context.Cause(ctx), settle(func(s *State) { s.takeBack(rev) }))
	}
	return nil, errors.Join(c.fail(op, ErrUnreachable, err), settle(func(s *State) { s.takeBack(rev) }))
}

// errUserName is a user name that IPMI has no room for.
var errUserName = errors.New("user name not possible in ipmi")

// suites are the cipher suites offered, best first: 17 (SHA-256) and 3, which every BMC with RMCP+ must have. Each is
// offered by itself, and the next only when the BMC doesn't know the one before: a library that goes on after a wrong
// password uses up the lockout by itself.
var suites = []types.CipherSuiteID{types.CipherSuiteID17, types.CipherSuiteID3}

// connect opens a session with the best cipher suite that the BMC knows.
func (c *IPMIClient) connect(ctx context.Context, l Login) (*ipmi.Client, error) {
	t := c.pool.cfg.Timing
	call, cancel := context.WithTimeout(ctx, t.Call)
	defer cancel()
	var last error
	for _, suite := range suites {
		s, err := ipmi.NewClient(c.host, c.port, l.User, string(l.Password))
		if err != nil {
			return nil, fmt.Errorf("%w: at most 16 bytes", errUserName)
		}
		s.WithInterface(ipmi.InterfaceLanplus).WithTimeout(c.exchange()).WithRetry(2).
			WithMaxPrivilegeLevel(types.PrivilegeLevelAdministrator).WithCipherSuiteID(suite)
		if err := s.Connect20(call); err == nil {
			return s, nil
		} else if last = err; rakpRefused(err) || call.Err() != nil {
			break
		}
	}
	return nil, last
}

// exchange is how long one packet waits for its answer before it is sent again.
func (c *IPMIClient) exchange() time.Duration {
	return max(c.pool.cfg.Timing.Call/8, 200*time.Millisecond)
}

func rakpRefused(err error) bool {
	words := strings.ToLower(err.Error())
	return errors.Is(err, ipmi.ErrRAKPAuthentication) || strings.Contains(words, "unauthorized") || strings.Contains(words, "integrity check") || strings.Contains(words, "rakp")
}

// Power reads the chassis's power state.
func (c *IPMIClient) Power(ctx context.Context) (PowerState, error) {
	state := PowerUnknown
	err := c.session(ctx, "read power of", func(ctx context.Context, s *ipmi.Client) (err error) {
		state, err = ipmiPower(ctx, s)
		return err
	})
	return state, err
}

func ipmiPower(ctx context.Context, s *ipmi.Client) (PowerState, error) {
	st, err := s.GetChassisStatus(ctx)
	switch {
	case err != nil:
		return PowerUnknown, err
	case st.PowerIsOn:
		return PowerOn, nil
	}
	return PowerOff, nil
}

// SetPower is as Client.SetPower: idempotent, graceful then hard, proven by a read.
func (c *IPMIClient) SetPower(ctx context.Context, want Want, opts ...PowerOption) error {
	plan := powerPlan{graceful: c.pool.cfg.Timing.Graceful}
	for _, o := range opts {
		o(&plan)
	}
	if want != On && want != Off && want != Cycle { // IPMI's power cycle leaves the standby power on (28.3)
		return &Error{Kind: ErrUnsupported, Op: "power", Address: c.address, Detail: fmt.Sprintf("power %q: over ipmi on, off or cycle", want)}
	}
	op := "power " + string(want)
	return c.session(ctx, op, func(ctx context.Context, s *ipmi.Client) error {
		was, err := ipmiPower(ctx, s)
		if err != nil {
			return err
		}
		if want == Cycle {
			_, begun, err := c.pool.begun(ctx, c.address, plan)
			if err != nil {
				return err
			}
			if begun {
				want = On
			}
		}
		if want != On && was == PowerOn {
			if err := c.pool.spend(ctx, c.address, "", &plan); err != nil {
				return err
			}
			if err := c.ipmiOff(ctx, op, s, plan); err != nil {
				return err
			}
		}
		if want == Cycle {
			if err := c.pool.begin(ctx, c.address, plan, ""); err != nil {
				return err
			}
		}
		if want == Off || want == On && was == PowerOn {
			return nil
		}
		if was == PowerOn {
			if err := sleep(ctx, c.pool.cfg.Timing.Settle); err != nil {
				return err
			}
		}
		return c.ipmiDrive(ctx, op, s, chassis.ChassisControlPowerUp, PowerOn)
	})
}

func (c *IPMIClient) ipmiOff(ctx context.Context, op string, s *ipmi.Client, plan powerPlan) error {
	if plan.graceful > 0 {
		if _, err := s.ChassisControl(ctx, chassis.ChassisControlSoftShutdown); err == nil { // optional in IPMI (28.3)
			off, err := poll(ctx, c.pool.cfg.Timing.Poll, plan.graceful, ipmiShows(s, PowerOff))
			if off || ctx.Err() != nil {
				return err
			}
			c.pool.log.WarnContext(ctx, "the os did not shut down in time, cutting the power", "bmc", c.address, "waited", plan.graceful)
		}
	}
	return c.ipmiDrive(ctx, op, s, chassis.ChassisControlPowerDown, PowerOff)
}

func ipmiShows(s *ipmi.Client, want PowerState) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		st, err := ipmiPower(ctx, s)
		return err == nil && st == want, err
	}
}

// ipmiDrive sends a chassis control until the state shows. A refusal is judged by the read: it may be so already.
func (c *IPMIClient) ipmiDrive(ctx context.Context, op string, s *ipmi.Client, control chassis.ChassisControl, want PowerState) error {
	t := c.pool.cfg.Timing
	deadline := now().Add(t.PowerChange)
	var last error
	for !now().After(deadline) {
		_, last = s.ChassisControl(ctx, control)
		ok, err := poll(ctx, t.Poll, min(t.PowerRetry, max(deadline.Sub(now()), 0)), ipmiShows(s, want))
		if ok || ctx.Err() != nil {
			return err
		}
	}
	return &Error{Kind: ErrNotProven, Op: op, Address: c.address, Err: last, Detail: fmt.Sprintf("the power is not %s after %s", want, t.PowerChange)}
}

// BootOnceFromNetwork makes the next boot one by PXE in UEFI mode; IPMI has no HTTP boot. The valid bit's timeout (60 s
// by default, section 28.12) is switched off first where the BMC can, since a server may take longer to its power-on.
func (c *IPMIClient) BootOnceFromNetwork(ctx context.Context, method NetBoot, _ ...BootOption) (BootSetting, error) {
	if method != PXE {
		return BootSetting{}, &Error{Kind: ErrUnsupported, Op: "set network boot of", Address: c.address, Detail: fmt.Sprintf("network boot %q: ipmi has only %s", method, PXE)}
	}
	return c.setBoot(ctx, "set network boot of", types.BootDeviceSelectorForcePXE)
}

// ClearBootOverride lets the machine boot by its own order again.
func (c *IPMIClient) ClearBootOverride(ctx context.Context) error {
	_, err := c.setBoot(ctx, "clear boot override of", types.BootDeviceSelectorNoOverride)
	return err
}

func (c *IPMIClient) setBoot(ctx context.Context, op string, device types.BootDeviceSelector) (got BootSetting, err error) {
	err = c.session(ctx, op, func(ctx context.Context, s *ipmi.Client) error {
		valid := device != types.BootDeviceSelectorNoOverride
		flags, err := readBootFlags(ctx, s)
		if err != nil {
			return err
		}
		if got = bootFlags(flags); flags.BootFlagsValid == valid && (!valid || flags.BootDeviceSelector == device && !flags.Persist) {
			return nil
		}
		_ = s.SetSystemBootOptionsParamFor(ctx, &types.BootOptionParam_BMCBootFlagValidBitClear{DontClearOnCommandReceivedTimeout: true}) // optional
		want := &types.BootOptionParam_BootFlags{BootFlagsValid: valid, BIOSBootType: types.BIOSBootTypeEFI, BootDeviceSelector: device}
		if err := s.SetSystemBootOptionsParamFor(ctx, want); err != nil {
			return err
		}
		if flags, err = readBootFlags(ctx, s); err != nil {
			return err
		}
		// The device is the proof. The valid bit isn't read back by all (OpenIPMI's simulator shows it as 0); it decides only
		// whether there is something to send, where a leftover device without it means that the override was used up.
		shown := *flags
		shown.BootFlagsValid = flags.BootDeviceSelector != types.BootDeviceSelectorNoOverride && valid
		got = bootFlags(&shown)
		got.Changed = true
		if valid && (flags.BootDeviceSelector != device || flags.Persist) || !valid && flags.BootFlagsValid && flags.BootDeviceSelector != device {
			return &Error{Kind: ErrNotProven, Op: op, Address: c.address, Detail: fmt.Sprintf("it shows %s %s", got.Enabled, got.Target)}
		}
		return nil
	})
	return got, err
}

func readBootFlags(ctx context.Context, s *ipmi.Client) (*types.BootOptionParam_BootFlags, error) {
	f := &types.BootOptionParam_BootFlags{}
	return f, s.GetSystemBootOptionsParamFor(ctx, f)
}

// bootFlags shows IPMI's flags in Redfish's words.
func bootFlags(f *types.BootOptionParam_BootFlags) BootSetting {
	out := BootSetting{Target: string(schemas.NoneBootSource), Enabled: string(schemas.DisabledBootSourceOverrideEnabled)}
	if !f.BootFlagsValid || f.BootDeviceSelector == types.BootDeviceSelectorNoOverride {
		return out
	}
	out.Target = map[types.BootDeviceSelector]string{types.BootDeviceSelectorForcePXE: string(schemas.PxeBootSource),
		types.BootDeviceSelectorForceHardDrive: string(schemas.HddBootSource), types.BootDeviceSelectorForceCDROM: string(schemas.CdBootSource)}[f.BootDeviceSelector]
	if out.Enabled = string(schemas.OnceBootSourceOverrideEnabled); f.Persist {
		out.Enabled = string(schemas.ContinuousBootSourceOverrideEnabled)
	}
	if out.Mode = string(schemas.LegacyBootSourceOverrideMode); f.BIOSBootType == types.BIOSBootTypeEFI {
		out.Mode = string(schemas.UEFIBootSourceOverrideMode)
	}
	return out
}

// LocateLED lights the locator until it is told otherwise, or puts it out. IPMI shows it back only on some BMCs, so the
// accepted command is the proof.
func (c *IPMIClient) LocateLED(ctx context.Context, on bool) error {
	return c.session(ctx, "set locator light of", func(ctx context.Context, s *ipmi.Client) error {
		_, err := s.ChassisIdentify(ctx, 0, on)
		return err
	})
}

// Identify reads the product area of the FRU and the system's GUID. IPMI shows neither network cards nor accelerators.
func (c *IPMIClient) Identify(ctx context.Context) (id Identity, err error) {
	err = c.session(ctx, "identify", func(ctx context.Context, s *ipmi.Client) error {
		dev, err := s.GetDeviceID(ctx)
		if err != nil {
			return err
		}
		id = Identity{Make: MakeUnknown, SystemID: c.address, BaseboardsReady: true,
			BMCFirmware: fmt.Sprintf("%d.%02x", dev.MajorFirmwareRevision, dev.MinorFirmwareRevision)}
		if fru, err := s.GetFRU(ctx, 0, ""); err == nil && fru.ProductInfoArea != nil {
			p := fru.ProductInfoArea
			id.Manufacturer, id.Model, id.Serial = fruText(p.Manufacturer), fruText(p.Name), fruText(p.SerialNumber)
			id.PartNumber = fruText(p.PartModel)
		} else if err == nil && fru.BoardInfoArea != nil {
			id.Manufacturer, id.Model, id.Serial = fruText(fru.BoardInfoArea.Manufacturer), fruText(fru.BoardInfoArea.ProductName), fruText(fru.BoardInfoArea.SerialNumber)
		}
		if guid, err := s.GetSystemGUID(ctx); err == nil && guid.GUID != [16]byte{} {
			if u, err := types.ParseGUID(guid.GUID[:], types.GUIDModeSMBIOS); err == nil {
				id.UUID = strings.ToLower(u.String())
			}
		}
		return nil
	})
	return id, err
}

// Login proves that the BMC answers and lets us in.
func (c *IPMIClient) Login(ctx context.Context) error {
	return c.session(ctx, "log in to", func(context.Context, *ipmi.Client) error { return nil })
}

// Vitals reads the power. IPMI tells neither boot progress nor health as a whole.
func (c *IPMIClient) Vitals(ctx context.Context) (Vitals, error) {
	p, err := c.Power(ctx)
	return Vitals{Power: p}, err
}

// Look reads the power and the boot flags that stand.
func (c *IPMIClient) Look(ctx context.Context) (l Look, err error) {
	l.Power = PowerUnknown
	err = c.session(ctx, "look at", func(ctx context.Context, s *ipmi.Client) (err error) {
		if l.Power, err = ipmiPower(ctx, s); err != nil {
			return err
		}
		if f, err := readBootFlags(ctx, s); err == nil { // optional in IPMI (28.13)
			if set := bootFlags(f); set.Enabled != string(schemas.DisabledBootSourceOverrideEnabled) {
				l.Override = set.Target + " " + set.Enabled
			}
		}
		return nil
	})
	return l, err
}

// Log reads the last entries of the event log.
func (c *IPMIClient) Log(ctx context.Context, most int) ([]LogEntry, error) {
	all, _, err := c.LogEntries(ctx, nil)
	return lastEntries(all, most), err
}

// fruText is a FRU field as text.
func fruText(b []byte) string {
	r := &resource{body: map[string]any{"x": strings.Trim(strings.ToValidUTF8(string(b), ""), "\x00 ")}}
	return r.word("x")
}

// Sensors reads every sensor that has a value or a state.
func (c *IPMIClient) Sensors(ctx context.Context) (out []Reading, err error) {
	err = c.session(ctx, "read sensors of", func(ctx context.Context, s *ipmi.Client) error {
		list, err := s.GetSensors(ctx)
		if err != nil {
			return err
		}
		for _, x := range list {
			r := Reading{Name: x.Name, URI: fmt.Sprintf("%s#%d", c.address, x.Number), Kind: x.SensorType.String(), State: "Enabled"}
			if x.NotPresent {
				r.State = string(schemas.AbsentState)
			}
			if !x.NotPresent && !x.ScanningDisabled {
				r.Health = ipmiHealth(x)
			}
			if x.HasAnalogReading && x.ReadingAvailable && !x.ScanningDisabled && !x.NotPresent {
				v := x.Value
				r.Value, r.Unit = &v, x.SensorUnit.String()
			}
			out = append(out, r)
		}
		return nil
	})
	return out, err
}

// ipmiHealth is a threshold sensor's state in Redfish's words: critical from the critical thresholds on. What a discrete
// sensor's bits mean differs by sensor; those tell by the event log.
func ipmiHealth(x *types.Sensor) string {
	if !x.IsThreshold() || !x.ReadingAvailable {
		return ""
	}
	switch x.Threshold.ThresholdStatus {
	case types.SensorThresholdStatus_LCR, types.SensorThresholdStatus_LNR, types.SensorThresholdStatus_UCR, types.SensorThresholdStatus_UNR:
		return string(schemas.CriticalHealth)
	case types.SensorThresholdStatus_LNC, types.SensorThresholdStatus_UNC:
		return string(schemas.WarningHealth)
	}
	return string(schemas.OKHealth)
}

// LogEntries reads what the event log has new since cursor, as Client.LogEntries.
func (c *IPMIClient) LogEntries(ctx context.Context, cursor *Cursor) (fresh []LogEntry, next *Cursor, err error) {
	next = cursor
	err = c.session(ctx, "read log of", func(ctx context.Context, s *ipmi.Client) error {
		list, err := s.GetSELEntries(ctx, 0)
		if err != nil {
			return err
		}
		var all []LogEntry
		for _, x := range list {
			e := LogEntry{Service: "sel", ID: strconv.Itoa(int(x.RecordID))}
			if st := x.Standard; st != nil {
				e.At, e.Created = st.Timestamp, st.Timestamp.UTC().Format(time.RFC3339)
				e.Message = fmt.Sprintf("%s sensor %d: %s", st.SensorType, st.SensorNumber, st.EventString())
				e.Severity = string(st.EventSeverity())
				e.MessageID = fmt.Sprintf("IPMI.%s/%s", st.SensorType, st.EventString())
			}
			all = append(all, e)
		}
		fresh, next = since(all, cursor)
		return nil
	})
	return fresh, next, err
}
