package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"image"
	"image/jpeg"
	"image/png"
	"net/http"
	"strings"
	"testing"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func picture(t *testing.T, kind string, width int) string {
	t.Helper()
	var b bytes.Buffer
	var err error
	img := image.NewGray(image.Rect(0, 0, width, 2))
	if kind == "image/png" {
		err = png.Encode(&b, img)
	} else {
		err = jpeg.Encode(&b, img, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// broken opens a repair that waits for the technician.
func broken(p *pool) schema.Repair {
	p.Helper()
	v := storetest.Available(p.T, p.store, 1, model, 8)
	ctx := p.Context()
	accs, err := p.store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	p.must(err)
	p.must(p.store.ReportFault(ctx, v.ID, schema.Fault{Accelerator: accs[2].ID, Source: "agent", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "gone", Dedupe: "d1", At: p.store.Now()}))
	faults, err := p.store.Faults(ctx, v.ID)
	p.must(err)
	_, err = p.store.Judge(ctx, faults[0].ID, store.Verdict{Rule: "xid-79", Action: schema.ActionRepair, Why: "gone"})
	p.must(err)
	r, _, err := p.store.OpenRepair(ctx, v.ID)
	p.must(err)
	state, err := p.store.RepairDrained(ctx, r.ID, store.Until{})
	if p.must(err); state != schema.RepairWaiting {
		p.Fatalf("it is %s", state)
	}
	return r
}

func TestAPhotoIsWhatItsBytesAreAndIsShownAsNothingElse(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	r := broken(p)
	tech, at := p.tokens[auth.Technician], "/v1/repairs/"+r.ID+"/photos"
	for kind, other := range map[string]string{"image/png": "image/jpeg", "image/jpeg": "image/webp"} {
		body := picture(t, kind, 3)
		sum := sha256.Sum256([]byte(body))
		id := hex.EncodeToString(sum[:])
		// What it is called does not count.
		ph := read[schema.RepairPhoto](t, p.send(tech, "POST", at+"?note=burnt", body, "Content-Type: "+other, "Idempotency-Key: k-"+kind), http.StatusCreated)
		if ph.ID != id || ph.Type != kind || ph.Width != 3 || ph.Height != 2 || ph.Bytes != int64(len(body)) || ph.By != "tech" || ph.Note != "burnt" || ph.Repair != r.ID {
			t.Fatalf("%s came back as %+v", kind, ph)
		}
		if again := read[schema.RepairPhoto](t, p.op("POST", at+"?note=other", body, "Content-Type: "+kind), http.StatusCreated); again != ph {
			t.Fatalf("the same picture again is %+v, not %+v", again, ph)
		}
		for who, status := range map[auth.Who]int{auth.Operator: 200, auth.Technician: 200, auth.Viewer: 200, auth.TenantAdmin: 403, auth.TenantMember: 403, auth.TenantViewer: 403} {
			a := p.send(p.tokens[who], "GET", at+"/"+id, "")
			if a.status != status || status != 200 && bytes.Contains(a.body, []byte(body)) {
				t.Fatalf("%s is answered %d", who, a.status)
			}
		}
		if a := p.send("", "GET", at+"/"+id, ""); a.status != http.StatusUnauthorized {
			t.Fatalf("anyone is answered %d", a.status)
		}
		a := p.send(tech, "GET", at+"/"+id, "")
		if string(a.body) != body {
			t.Fatal("its bytes are not those that were sent")
		}
		for name, want := range map[string]string{"Content-Type": kind, "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox",
			"Cache-Control": "private, no-cache", "Cross-Origin-Resource-Policy": "same-origin", "ETag": `"` + id + `"`} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if a := p.send(tech, "GET", at+"/"+id, "", `If-None-Match: "`+id+`"`); a.status != http.StatusNotModified || len(a.body) > 0 {
			t.Errorf("a browser that has it is answered %d", a.status)
		}
	}
	if l := read[contract.RepairPhotoList](t, p.send(tech, "GET", "/v1/repairs/"+r.Server+"/photos", ""), http.StatusOK); len(l.Items) != 2 {
		t.Fatalf("there are %d photos, want 2", len(l.Items))
	}
	list := read[contract.RepairPhotoList](t, p.send(tech, "GET", at, ""), http.StatusOK)
	wantProblem(t, p.send(tech, "DELETE", at+"/"+list.Items[0].ID, ""), schema.CodeForbidden, "")
	if a := p.op("DELETE", at+"/"+list.Items[0].ID, ""); a.status != http.StatusNoContent {
		t.Fatalf("an operator takes one away: %d %s", a.status, a.body)
	}
	wantProblem(t, p.op("GET", at+"/"+list.Items[0].ID, ""), schema.CodeNotFound, "")
}

func TestWhatIsNoPhotoIsRefusedByNameAndNotKept(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	r := broken(p)
	at := "/v1/repairs/" + r.ID + "/photos"
	huge := []byte(picture(t, "image/png", 3))
	copy(huge[16:24], "\x00\x01\x00\x00\x00\x01\x00\x00") // says that it is 65536 x 65536: its checksum is wrong too
	for name, c := range map[string]struct {
		kind, body, field string
		words             string
	}{
		"a page":                            {"image/png", "<html><script>alert(1)</script>", "photo", "not those of a picture"},
		"SVG":                               {"image/svg+xml", `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>`, "photo", "JPEG or PNG"},
		"a program":                         {"image/png", "\x7fELF\x02\x01\x01", "photo", "not those of a picture"},
		"the first bytes of a picture":      {"image/png", picture(t, "image/png", 3)[:12], "photo", "not those of a picture"},
		"a picture of a size that is a lie": {"image/png", string(huge), "photo", ""},
		"a picture in a form":               {"application/json", picture(t, "image/png", 3), "Content-Type", "image/jpeg"},
		"more than is taken":                {"image/png", picture(t, "image/png", 3) + strings.Repeat("\x00", schema.MaxPhotoBytes), "body", "16777216"},
	} {
		t.Run(name, func(t *testing.T) {
			wantProblem(t, p.op("POST", at, c.body, "Content-Type: "+c.kind), schema.CodeInvalid, c.field, c.words)
		})
	}
	wantProblem(t, p.op("POST", "/v1/repairs/rep_none/photos", picture(t, "image/png", 3), "Content-Type: image/png"), schema.CodeNotFound, "")
	if l := read[contract.RepairPhotoList](t, p.op("GET", at, ""), http.StatusOK); len(l.Items) != 0 {
		t.Fatalf("%d are kept", len(l.Items))
	}
	for i := range schema.MaxPhotosPerRepair {
		read[schema.RepairPhoto](t, p.op("POST", at, picture(t, "image/png", 3+i), "Content-Type: image/png"), http.StatusCreated)
	}
	wantProblem(t, p.op("POST", at, picture(t, "image/png", 1000), "Content-Type: image/png"), schema.CodeConflict, "", "20 photos")
}

func TestATechnicianSwitchesTheLightWhileTheRepairWaits(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	r := broken(p)
	at, tech := "/v1/repairs/"+r.ID, p.tokens[auth.Technician]
	wantProblem(t, p.send(tech, "GET", at+"/light", ""), schema.CodeNotFound, "")
	wantProblem(t, p.send(p.tokens[auth.Viewer], "POST", at+"/actions/light", `{"lit":true}`), schema.CodeForbidden, "")
	wantProblem(t, p.send(tech, "POST", at+"/actions/light", `{}`), schema.CodeInvalid, "lit")
	if l := read[contract.RepairLightAct](t, p.send(tech, "POST", at+"/actions/light", `{"lit":true}`), http.StatusAccepted); !l.Lit || l.By != "tech" {
		t.Fatalf("asked for: %+v", l)
	}
	acts, err := p.store.BMCActs(t.Context(), r.Server, 10)
	if p.must(err); len(acts) != 1 || acts[0].Verb != schema.BMCLight || !acts[0].Args.Lit {
		t.Fatalf("the BMC is asked for %+v", acts)
	}
	p.must(p.store.EndBMCAct(t.Context(), acts[0].ID, nil, nil, schema.Conflict("it has no light", "")))
	if l := read[contract.RepairLightAct](t, p.send(tech, "GET", at+"/light", ""), http.StatusOK); l.EndedAt == 0 || !strings.Contains(l.Failure, "it has no light") {
		t.Fatalf("what came of it: %+v", l)
	}
	p.must(p.store.RepairDone(t.Context(), r.ID, store.RepairWord{By: "tech"}, store.Until{}))
	wantProblem(t, p.send(tech, "POST", at+"/actions/light", `{"lit":true}`), schema.CodeConflict, "", "verifying")
}
