package bmc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/shared"
)

// Each tree of the captured ones, or of the folder that FOREIGN_TREES names (each a folder or an archive), is driven by every verb,
// in both orders. A verb is done, or is said not to be there; the firmware refuses nothing, and nothing but the host is changed.
func TestTreesOfAFolderAreDrivenByEveryVerb(t *testing.T) {
	dir := os.Getenv("FOREIGN_TREES")
	if dir == "" {
		dir = shared.Path(t, "data", "redfish")
	}
	trees, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(trees) == 0 {
		t.Fatalf("no tree in %s: %v", dir, err)
	}
	for _, tree := range trees {
		if at, err := os.Stat(tree); err == nil && !at.IsDir() && !strings.Contains(filepath.Base(tree), ".tar.") {
			continue // a licence, a page
		}
		var ids []string
		for _, reversed := range []bool{false, true} {
			t.Run(filepath.Base(tree)+map[bool]string{true: " reversed"}[reversed], func(t *testing.T) { ids = append(ids, driveForeign(t, tree, reversed)) })
		}
		if len(ids) == 2 && ids[0] != ids[1] {
			t.Errorf("%s is %s, and with its members in another order %s", tree, ids[0], ids[1])
		}
	}
}

func driveForeign(t *testing.T, tree string, reversed bool) (identity string) {
	p, err := lab.FromTree(tree)
	if errors.Is(err, lab.ErrNoHost) {
		t.Skip(err) // a power shelf, a chassis of drives
	}
	if err != nil {
		t.Fatal(err)
	}
	opts := []lab.Option{lab.WithLogCap(1 << 20), lab.WithQuirks(func(q *lab.Quirks) {
		q.POSTWindow, q.OnIgnoredAfterOff, q.BMCResetTime = 0, 0, 0
		q.PowerOffDelay, q.PowerOnDelay = 20*time.Millisecond, 20*time.Millisecond
	})}
	if reversed {
		opts = append(opts, lab.WithMembersReversed())
	}
	s := serve(t, p, lab.Hooks{}, opts...)
	c, ctx := dial(t, s, fast), t.Context()
	if _, err := c.Power(ctx); errors.Is(err, bmc.ErrNoHost) && strings.Contains(err.Error(), "could be the server") {
		user, password := s.Credential()
		pool := bmc.NewPool(bmc.Config{Timing: quick, Rate: 1e6, Burst: 1000, Log: testLog(t)})
		defer pool.Close(ctx)
		if c, err = pool.Client(bmc.Endpoint{Address: s.URL(), SystemID: s.SystemPath(), Credential: bmc.Static(user, password)}); err != nil {
			t.Fatal(err)
		}
	}
	var row []string
	did := func(verb string, err error) bool {
		t.Helper()
		switch {
		case err == nil:
			row = append(row, verb)
		case errors.Is(err, bmc.ErrUnsupported), errors.Is(err, bmc.ErrNotFound):
			row = append(row, "("+verb+")")
		default:
			row = append(row, verb+"!")
			t.Errorf("%s: %v", verb, err)
		}
		return err == nil
	}
	id, err := c.Identify(ctx)
	if !did("identify", err) {
		return ""
	}
	if id.SystemID != s.SystemPath() {
		t.Errorf("it is %+v, want %s", id, s.SystemPath())
	}
	_, err = c.GPUMetrics(ctx, id)
	did("metrics", err)
	_, err = c.BootOnceFromNetwork(ctx, bmc.PXE)
	if errors.Is(err, bmc.ErrUnsupported) {
		_, err = c.BootOnceFromNetwork(ctx, bmc.UEFIHTTP)
	}
	did("boot", err)
	if did("cycle", c.SetPower(ctx, bmc.Cycle)) && !s.PowerOn() {
		t.Error("it is off after a cycle")
	}
	did("clear", c.ClearBootOverride(ctx))
	did("light", c.LocateLED(ctx, true))
	entries, err := c.BootEntries(ctx)
	if did("entries", err) && len(entries) > 1 {
		did("order", c.BootFirst(ctx, []string{entries[1].Ref}))
	}
	attributes, err := c.BIOS(ctx)
	if did("bios", err) {
		for _, a := range attributes {
			if word, ok := a.Value.(string); ok && word != "" {
				_, err := c.SetBIOSWords(ctx, map[string]string{a.Name: word + "x"})
				did("attribute", err)
				break
			}
		}
	}
	if did("media", c.InsertMedia(ctx, "http://192.0.2.1/x.iso")) {
		did("eject", c.EjectMedia(ctx))
	}
	log, err := c.Log(ctx, 20)
	did(fmt.Sprintf("log %d", len(log)), err)
	sensors, err := c.Sensors(ctx)
	did(fmt.Sprintf("sensors %d", len(sensors)), err)
	firmware, err := c.Firmware(ctx)
	did(fmt.Sprintf("firmware %d", len(firmware)), err)
	_, err = c.Plant(ctx)
	did("plant", err)
	_, err = c.Vitals(ctx)
	did("vitals", err)
	d := c.Doctor(ctx, schema.Server{})
	for _, f := range d.Findings {
		if f.State == "failed" {
			row = append(row, "doctor: "+f.Check)
		}
	}
	for _, r := range s.Requests() {
		if r.Method == "PATCH" && strings.HasPrefix(r.Path, "/redfish/v1/Systems/") && !strings.HasPrefix(r.Path+"/", s.SystemPath()+"/") {
			t.Errorf("%s %s is not about the host", r.Method, r.Path)
		}
	}
	if bad := refusals(s); bad != nil {
		t.Errorf("refused: %v", bad)
	}
	t.Logf("ROW %s (%s %s, %d gpus): %s", filepath.Base(tree), id.Manufacturer, id.Model, len(id.GPUs), strings.Join(row, ", "))
	return fmt.Sprintf("%+v", id)
}
