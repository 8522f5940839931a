package console

import (
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema"
)

// repairsPage is the technician's list: what waits for them first.
func repairsPage(v *visit) {
	l, err := call.Do[contract.RepairList](v.api.ListRepairs(v.r.Context(), &contract.ListRepairsParams{Open: opt(true)}))
	if err != nil {
		v.fail(err)
		return
	}
	names, err := v.servers()
	if err != nil {
		v.fail(err)
		return
	}
	var waiting, decide, others []schema.Repair
	for _, r := range l.Items {
		switch {
		case r.State == schema.RepairWaiting && r.Owner == schema.OwnerOperators:
			decide = append(decide, r)
		case r.State == schema.RepairWaiting:
			waiting = append(waiting, r)
		default:
			others = append(others, r)
		}
	}
	v.show(page{title: "Repairs", path: "/ui/repairs"}, repairsView(v, waiting, decide, others, names), nil)
}

// repairDetail is a repair with the hardware it is about.
type repairDetail struct {
	schema.Repair
	Machine contract.Server
	Device  schema.Accelerator // zero where it is about the server
	Faults  []schema.Fault
	Photos  []schema.RepairPhoto
	Light   *contract.RepairLightAct // the last switching of the light; nil where nobody has
	RMAs    []schema.RMA
	Lemons  []schema.Lemon // the score of its device and of its slot, where they have one
}

// expected is the serial that should come out, where it is known.
func (d repairDetail) expected() string {
	if d.OldSerial != "" {
		return d.OldSerial
	}
	return d.Device.Serial
}

// shape is what decides which forms there are.
func (d repairDetail) shape() string { return string(d.State) + "/" + d.Owner }

func (v *visit) repair(id string) (d repairDetail, err error) {
	ctx := v.r.Context()
	if d.Repair, err = call.Do[schema.Repair](v.api.GetRepair(ctx, id, &contract.GetRepairParams{})); err != nil {
		return d, err
	}
	if d.Machine, err = call.Do[contract.Server](v.api.GetServer(ctx, d.Server, &contract.GetServerParams{})); err != nil {
		return d, err
	}
	acc, err := call.Do[contract.AcceleratorList](v.api.ListAccelerators(ctx, &contract.ListAcceleratorsParams{Server: &d.Server, Limit: opt(1000)}))
	if err != nil {
		return d, err
	}
	for _, a := range acc.Items {
		if a.ID == d.Accelerator {
			d.Device = a
		}
	}
	faults, err := call.Do[contract.FaultList](v.api.ListFaults(ctx, &contract.ListFaultsParams{Server: &d.Server}))
	if err != nil {
		return d, err
	}
	for _, f := range faults.Items {
		if f.Repair == d.ID {
			d.Faults = append(d.Faults, f)
		}
	}
	photos, err := call.Do[contract.RepairPhotoList](v.api.ListRepairPhotos(ctx, d.ID))
	if err != nil {
		return d, err
	}
	d.Photos = photos.Items
	light, err := call.Do[contract.RepairLightAct](v.api.GetRepairLight(ctx, d.ID))
	switch {
	case err == nil:
		d.Light = &light
	case !schema.Is(err, schema.CodeNotFound):
		return d, err
	}
	return d, v.partsOf(&d)
}

// partsOf reads what is known of the repair's parts: which went back to their maker, and how often they come back here.
func (v *visit) partsOf(d *repairDetail) error {
	rmas, err := call.Do[contract.RMAList](v.api.ListRMAs(v.r.Context(), &contract.ListRMAsParams{}))
	if err != nil {
		return err
	}
	for _, m := range rmas.Items {
		if m.Repair == d.ID {
			d.RMAs = append(d.RMAs, m)
		}
	}
	lemons, err := call.Do[contract.LemonList](v.api.ListLemons(v.r.Context()))
	for _, l := range lemons.Items {
		if l.Serial != "" && l.Serial == d.expected() || l.Slot != "" && l.Server == d.Machine.Name && l.Slot == d.Device.Slot {
			d.Lemons = append(d.Lemons, l)
		}
	}
	return err
}

// said is what a technician typed, which a page keeps where it is refused.
type said struct {
	contract.RepairDone
	GaveUp string // why it can't be done here
}

func repairPage(v *visit) { v.showRepair(v.r.PathValue("repair"), nil, said{}) }

func (v *visit) showRepair(id string, n *notice, typed said) {
	d, err := v.repair(id)
	if err != nil {
		v.fail(err)
		return
	}
	if typed.OldSerial == "" {
		typed.OldSerial = d.expected()
	}
	v.show(page{title: "Repair of " + d.Machine.Name, path: "/ui/repairs", at: "/ui/repairs/" + d.ID, shape: d.shape(), notice: n}, repairView(v, d), repairForms(v, d, typed))
}

const (
	// photosAtOnce is how many photos one form may bring.
	photosAtOnce = 4
	// photoForm bounds the body of a form with photos, photoFormWithin how long it may take: a phone's line is slow between racks.
	photoForm       = photosAtOnce*schema.MaxPhotoBytes + smallForm
	photoFormWithin = 5 * time.Minute
)

// repairDo does what a form of the page says, through the API's routes; what was typed is kept on the page when it is refused.
func repairDo(v *visit) {
	ctx, id, verb := v.r.Context(), v.r.PathValue("repair"), v.r.PathValue("verb")
	_ = http.NewResponseController(v.w).SetReadDeadline(time.Now().Add(photoFormWithin)) // what can't be given one has none to change
	if err := v.r.ParseMultipartForm(1 << 20); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		v.showRepair(id, problem(&schema.Error{Code: schema.CodeInvalid, Field: "photo", Message: "the form did not come whole", Hint: fmt.Sprintf("at most %d photos at once, of at most %d MiB each", photosAtOnce, schema.MaxPhotoBytes>>20)}), said{})
		return
	}
	if f := v.r.MultipartForm; f != nil {
		defer func() { _ = f.RemoveAll() }() // files of a temporary folder
	}
	field := func(name string) string { return strings.TrimSpace(v.r.PostFormValue(name)) }
	typed := said{RepairDone: contract.RepairDone{OldSerial: field("old_serial"), NewSerial: field("new_serial"), Did: schema.RepairWork(field("did")), Note: field("note")}, GaveUp: field("why")}
	if err := v.sendPhotos(id, verb == "photo"); err != nil {
		v.refusedRepair(id, err, typed)
		return
	}
	if verb == "photo" {
		v.back("/ui/repairs/"+id, verb)
		return
	}
	v.do(map[string]func() (*http.Response, error){
		"claim": func() (*http.Response, error) {
			return v.api.ClaimRepair(ctx, id, contract.RepairClaim{Force: field("force") == "true"})
		},
		"light-on":  func() (*http.Response, error) { return v.api.LightRepair(ctx, id, contract.RepairLight{Lit: true}) },
		"light-off": func() (*http.Response, error) { return v.api.LightRepair(ctx, id, contract.RepairLight{}) },
		"done":      func() (*http.Response, error) { return v.api.FinishRepair(ctx, id, typed.RepairDone) },
		"could-not-fix": func() (*http.Response, error) {
			return v.api.GiveUpRepair(ctx, id, contract.RepairNote{Note: typed.GaveUp})
		},
		"drain-now": func() (*http.Response, error) {
			return v.api.DrainRepairNow(ctx, id, contract.WithReason{Reason: typed.GaveUp})
		},
	}, "/ui/repairs/"+id, func(n *notice) { v.showRepair(id, n, typed) })
}

func (v *visit) refusedRepair(id string, err error, typed said) {
	if c := schema.CodeOf(err); c == schema.CodeUnauthenticated || c == schema.CodeNotFound {
		v.fail(err)
		return
	}
	v.showRepair(id, problem(err), typed)
}

// sendPhotos keeps the form's photos with the repair. They go first: a word that is refused then leaves them where they are,
// and the same ones again change nothing.
func (v *visit) sendPhotos(id string, needed bool) error {
	var files []*multipart.FileHeader
	if v.r.MultipartForm != nil {
		for _, f := range v.r.MultipartForm.File["photo"] {
			if f.Size > 0 || f.Filename != "" { // a field that nothing was chosen in is an empty file
				files = append(files, f)
			}
		}
	}
	switch {
	case needed && len(files) == 0:
		return &schema.Error{Code: schema.CodeInvalid, Field: "photo", Message: "no photo was chosen", Hint: "choose one, or take one"}
	case len(files) > photosAtOnce:
		return schema.Invalid("photo", len(files), fmt.Sprintf("at most %d at once", photosAtOnce))
	}
	for _, f := range files {
		if err := v.sendPhoto(id, f); err != nil {
			return err
		}
	}
	return nil
}

func (v *visit) sendPhoto(id string, f *multipart.FileHeader) error {
	file, err := f.Open()
	if err != nil {
		return fmt.Errorf("reading the photo %s: %w", f.Filename, err)
	}
	defer file.Close()
	note := strings.TrimSpace(v.r.PostFormValue("photo_note"))
	_, err = call.Do[schema.RepairPhoto](v.api.AddRepairPhotoWithBody(v.r.Context(), id, &contract.AddRepairPhotoParams{Note: opt(note)}, f.Header.Get("Content-Type"), file))
	return err
}
