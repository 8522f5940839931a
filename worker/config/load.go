package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// envPrefix begins the environment's names of settings.
const envPrefix = "GPUPOOL_"

// FileEnv names the configuration file where no flag does.
const FileEnv = envPrefix + "CONFIG"

// Source is where a configuration comes from.
type Source struct {
	// File is the YAML file's path. Empty: what FileEnv names; none if that is empty too.
	File string
	// Environ is the environment, as os.Environ gives it.
	Environ []string
	// Set are "path=value" from the command line, as api.listen=:8443; later ones win.
	Set []string
}

// Load reads the file, then the environment, then the command line, fills in what was left out
// and validates. Its error reports everything wrong at once.
func Load(s Source) (*Config, error) {
	var c Config
	if s.File == "" {
		s.File = lookup(s.Environ, FileEnv)
	}
	if s.File != "" {
		if err := c.readFile(s.File); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(c.readEnvironment(s.Environ), c.readSet(s.Set)); err != nil {
		return nil, err
	}
	if err := c.fill(s.Environ); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &c, nil
}

func (c *Config) readFile(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	err = yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(c)
	if err == nil || errors.Is(err, io.EOF) { // an empty file sets nothing
		return nil
	}
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) && unknown.Token != nil {
		return fmt.Errorf("configuration %s:%d: %w", path, unknown.Token.Position.Line, unknownSetting(unknown.Token.Value, lastParts()))
	}
	return fmt.Errorf("configuration %s:%s", path, strings.TrimPrefix(yaml.FormatError(err, false, true), " "))
}

// lastParts are the names a key of the file can have, without their sections.
func lastParts() []string {
	var names []string
	for _, s := range Settings() {
		names = append(names, strings.Split(s.Path, ".")...)
	}
	return append(names, "cidr", "range", "relays", "interface", "router", "dns", "ntp", "domain", "mtu",
		"name", "kind", "owner", "api_version", "token_file", "jwt_key_file", "user", "conf", "bin_dir", "partition", "account", "log_dir", "kubeconfig", "context", "image")
}

func unknownSetting(name string, known []string) error {
	if n := nearest(name, known); n != "" {
		return fmt.Errorf("there is no setting %q; did you mean %q?", name, n)
	}
	return fmt.Errorf("there is no setting %q (hint: 'gpupool config reference' lists them)", name)
}

// readEnvironment takes GPUPOOL_API_LISTEN for api.listen and so on. The prefix is shared with the
// command line's own variables (GPUPOOL_URL, GPUPOOL_TOKEN), so only a name that begins as a
// setting's section does is called unknown.
func (c *Config) readEnvironment(environ []string) error {
	byEnv, sections, names := map[string]Setting{}, map[string]bool{}, []string{}
	for _, s := range settings(c) {
		byEnv[s.Env] = s
		names = append(names, s.Env)
		if section, _, nested := strings.Cut(s.Path, "."); nested {
			sections[envPrefix+strings.ToUpper(section)+"_"] = true
		}
	}
	var errs []error
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || name == FileEnv || value == "" { // set to nothing is not set
			continue
		}
		s, ok := byEnv[name]
		if ok {
			if err := s.set(value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
			}
			continue
		}
		for section := range sections {
			if strings.HasPrefix(name, section) {
				errs = append(errs, fmt.Errorf("environment: %w", unknownSetting(name, names)))
			}
		}
	}
	return errors.Join(errs...)
}

func (c *Config) readSet(pairs []string) error {
	byPath, paths := map[string]Setting{}, []string{}
	for _, s := range settings(c) {
		byPath[s.Path] = s
		paths = append(paths, s.Path)
	}
	var errs []error
	for _, pair := range pairs {
		path, value, ok := strings.Cut(pair, "=")
		s, known := byPath[path]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("--set %s: must be path=value, as in api.listen=:8443", pair))
		case !known:
			errs = append(errs, fmt.Errorf("--set: %w", unknownSetting(path, paths)))
		default:
			if err := s.set(value); err != nil {
				errs = append(errs, fmt.Errorf("--set: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

func lookup(environ []string, name string) string {
	i := slices.IndexFunc(environ, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	if i < 0 {
		return ""
	}
	return environ[i][len(name)+1:]
}

// dataDir is the folder of a process that was given none.
func dataDir(environ []string) (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/gpupool", nil
	}
	if d := lookup(environ, "XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "gpupool"), nil
	}
	if home := lookup(environ, "HOME"); home != "" {
		return filepath.Join(home, ".local", "share", "gpupool"), nil
	}
	return "", &FieldError{Field: "data_dir", Value: "", Want: "set where neither XDG_DATA_HOME nor HOME is"}
}
