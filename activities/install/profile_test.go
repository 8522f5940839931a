package install_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpupool/activities/install"
	"gpupool/activities/install/profiles"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

func TestAnArmedServerBootsItsProfileAndLearnsWhoItIsOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	for name, text := range map[string]string{
		"profile.yaml": "title: own\nkernel: own/{{.Arch}}/vmlinuz\nargs: x={{.Base}}/y size={{.Values.size}}\ndocuments: [{name: answers, template: a.txt}]\nvalues: {size: {type: integer, default: 7}}\n",
		"a.txt":        "{{.Name}} from {{.Files}}",
	} {
		if err := errors.Join(os.MkdirAll(own, 0o755), os.WriteFile(filepath.Join(own, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	all, err := profiles.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	i := &install.Installer{APIURL: "https://api:8443", Profiles: all}
	m := boot.Machine{ID: "srv_1", Name: "r1s1", Arch: "x86_64", Armed: &schema.Armed{Server: "srv_1", Attempt: 2, Profile: "own", Vals: `{"size": "9"}`}}
	p, err := i.Plan(t.Context(), m)
	if err != nil || p.Kernel != "own/x86_64/vmlinuz" || p.Args != "x={{base}}/y size=9" {
		t.Fatalf("it boots %+v, %v", p, err)
	}
	for what, armed := range map[string]schema.Armed{"an unknown profile": {Profile: "windows"}, "a value that it has not": {Profile: "own", Vals: `{"sise": "9"}`}, "a value of another kind": {Profile: "own", Vals: `{"size": "9 init=/bin/sh"}`}} {
		other := m
		other.Armed = &armed
		if _, err := i.Plan(t.Context(), other); !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	arm := m
	arm.Arch = "arm64"
	if _, err := i.Plan(t.Context(), arm); !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), "arm64") {
		t.Errorf("a profile for another architecture: %v", err)
	}
	minted := 0
	r := boot.DocumentRequest{Machine: m, Attempt: 2, Base: "http://b/b/T", Files: "http://b/files", PhoneHome: func(context.Context) (string, error) { minted++; return "tok", nil }}
	ask := func(name string) (boot.Document, error) { r.Name = name; return i.Document(t.Context(), r) }
	if d, err := ask("answers"); err != nil || d.Secret || string(d.Body) != "r1s1 from http://b/files" {
		t.Fatalf("the profile's document: %q secret %v, %v", d.Body, d.Secret, err)
	}
	if d, err := ask(profiles.AgentScript); err != nil || !strings.Contains(string(d.Body), "base='http://b/b/T'") || minted != 0 {
		t.Fatalf("the agent's script: %v, %d tokens minted", err, minted)
	}
	for n, name := range []string{install.UserDataName, profiles.AgentConfig} {
		d, err := ask(name)
		if err != nil || !d.Secret || minted != n+1 {
			t.Fatalf("%s: secret %v, minted %d, %v", name, d.Secret, minted, err)
		}
		var u install.UserData
		if err := json.Unmarshal(d.Body, &u); err != nil || u != (install.UserData{Server: "srv_1", Attempt: 2, APIURL: "https://api:8443", PhoneHome: "tok", Profile: "own", Hostname: "r1s1"}) {
			t.Fatalf("%s is %+v, %v", name, u, err)
		}
	}
	if d, err := ask(install.MetaDataName); err != nil || d.Secret {
		t.Fatalf("meta data: %+v %v", d, err)
	}
	if _, err := ask("passwd"); !errors.Is(err, boot.ErrNoSuch) {
		t.Fatalf("an unknown document: %v", err)
	}
}
