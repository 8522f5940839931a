package bmc

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
)

// Operate does what a person asked of a server's BMC and keeps what came of it. What the BMC or a safety rule refuses is
// an outcome, kept like any other; only what kept it from being known is an error, to be tried again.
func (a *Activities) Operate(ctx context.Context, act string) error {
	_, err := beating(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, a.operate(ctx, act) })
	return err
}

func (a *Activities) operate(ctx context.Context, act string) error {
	if store.IsBMCProbe(act) {
		return a.probe(ctx, act)
	}
	asked, v, live, refused := a.Store.BeginBMCAct(ctx, act)
	if refused != nil && asked.ID == "" || refused == nil && !live {
		return refused
	}
	var result any
	var file *store.BMCFile
	if refused == nil {
		result, file, refused = a.perform(ctx, asked, v)
	}
	if ctx.Err() != nil {
		return ctx.Err() // cut off: it is known only by trying again, which every verb stands
	}
	return a.Store.EndBMCAct(ctx, act, result, file, refused)
}

// probe asks an address range from here, where the site's BMC network is reached.
func (a *Activities) probe(ctx context.Context, id string) error {
	p, live, err := a.Store.BeginBMCProbe(ctx, id)
	if err != nil || !live {
		return err
	}
	prefix, err := netip.ParsePrefix(p.Range)
	if err != nil {
		return a.Store.EndBMCProbe(ctx, id, nil, schema.Invalid("range", p.Range, "a prefix like 10.20.0.0/24"))
	}
	list, err := Probe(ctx, prefix, ProbeConfig{Port: p.Port, HTTP: p.PlainHTTP})
	if ctx.Err() != nil {
		return ctx.Err() // probed again by the next worker
	}
	known := make([]Recognised, len(list))
	if p.LogsIn && err == nil {
		user, password, taken, cannot := a.Store.TakeBMCProbeLogin(ctx, id, a.Keys)
		if cannot != nil {
			return cannot
		}
		if !taken {
			return a.Store.EndBMCProbe(ctx, id, nil, schema.Conflict("a worker that was logging in ended before it was done", "each is logged in to once, so that no account is locked: ask again"))
		}
		known = Recognise(ctx, list, user, password, 0)
	}
	found := make([]schema.BMCFound, len(list))
	for i, f := range list {
		found[i] = schema.BMCFound{Address: f.Address, Site: p.Site, Protocol: string(Redfish), Vendor: f.Vendor, Product: cmp.Or(known[i].Model, f.Product), UUID: f.UUID, Serial: known[i].Serial, TLSKey: f.TLSPin, Via: "probe"}
		if known[i].Err != nil {
			found[i].Trouble = shortWord(known[i].Err.Error())
		}
	}
	return a.Store.EndBMCProbe(context.WithoutCancel(ctx), id, found, err)
}

// perform does one verb. Results are what the API shows under the verb's name.
func (a *Activities) perform(ctx context.Context, act schema.BMCAct, v schema.Server) (result any, file *store.BMCFile, err error) {
	if act.Verb == schema.BMCLogin {
		if err := a.Pool.AllowLogin(ctx, v.BMCAddress); err != nil {
			return nil, nil, err
		}
	}
	c, err := a.Pool.Controller(a.endpoint(v))
	if err != nil {
		return nil, nil, err
	}
	if act.Verb == schema.BMCDoctor {
		return c.Doctor(ctx, v), nil, nil
	}
	rf, redfish := c.(*Client)
	if act.Verb == schema.BMCRotate {
		if a.Renew == nil {
			return nil, nil, &Error{Kind: ErrUnsupported, Op: "rotate password of", Address: c.Address(), Detail: "this process keeps no passwords"}
		}
		return nil, nil, a.Renew(ctx, c, v.ID)
	}
	if err := c.Login(ctx); err != nil { // slow things first, so that the question that follows is as fresh as it can be
		return nil, nil, err
	}
	if _, _, _, err := a.Store.BeginBMCAct(ctx, act.ID); err != nil {
		return nil, nil, err
	}
	switch act.Verb {
	case schema.BMCIdentify:
		id, err := c.Identify(ctx)
		return Told{id, id.Accelerators()}, nil, err
	case schema.BMCPower:
		p, err := powerBy(ctx, c, act)
		return p, nil, err
	case schema.BMCBoot:
		b, err := bootBy(ctx, c, act.Args)
		return b, nil, err
	case schema.BMCLight:
		return nil, nil, c.LocateLED(ctx, act.Args.Lit)
	case schema.BMCLogs:
		list, err := c.Log(ctx, orNumber(act.Args.Most, 50))
		return list, nil, err
	case schema.BMCSensors:
		list, err := c.Sensors(ctx)
		return list, nil, err
	case schema.BMCConsole:
		text, err := c.Console(ctx, time.Duration(orNumber(act.Args.Seconds, 5))*time.Second)
		return text, nil, err
	case schema.BMCFirmware, schema.BMCMetrics, schema.BMCOrder, schema.BMCBIOS, schema.BMCMedia:
		if !redfish {
			return nil, nil, &Error{Kind: ErrUnsupported, Op: string(act.Verb), Address: c.Address(), Detail: "over Redfish only"}
		}
		result, err := redfishOnly(ctx, rf, act)
		return result, nil, err
	case schema.BMCCapture:
		if !redfish {
			return nil, nil, &Error{Kind: ErrUnsupported, Op: "capture", Address: c.Address(), Detail: "only a Redfish tree can be captured"}
		}
		return captureFile(ctx, rf, v.Name)
	case schema.BMCReset:
		if !redfish {
			return nil, nil, &Error{Kind: ErrUnsupported, Op: "reset the bmc", Address: c.Address(), Detail: "over Redfish only"}
		}
		return nil, nil, rf.ResetBMC(ctx)
	case schema.BMCLogin:
		return nil, nil, nil
	case schema.BMCDoctor, schema.BMCRotate: // above
	}
	return nil, nil, schema.Invalid("verb", string(act.Verb), fmt.Sprintf("one of %v", schema.BMCVerbs))
}

// redfishOnly does the verbs that IPMI has no way for.
func redfishOnly(ctx context.Context, c *Client, act schema.BMCAct) (any, error) {
	switch act.Verb {
	case schema.BMCFirmware:
		return c.Firmware(ctx)
	case schema.BMCMetrics:
		id, err := c.Identify(ctx)
		if err != nil {
			return nil, err
		}
		return c.GPUMetrics(ctx, id)
	case schema.BMCOrder:
		if len(act.Args.First) > 0 {
			if err := c.BootFirst(ctx, act.Args.First); err != nil {
				return nil, err
			}
		}
		return c.BootEntries(ctx)
	case schema.BMCBIOS:
		if len(act.Args.Attributes) == 0 {
			return c.BIOS(ctx)
		}
		reboot, err := c.SetBIOSWords(ctx, act.Args.Attributes)
		return BIOSSet{reboot}, err
	default:
		var err error
		switch {
		case act.Args.Image != "":
			err = c.InsertMedia(ctx, act.Args.Image)
		case act.Args.Eject:
			err = c.EjectMedia(ctx)
		}
		if err != nil {
			return nil, err
		}
		return c.Media(ctx)
	}
}

// BIOSSet is what bios answers where attributes were asked for.
type BIOSSet struct {
	Reboot bool `json:"reboot"` // they take effect at the next boot
}

// Told is what identify answers.
type Told struct {
	Identity
	Shows Knowledge `json:"accelerators"`
}

// Powered is what power answers.
type Powered struct {
	Was PowerState `json:"was"`
	Now PowerState `json:"now"`
}

func powerBy(ctx context.Context, c Controller, act schema.BMCAct) (p Powered, err error) {
	args := act.Args
	if p.Was, err = c.Power(ctx); err != nil || args.Want == "" {
		p.Now = p.Was
		return p, err
	}
	opts := []PowerOption{Regardless(), As(act.ID)} // a person asked, and asked once
	if args.Hard {
		opts = append(opts, Hard())
	}
	if err := c.SetPower(ctx, Want(args.Want), opts...); err != nil {
		return p, err
	}
	p.Now, err = c.Power(ctx)
	return p, err
}

func bootBy(ctx context.Context, c Controller, args schema.BMCArgs) (Look, error) {
	switch args.From {
	case "network":
		_, err := c.BootOnceFromNetwork(ctx, PXE)
		if errors.Is(err, ErrUnsupported) {
			_, err = c.BootOnceFromNetwork(ctx, UEFIHTTP)
		}
		if err != nil {
			return Look{}, err
		}
	case "disk":
		if err := c.ClearBootOverride(ctx); err != nil {
			return Look{}, err
		}
	}
	return c.Look(ctx)
}

// maxCapture bounds a captured tree in its packed form. The largest captured so far packs to half a megabyte.
const maxCapture = 24 << 20

// captureFile captures a tree and packs it.
func captureFile(ctx context.Context, c *Client, name string) (any, *store.BMCFile, error) {
	dir, err := os.MkdirTemp("", "gpupool-capture-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	got, err := c.Capture(ctx, dir, CaptureConfig{})
	if err != nil {
		return nil, nil, err
	}
	packed, err := pack(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("packing the capture: %w", err)
	}
	if len(packed) > maxCapture {
		return nil, nil, &Error{Kind: ErrUnsupported, Op: "capture", Address: c.Address(), Detail: fmt.Sprintf("the tree packs to %d bytes, more than %d", len(packed), maxCapture)}
	}
	return got, &store.BMCFile{Name: name + "-redfish.tar.gz", Content: base64.StdEncoding.EncodeToString(packed)}, nil
}

// pack makes a .tar.gz of a folder, the same for the same files.
func pack(dir string) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(filepath.ToSlash(strings.TrimPrefix(path, dir)), "/")
		if err := t.WriteHeader(&tar.Header{Name: rel, Mode: 0o644, Size: int64(len(body))}); err != nil {
			return err
		}
		_, err = t.Write(body)
		return err
	})
	err = errors.Join(err, t.Close(), z.Close()) // what is buffered is written by closing
	return b.Bytes(), err
}

func orNumber(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}
