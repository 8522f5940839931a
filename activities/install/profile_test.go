package install_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"gpupool/activities/install"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

func TestAnArmedServerBootsItsProfileAndLearnsWhoItIsOnce(t *testing.T) {
	t.Parallel()
	i := &install.Installer{APIURL: "https://api:8443", Profiles: map[string]install.Profile{
		"ubuntu":       {Kernel: "ubuntu/vmlinuz", Args: "autoinstall ds=nocloud;s={{base}}/"},
		"ubuntu/arm64": {Kernel: "ubuntu-arm64/vmlinuz"},
	}}
	m := boot.Machine{ID: "srv_1", Name: "r1s1", Arch: "x86_64", Armed: &schema.Armed{Server: "srv_1", Attempt: 2, Profile: "ubuntu"}}
	plan := func() boot.Plan {
		t.Helper()
		p, err := i.Plan(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := plan(); p.Kernel != "ubuntu/vmlinuz" || p.Args != "autoinstall ds=nocloud;s={{base}}/" {
		t.Fatalf("x86-64 boots %+v", p)
	}
	m.Arch = "arm64"
	if p := plan(); p.Kernel != "ubuntu-arm64/vmlinuz" || p.Args != "gpupool.user_data={{base}}/user-data" {
		t.Fatalf("arm64 boots %+v", p)
	}
	m.Armed.Profile = "windows"
	if _, err := i.Plan(t.Context(), m); !schema.Is(err, schema.CodeInvalid) {
		t.Fatalf("an unknown profile: %v", err)
	}
	minted := 0
	r := boot.DocumentRequest{Machine: m, Attempt: 2, Name: install.UserDataName, PhoneHome: func(context.Context) (string, error) { minted++; return "tok", nil }}
	d, err := i.Document(t.Context(), r)
	if err != nil || !d.Secret || minted != 1 {
		t.Fatalf("user data: secret %v, minted %d, %v", d.Secret, minted, err)
	}
	var u install.UserData
	if err := json.Unmarshal(d.Body, &u); err != nil || u != (install.UserData{Server: "srv_1", Attempt: 2, APIURL: "https://api:8443", PhoneHome: "tok", Profile: "windows", Hostname: "r1s1"}) {
		t.Fatalf("user data is %+v, %v", u, err)
	}
	r.Name = install.MetaDataName
	if d, err := i.Document(t.Context(), r); err != nil || d.Secret || minted != 1 {
		t.Fatalf("meta data: %+v %v", d, err)
	}
	r.Name = "passwd"
	if _, err := i.Document(t.Context(), r); !errors.Is(err, boot.ErrNoSuch) {
		t.Fatalf("an unknown document: %v", err)
	}
}
