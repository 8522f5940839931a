package install

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"gpupool/activities/install/profiles"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

// UserData is the document that tells an installed system who it is and how to phone home. It is the agent's
// configuration, and is fetched once: it holds a secret.
type UserData struct {
	Server    string `json:"server"`
	Attempt   int    `json:"attempt"`
	APIURL    string `json:"api_url"`
	PhoneHome string `json:"phone_home_token"`
	Profile   string `json:"profile"`
	Hostname  string `json:"hostname"`
}

// Documents of every profile; see profiles for what a profile adds.
const (
	UserDataName = profiles.UserData
	MetaDataName = profiles.MetaData
)

// Installer answers the boot service for armed servers from the catalogue of install profiles: boot.Installer.
type Installer struct {
	Profiles profiles.Catalogue
	APIURL   string // where installed systems phone home to
	// Sanitise makes the order of a server that is armed to be sanitised.
	Sanitise func(ctx context.Context, server string) (schema.SanitiseOrder, error)
}

// Order is the document of a sanitise run.
func (i *Installer) Order(ctx context.Context, m boot.Machine) ([]byte, error) {
	if i.Sanitise == nil {
		return nil, boot.ErrNoSuch
	}
	o, err := i.Sanitise(ctx, m.ID)
	if err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

// render makes what an armed server is given by the profile and values that it was armed with.
func (i *Installer) render(m boot.Machine, base, files string) (profiles.Rendered, error) {
	if m.Armed == nil {
		return profiles.Rendered{}, schema.Stale("server " + m.Name + " is not armed")
	}
	get := func() (*profiles.Profile, error) { return i.Profiles.Get(m.Armed.Profile, m.Arch) }
	if m.Armed.Sanitise {
		get = func() (*profiles.Profile, error) { return i.Profiles.Sanitise(m.Arch) }
	}
	p, err := get()
	if err != nil {
		return profiles.Rendered{}, err
	}
	values, err := m.Armed.ProfileValues()
	if err != nil {
		return profiles.Rendered{}, err
	}
	if m.Armed.Sanitise { // of what was chosen for its install, what the machine itself needs
		maps.DeleteFunc(values, func(key, _ string) bool { _, known := p.Values[key]; return !known || key == profiles.SetupValue })
	}
	return p.Render(profiles.Context{Server: m.ID, Name: m.Name, Arch: m.Arch, MAC: "{{mac}}", Attempt: m.Armed.Attempt, Base: base, Files: files, API: i.APIURL}, profiles.FromText(values))
}

// Plan is what an armed server boots. Its URLs are left to the boot service, which knows the way by which it came.
func (i *Installer) Plan(_ context.Context, m boot.Machine) (boot.Plan, error) {
	r, err := i.render(m, "{{base}}", "{{files}}")
	return boot.Plan{Kernel: r.Kernel, Initrd: r.Initrd, Args: r.Args}, err
}

// InMemory reports whether the profile's system lives in memory.
func (i *Installer) InMemory(profile string) bool {
	p, err := i.Profiles.Find(profile)
	return err == nil && p.LivesIn == profiles.Memory
}

// Document makes the documents that an install fetches. Only agent.json holds a secret beyond the token that it was asked
// for with.
func (i *Installer) Document(ctx context.Context, r boot.DocumentRequest) (boot.Document, error) {
	if a := r.Machine.Armed; a != nil && a.Sanitise { // no identity, and no way to phone home
		if r.Name != schema.SanitiseName {
			return boot.Document{}, boot.ErrNoSuch
		}
		b, err := i.Order(ctx, r.Machine)
		return boot.Document{ContentType: "application/json", Body: b}, err
	}
	if r.Name == profiles.AgentConfig {
		return i.identity(ctx, r)
	}
	rendered, err := i.render(r.Machine, r.Base, r.Files)
	if err != nil {
		return boot.Document{}, err
	}
	if d, ok := rendered.Document(r.Name); ok {
		return boot.Document{ContentType: d.Type, Body: []byte(d.Body)}, nil
	}
	switch r.Name {
	case UserDataName:
		return i.identity(ctx, r)
	case MetaDataName:
		return boot.Document{ContentType: "text/plain", Body: fmt.Appendf(nil, "instance-id: %s-%d\nlocal-hostname: %s\n", r.Machine.ID, r.Attempt, r.Machine.Name)}, nil
	}
	return boot.Document{}, boot.ErrNoSuch
}

func (i *Installer) identity(ctx context.Context, r boot.DocumentRequest) (boot.Document, error) {
	token, err := r.PhoneHome(ctx)
	if err != nil {
		return boot.Document{}, err
	}
	profile := ""
	if r.Machine.Armed != nil {
		profile = cmp.Or(r.Machine.Armed.Profile, profiles.Default)
	}
	b, err := json.Marshal(UserData{Server: r.Machine.ID, Attempt: r.Attempt, APIURL: i.APIURL, PhoneHome: token, Profile: profile, Hostname: r.Machine.Name})
	return boot.Document{ContentType: "application/json", Body: b, Secret: true}, err
}
