package install

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

// Profile is how an operating system gets on the disk: what is booted, for one architecture.
type Profile struct {
	Kernel string   `json:"kernel"` // beneath the boot files' folder
	Initrd []string `json:"initrd"`
	// Args is the kernel's command line; see boot.Plan for what it may refer to. Where it doesn't name the user data
	// itself, `gpupool.user_data={{base}}/user-data` is added.
	Args string `json:"args"`
}

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

// Documents of every profile.
const (
	UserDataName = "user-data"
	MetaDataName = "meta-data" // cloud-init's NoCloud asks for it first, and takes an instance id from it
)

// Installer answers the boot service for armed servers from profiles: boot.Installer.
type Installer struct {
	Profiles map[string]Profile // by name; "name/arch" goes before "name"
	APIURL   string             // where installed systems phone home to
}

// Image is the profile that a server has where none is named: the boot files' own image writer.
var Image = Profile{Kernel: "image/vmlinuz", Initrd: []string{"image/initrd.img"}, Args: "console=tty0 console=ttyS0,115200 gpupool.image={{files}}/image/image.json gpupool.mac={{mac}}"}

// Plan is what an armed server boots.
func (i *Installer) Plan(_ context.Context, m boot.Machine) (boot.Plan, error) {
	if m.Armed == nil {
		return boot.Plan{}, schema.Stale("server " + m.Name + " is not armed")
	}
	p, ok := i.Profiles[m.Armed.Profile+"/"+m.Arch]
	if !ok {
		p, ok = i.Profiles[m.Armed.Profile]
	}
	if !ok && m.Armed.Profile == "image" {
		p, ok = Image, true
	}
	if !ok {
		return boot.Plan{}, schema.Invalid("profile", m.Armed.Profile, "one of "+strings.Join(slices.Sorted(maps.Keys(i.Profiles)), ", ")+", image")
	}
	args := p.Args
	if !strings.Contains(args, "{{base}}") {
		args = strings.TrimSpace(args + " gpupool.user_data={{base}}/" + UserDataName)
	}
	return boot.Plan{Kernel: p.Kernel, Initrd: p.Initrd, Args: args}, nil
}

// Document makes the documents that an install fetches.
func (i *Installer) Document(ctx context.Context, r boot.DocumentRequest) (boot.Document, error) {
	switch r.Name {
	case MetaDataName:
		return boot.Document{ContentType: "text/plain", Body: fmt.Appendf(nil, "instance-id: %s-%d\nlocal-hostname: %s\n", r.Machine.ID, r.Attempt, r.Machine.Name)}, nil
	case UserDataName:
		token, err := r.PhoneHome(ctx)
		if err != nil {
			return boot.Document{}, err
		}
		profile := ""
		if r.Machine.Armed != nil {
			profile = r.Machine.Armed.Profile
		}
		b, err := json.Marshal(UserData{Server: r.Machine.ID, Attempt: r.Attempt, APIURL: i.APIURL, PhoneHome: token, Profile: profile, Hostname: r.Machine.Name})
		return boot.Document{ContentType: "application/json", Body: b, Secret: true}, err
	}
	return boot.Document{}, boot.ErrNoSuch
}
