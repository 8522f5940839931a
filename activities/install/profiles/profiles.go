// Package profiles is the catalogue of install profiles: how an operating system gets onto a server. A profile is a
// folder with profile.yaml (what is booted, which documents there are, which values may be set) and the documents'
// templates; gpupool brings some, an operator's folder adds to them or takes the place of one by its name.
//
// Invariants: a template is rendered with values that were checked against the profile's own schema, so none of them
// can end a line, a quote or an argument; a template never sees the phone-home token, which is in one document only
// (agent.json), made by the caller and served once; a profile that can't be rendered is refused when it is loaded.
//
// Not here: who may boot (pxe/boot), tokens (bootstore), what the image writer does with its disk.
package profiles

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/goccy/go-yaml"

	"gpupool/activities/install/setups"
	"gpupool/schema"
)

//go:embed all:builtin
var builtin embed.FS

// Default is the profile of a server for which nothing else was chosen.
const Default = "image"

// Shared documents, which every profile has without naming them.
const (
	AgentScript = "agent.sh"   // puts the agent, its unit and its identity onto an installed system
	AgentConfig = "agent.json" // the agent's configuration: made by the caller, since it holds a secret
	UserData    = "user-data"  // the same under the name that the image writer asks for, unless the profile has its own
	MetaData    = "meta-data"  // cloud-init's NoCloud asks for it first
)

// Profile is one way of installing.
type Profile struct {
	Name  string   `yaml:"-"`
	Title string   `yaml:"title"`
	Help  string   `yaml:"help"` // what must lie in the boot files' folder for it
	Arch  []string `yaml:"arch"` // x86_64, arm64
	// Kernel, Initrd and Args are templates. Args may say {{.Base}} and so on; see Context.
	Kernel    string           `yaml:"kernel"`
	Initrd    []string         `yaml:"initrd"`
	Args      string           `yaml:"args"`
	Documents []Document       `yaml:"documents"`
	Values    map[string]Value `yaml:"values"`
	// LivesIn is where the system that it brings is kept; empty = Disk. One that lives in memory is given to its server at
	// each boot, for as long as the server is in the pool, and must leave the disks alone.
	LivesIn Place  `yaml:"lives_in"`
	Source  string `yaml:"-"` // "built in", or the folder that it was read from

	texts map[string]*template.Template // of Documents, by name
	boot  *template.Template            // kernel, initrds, args: one line each
}

// Place is where an installed system is kept.
type Place string

// The places.
const (
	Disk   Place = "disk"
	Memory Place = "memory"
)

// Document is one file that an installer fetches.
type Document struct {
	Name     string `yaml:"name"`     // as it is asked for
	Template string `yaml:"template"` // file in the profile's folder
	Type     string `yaml:"type"`     // content type; empty = text/plain
}

// Context is what a template may say.
type Context struct {
	Server  string // id
	Name    string // host name
	Arch    string // x86_64, arm64
	MAC     string // of the interface that it boots from
	Attempt int
	Base    string // the attempt's own URL, with its boot token in it
	Files   string // the public boot files' URL
	API     string // where the agent phones home
	// Values are those of the profile, checked, with its defaults filled in.
	Values map[string]any
}

// DebArch is Debian's word for the architecture.
func (c Context) DebArch() string {
	if c.Arch == "arm64" {
		return "arm64"
	}
	return "amd64"
}

// Catalogue is the profiles by name.
type Catalogue map[string]*Profile

// SetupValue is a value that every profile has: the setup by which the installed server gets its driver and its container
// runtime. SetupsFolder is where an operator's own setups are, beneath the folder of profiles.
const (
	SetupValue   = "setup"
	SetupsFolder = "setups"
)

// SetupsIn is where the setups of a folder of profiles are; "" = none.
func SetupsIn(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, SetupsFolder)
}

// Load reads what gpupool brings and then the folders beneath dir ("" = none), which go before it.
func Load(dir string) (Catalogue, error) {
	c, err := load(dir)
	if err != nil {
		return nil, err
	}
	known, err := setups.Load(SetupsIn(dir))
	if err != nil {
		return nil, err
	}
	for name, p := range c {
		if _, own := p.Values[SetupValue]; own {
			return nil, fmt.Errorf("install profile %s (%s): profile.yaml: values: %s: every profile has it: choose another name", name, p.Source, SetupValue)
		}
		if p.Values == nil {
			p.Values = map[string]Value{}
		}
		p.Values[SetupValue] = Value{Type: TypeChoice, Default: setups.Default, Options: known.Names(), Help: "How the installed server gets its driver and its container runtime"}
	}
	return c, nil
}

func load(dir string) (Catalogue, error) {
	c := Catalogue{}
	sub, err := fs.Sub(builtin, "builtin")
	if err != nil {
		return nil, err
	}
	if err := c.read(sub, "built in"); err != nil {
		return nil, err
	}
	if dir != "" {
		if err := c.read(os.DirFS(dir), dir); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c Catalogue) read(from fs.FS, source string) error {
	found, err := fs.ReadDir(from, ".")
	if err != nil {
		return fmt.Errorf("install profiles: %w", err)
	}
	for _, e := range found {
		if !e.IsDir() || e.Name() == "shared" || e.Name() == SetupsFolder || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		p, err := readProfile(from, e.Name())
		if err != nil {
			return fmt.Errorf("install profile %s (%s): %w", e.Name(), source, err)
		}
		p.Source = source
		c[p.Name] = p
	}
	return nil
}

var funcs = template.FuncMap{
	"sh":   shellQuote,
	"yaml": yamlQuote,
	"join": func(sep string, list []string) string { return strings.Join(list, sep) },
	// The parts of a URL, and a disk's name, as installers ask for them.
	"protocol": func(u string) string { p, _, _ := strings.Cut(u, "://"); return p },
	"host":     func(u string) string { _, h, _ := strings.Cut(u, "://"); h, _, _ = strings.Cut(h, "/"); return h },
	"directory": func(u string) string {
		_, h, _ := strings.Cut(u, "://")
		_, d, _ := strings.Cut(h, "/")
		return "/" + d
	},
	"diskName": func(d string) string { return strings.TrimPrefix(d, "/dev/") },
}

func readProfile(from fs.FS, name string) (*Profile, error) {
	b, err := fs.ReadFile(from, path.Join(name, "profile.yaml"))
	if err != nil {
		return nil, err
	}
	p := &Profile{Name: name, texts: map[string]*template.Template{}}
	if err := yaml.UnmarshalWithOptions(b, p, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("profile.yaml: %w", err)
	}
	if len(p.Arch) == 0 {
		p.Arch = []string{"x86_64"}
	}
	if p.LivesIn = cmp.Or(p.LivesIn, Disk); p.LivesIn != Disk && p.LivesIn != Memory {
		return nil, fmt.Errorf("profile.yaml: lives_in: %q: want disk or memory", p.LivesIn)
	}
	for key, v := range p.Values {
		if v, err = v.resolve(); err != nil {
			return nil, fmt.Errorf("profile.yaml: values: %s: %w", key, err)
		}
		p.Values[key] = v
	}
	boot := strings.Join(append([]string{p.Kernel, p.Args}, p.Initrd...), "\n")
	if p.boot, err = parse("profile.yaml", boot); err != nil {
		return nil, err
	}
	shared, err := builtin.ReadFile("builtin/shared/" + AgentScript)
	if err != nil {
		return nil, err
	}
	if p.texts[AgentScript], err = parse(AgentScript, string(shared)); err != nil {
		return nil, err
	}
	for _, d := range p.Documents {
		if d.Name == "" || strings.ContainsAny(d.Name, "/\\ \n") || d.Name == AgentConfig || d.Name == AgentScript {
			return nil, fmt.Errorf("profile.yaml: documents: name: %q: want a file's name, other than %s and %s", d.Name, AgentConfig, AgentScript)
		}
		text, err := fs.ReadFile(from, path.Join(name, d.Template))
		if err != nil {
			return nil, fmt.Errorf("profile.yaml: documents: %s: %w", d.Name, err)
		}
		if p.texts[d.Name], err = parse(d.Template, string(text)); err != nil {
			return nil, err
		}
	}
	for _, arch := range p.Arch { // a name that a template has wrong is told now, not to a server that waits
		if _, err := p.Render(Context{Server: "srv_x", Name: "x", Arch: arch, MAC: "x", Base: "http://x/b/x", Files: "http://x/files", API: "https://x", Attempt: 1}, nil); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func parse(name, text string) (*template.Template, error) {
	return template.New(name).Funcs(funcs).Option("missingkey=error").Parse(text)
}

// Rendered is what a server boots and fetches.
type Rendered struct {
	Kernel    string
	Initrd    []string
	Args      string
	Documents []RenderedDocument // in the profile's order, the shared ones last
}

// RenderedDocument is one document with its content.
type RenderedDocument struct {
	Name, Type, Body string
}

// Document finds one by its name.
func (r Rendered) Document(name string) (RenderedDocument, bool) {
	i := slices.IndexFunc(r.Documents, func(d RenderedDocument) bool { return d.Name == name })
	if i < 0 {
		return RenderedDocument{}, false
	}
	return r.Documents[i], true
}

// Find finds a profile by its name; empty is the default one.
func (c Catalogue) Find(name string) (*Profile, error) {
	p, ok := c[cmp.Or(name, Default)]
	if !ok || name == schema.SanitiseName {
		return nil, schema.Invalid("profile", name, "one of "+strings.Join(c.Names(), ", "))
	}
	return p, nil
}

// Names are those of the profiles that install something. The one that empties a server is not chosen: see Sanitise.
func (c Catalogue) Names() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c)), func(n string) bool { return n == schema.SanitiseName })
}

// Sanitise is the profile that boots a sanitise run.
func (c Catalogue) Sanitise(arch string) (*Profile, error) {
	p, ok := c[schema.SanitiseName]
	if !ok || !slices.Contains(p.Arch, arch) {
		return nil, schema.Invalid("arch", arch, "one that a sanitise run can be booted on")
	}
	return p, nil
}

// Get finds a profile for an architecture.
func (c Catalogue) Get(name, arch string) (*Profile, error) {
	p, err := c.Find(name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(p.Arch, arch) {
		return nil, schema.Invalid("profile", name, "a profile for "+arch+"; this one is for "+strings.Join(p.Arch, ", "))
	}
	return p, nil
}

// Check holds values against the profile's schema and returns them with the defaults filled in. An error names the field.
func (p *Profile) Check(values map[string]any) (map[string]any, error) {
	out := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(p.Values)) {
		v := p.Values[key]
		given, ok := values[key]
		if !ok {
			given = v.Default
		}
		checked, err := v.check("values."+key, given)
		if err != nil {
			return nil, err
		}
		out[key] = checked
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if _, ok := p.Values[key]; !ok {
			hint := "profile " + p.Name + " has no values"
			if len(p.Values) > 0 {
				hint = "profile " + p.Name + " has " + strings.Join(slices.Sorted(maps.Keys(p.Values)), ", ")
			}
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: "values." + key, Message: "there is no such value", Hint: hint}
		}
	}
	return out, nil
}

// Render makes everything that a server is given but agent.json and meta-data. Values are checked first.
func (p *Profile) Render(c Context, values map[string]any) (Rendered, error) {
	var err error
	if c.Values, err = p.Check(values); err != nil {
		return Rendered{}, err
	}
	var b bytes.Buffer
	if err := p.boot.Execute(&b, c); err != nil {
		return Rendered{}, err
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 2+len(p.Initrd) {
		return Rendered{}, fmt.Errorf("kernel, initrd or args have a line break in them: a boot loader would read it as a command")
	}
	r := Rendered{Kernel: lines[0], Args: strings.Join(strings.Fields(lines[1]), " "), Initrd: lines[2:]}
	for _, d := range append(slices.Clone(p.Documents), Document{Name: AgentScript, Type: "text/x-shellscript"}) {
		b.Reset()
		if err := p.texts[d.Name].Execute(&b, c); err != nil {
			return Rendered{}, err
		}
		r.Documents = append(r.Documents, RenderedDocument{Name: d.Name, Type: cmp.Or(d.Type, "text/plain"), Body: b.String()})
	}
	return r, nil
}
