package worker

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"gpupool/activities/install/profiles"
	"gpupool/api"
	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// TestAnInstallIsChosenByServerRackOrModelAndCanBeSeenBeforehand drives the choices through the API, and arms the server to
// see that it boots what the preview said.
func TestAnInstallIsChosenByServerRackOrModelAndCanBeSeenBeforehand(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	ring, err := secret.LoadOrCreate(filepath.Join(t.TempDir(), "keys"))
	must(t, err)
	catalogue, err := profiles.Load("")
	must(t, err)
	s, err := api.New(api.Config{Store: db, Ring: ring, Installs: installs{catalogue, "https://pool"}})
	must(t, err)
	t.Cleanup(s.Close)
	token, err := db.EnsureFirstToken(ctx)
	must(t, err)
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(srv.Close)
	c, err := client.NewClient(srv.URL, client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+token)
		return nil
	}))
	must(t, err)
	servers, err := db.EnrollServers(ctx, "ann", ring, []store.NewServer{{Name: "r1s1", Region: "eu", Site: "ams1", Rack: "r1", Serial: "S1", MACs: []string{"0c:42:a1:00:00:01"}, BMCAddress: "https://10.0.0.1", BMCUsername: "u", BMCPassword: "p",
		Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 8, MemoryBytes: 1 << 40}})
	must(t, err)
	v := servers[0]

	set := func(scope schema.InstallScope, name, profile string, values map[string]string) error {
		_, err := call.Do[contract.InstallChoice](c.SetInstallChoice(ctx, contract.NewInstallChoice{Scope: scope, Name: name, Profile: profile, Values: values}))
		return err
	}
	preview := func(in contract.PreviewOptions) contract.InstallPreview {
		t.Helper()
		p, err := call.Do[contract.InstallPreview](c.PreviewInstall(ctx, "r1s1", in))
		must(t, err)
		return p
	}
	chosen := func(profile, chosenFor, words string) {
		t.Helper()
		p := preview(contract.PreviewOptions{})
		all := p.Kernel + " " + p.Args
		for _, d := range p.Documents {
			all += d.Body
		}
		if p.Profile != profile || p.ChosenFor != chosenFor || !strings.Contains(all, words) {
			t.Errorf("it would be installed with %s for its %s, want %s for %s with %q", p.Profile, p.ChosenFor, profile, chosenFor, words)
		}
	}
	chosen("image", "default", "image/x86_64/vmlinuz")
	must(t, set(schema.InstallModel, v.Model, "rhel-kickstart", map[string]string{"selinux": "permissive"}))
	chosen("rhel-kickstart", "model", "selinux --permissive")
	must(t, set(schema.InstallRack, "ams1/r1", "ubuntu-autoinstall", nil))
	chosen("ubuntu-autoinstall", "rack", "autoinstall:")
	must(t, set(schema.InstallServer, "r1s1", "debian-preseed", map[string]string{"disk": "/dev/nvme0n1"}))
	chosen("debian-preseed", "server", "partman-auto/disk string /dev/nvme0n1")
	if p := preview(contract.PreviewOptions{Profile: "live"}); p.Profile != "live" || p.ChosenFor != "preview" {
		t.Errorf("a preview of another profile is %+v", p)
	}
	for what, err := range map[string]error{
		"a profile that there is not": set(schema.InstallServer, "r1s1", "windows", nil),
		"a value that it has not":     set(schema.InstallServer, "r1s1", "debian-preseed", map[string]string{"disc": "x"}),
		"a rack without its site":     set(schema.InstallRack, "r1", "image", nil),
	} {
		if !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := set(schema.InstallServer, "r9s9", "image", nil); !schema.Is(err, schema.CodeNotFound) {
		t.Errorf("a server that there is not: %v", err)
	}

	// What is armed keeps what it was armed with.
	v, err = db.BeginOnboarding(ctx, v.ID, "ann")
	must(t, err)
	must(t, db.Arm(ctx, v.ID, v.Attempt, 1e12, 0))
	must(t, call.Check(c.RemoveInstallChoice(ctx, &contract.RemoveInstallChoiceParams{Scope: schema.InstallServer, Name: "r1s1"})))
	armed, ok, err := db.Armed(ctx, v.ID)
	if err != nil || !ok || armed.Profile != "debian-preseed" || !strings.Contains(armed.Vals, "/dev/nvme0n1") {
		t.Fatalf("it is armed with %+v, %v", armed, err)
	}
	chosen("ubuntu-autoinstall", "rack", "autoinstall:")
	l, err := call.Do[contract.InstallChoiceList](c.ListInstallChoices(ctx))
	if err != nil || len(l.Items) != 2 || l.Items[0].Scope != schema.InstallModel || l.Items[0].Values["selinux"] != "permissive" {
		t.Fatalf("the choices are %+v, %v", l.Items, err)
	}
	known, err := call.Do[contract.InstallProfileList](c.ListInstallProfiles(ctx))
	if err != nil || len(known.Items) != len(catalogue.Names()) {
		t.Fatalf("%d profiles are listed, %v", len(known.Items), err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
