package store_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

func TestJobsMountVolumesAndNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	_, err := b.CreateTenant(t.Context(), "test", "red", 100)
	b.must(err)
	for field, bad := range map[string]store.NewVolume{
		"name": {Path: "/data"}, "path": {Name: "a", Path: "/data/../etc"}, "claim": {Name: "a", Claim: "a/b"}, "user_id": {Name: "a", Path: "/data", Writable: true},
	} {
		if e := invalid(t, second(b.CreateVolume(t.Context(), "test", bad))); e.Field != field {
			t.Errorf("%+v is refused for its %s, not its %s", bad, e.Field, field)
		}
	}
	if e := invalid(t, second(b.CreateVolume(t.Context(), "test", store.NewVolume{Name: "a", Path: "/data", User: 12}))); e.Field != "user_id" {
		t.Error(e)
	}
	for _, v := range []store.NewVolume{
		{Name: "sets", Path: "/mnt/sets", Claim: "sets"}, {Name: "blue", Path: "/mnt/blue", Tenant: "blue", Writable: true, User: 20001},
		{Name: "red", Path: "/mnt/red", Tenant: "red"}, {Name: "other", Path: "/mnt/other", User: 20002}, {Name: "claimed", Claim: "models"},
	} {
		_, err := b.CreateVolume(t.Context(), "test", v)
		b.must(err)
	}
	submit := func(mounts ...schema.Mount) (schema.Job, error) {
		j, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}, Mounts: mounts})
		return j, err
	}
	for what, c := range map[string]struct {
		mounts []schema.Mount
		field  string
		says   string
	}{
		"no such volume":             {[]schema.Mount{{Volume: "nope", Target: "/data"}}, "mounts[0].volume", "blue, claimed, other, sets"},
		"another tenant's":           {[]schema.Mount{{Volume: "red", Target: "/data"}}, "mounts[0].volume", "may mount"},
		"a path that climbs out":     {[]schema.Mount{{Volume: "sets", Path: "../red", Target: "/data"}}, "mounts[0].path", "relative"},
		"an absolute path":           {[]schema.Mount{{Volume: "sets", Path: "/etc", Target: "/data"}}, "mounts[0].path", "relative"},
		"a target over the system":   {[]schema.Mount{{Volume: "sets", Target: "/usr/lib"}}, "mounts[0].target", "/usr"},
		"a target in another":        {[]schema.Mount{{Volume: "sets", Target: "/data"}, {Volume: "blue", Target: "/data/x"}}, "mounts[1].target", "/data"},
		"writing where none may":     {[]schema.Mount{{Volume: "sets", Target: "/data", Write: true}}, "mounts[0].write", "for reading"},
		"files of two users":         {[]schema.Mount{{Volume: "blue", Target: "/a"}, {Volume: "other", Target: "/b"}}, "mounts[1].volume", "two users"},
		"a target that is no path":   {[]schema.Mount{{Volume: "sets", Target: "data"}}, "mounts[0].target", "absolute"},
		"a target with a line's end": {[]schema.Mount{{Volume: "sets", Target: "/da\nta"}}, "mounts[0].target", "absolute"},
		"the root":                   {[]schema.Mount{{Volume: "sets", Target: "/"}}, "mounts[0].target", "below the root"},
	} {
		_, err := submit(c.mounts...)
		if e := invalid(t, err); e.Field != c.field || !strings.Contains(e.Error(), c.says) {
			t.Errorf("%s: %s: %v", what, e.Field, e)
		}
	}
	j, err := submit(schema.Mount{Volume: "sets", Path: "set7", Target: "/data"}, schema.Mount{Volume: "blue", Target: "/mnt/blue", Write: true})
	b.must(err)
	if want := schema.CanFolder | schema.CanPlace; j.Needs != want {
		t.Errorf("it needs %v, not %v", j.Needs.Words(), want.Words())
	}
	if no := b.commit(b.start(j, b.place(0, 0))); len(no) > 0 {
		t.Fatal(no)
	}
	b.must(b.DispatchAttempt(t.Context(), j.ID, 1))
	task, err := b.Task(t.Context(), store.RunTaskID(j.ID, 1, 0))
	b.must(err)
	var run agentproto.Run
	b.must(json.Unmarshal([]byte(task.Payload), &run))
	if len(run.Mounts) != 2 || run.User != 20001 || strings.Join(run.Allow, " ") != "/mnt/sets /mnt/blue" {
		t.Fatalf("its server is told %+v", run)
	}
	if m := run.Mounts[0]; m.Source != "/mnt/sets/set7" || m.Target != "/data" || !m.ReadOnly || m.Claim != "sets" || m.Folder != "set7" {
		t.Errorf("its server is told of %+v", m)
	}
	if m := run.Mounts[1]; m.Source != "/mnt/blue" || m.ReadOnly {
		t.Errorf("its server is told of %+v", m)
	}
	// What a live job mounts stays; and what nobody here can show is not started here.
	if err := b.DeleteVolume(t.Context(), "test", "sets"); !schema.Is(err, schema.CodeConflict) || !strings.Contains(err.Error(), j.ID) {
		t.Errorf("a volume in use: %v", err)
	}
	b.must(b.DeleteVolume(t.Context(), "test", "other"))
	k, err := submit(schema.Mount{Volume: "claimed", Target: "/models"})
	b.must(err)
	if no := b.commit(b.start(k, b.place(0, 2))); len(no) != 1 || !strings.Contains(no[0].Why, "volumes that are claims") {
		t.Errorf("a claim on a server of its own: %v", no)
	}
	all, err := b.Volumes(t.Context(), "red")
	b.must(err)
	for _, v := range all {
		if v.Tenant == "blue" {
			t.Errorf("red is shown %s", v.Name)
		}
	}
}

func TestWhatBackendsCanDo(t *testing.T) {
	t.Parallel()
	all := schema.CanServe | schema.CanImage | schema.CanLoopback | schema.CanFolder | schema.CanPlace | schema.CanClaim
	for what, c := range map[string]struct {
		server schema.Server
		can    schema.Ability
		lacks  schema.Ability
	}{
		"a server of its own":                       {schema.Server{Backend: "node"}, 0, schema.CanClaim},
		"one that does not keep jobs apart":         {schema.Server{Backend: "node", Shared: "not root"}, 0, all &^ schema.CanServe},
		"a Slurm node":                              {schema.Server{Backend: "slurm"}, 0, all &^ schema.CanFolder},
		"a Slurm node of a cluster with containers": {schema.Server{Backend: "slurm"}, schema.CanImage, all &^ schema.CanFolder &^ schema.CanImage},
		"a Kubernetes node":                         {schema.Server{Backend: "kubernetes"}, 0, schema.CanLoopback},
	} {
		if got := c.server.Lacks(c.can); got != c.lacks {
			t.Errorf("%s lacks %v, not %v", what, got.Words(), c.lacks.Words())
		}
	}
}

func second[A any](_ A, err error) error { return err }

func invalid(t *testing.T, err error) *schema.Error {
	t.Helper()
	var e *schema.Error
	if !errors.As(err, &e) || e.Code != schema.CodeInvalid {
		t.Fatalf("%v is no refusal of a field", err)
	}
	return e
}
