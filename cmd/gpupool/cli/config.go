package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"gpupool/schema"
)

// Profile is how one pool is reached.
type Profile struct {
	URL   string `yaml:"url"`
	Token string `yaml:"token"`
	CA    string `yaml:"ca,omitempty"` // PEM file of the authority that signed the API's certificate; empty = the system's
}

// profiles is the configuration file: ~/.config/gpupool/config.yaml, readable by its owner only since it holds tokens.
type profiles struct {
	Current  string             `yaml:"current"`
	Profiles map[string]Profile `yaml:"profiles"`
}

const defaultURL = "http://127.0.0.1:8080"

// configPath is GPUPOOL_CLIENT_CONFIG, else config.yaml in gpupool's folder of the user's configuration folder.
func configPath() (string, error) {
	if p := os.Getenv("GPUPOOL_CLIENT_CONFIG"); p != "" {
		return p, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where is the configuration kept? %w", err)
	}
	return filepath.Join(dir, "gpupool", "config.yaml"), nil
}

// loadProfiles reads the file strictly; a file that isn't there is an empty one.
func loadProfiles(path string) (profiles, error) {
	p := profiles{Profiles: map[string]Profile{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	if err := yaml.UnmarshalWithOptions(b, &p, yaml.Strict()); err != nil {
		return p, &schema.Error{Code: schema.CodeInvalid, Field: path, Message: "can't be read: " + yaml.FormatError(err, false, false), Hint: "expected: current, and profiles with url, token, ca"}
	}
	if p.Profiles == nil {
		p.Profiles = map[string]Profile{}
	}
	return p, nil
}

// save writes the file whole or not at all, readable by its owner only.
func (p profiles) save(path string) error {
	b, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".config-*") // made with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(b); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// resolve picks where to go and as whom: the --url flag, then the environment, then the named or current profile.
// A profile's token and authority are only used for that profile's address.
func resolve(urlFlag, name string) (Profile, error) {
	path, err := configPath()
	if err != nil {
		return Profile{}, err
	}
	file, err := loadProfiles(path)
	if err != nil {
		return Profile{}, err
	}
	name = cmp.Or(name, os.Getenv("GPUPOOL_PROFILE"))
	kept, ok := file.Profiles[cmp.Or(name, file.Current)]
	if name != "" && !ok {
		return Profile{}, schema.Invalid("profile", name, "one of: "+strings.Join(profileNames(file.Profiles), ", ")+"; gpupool login --profile "+name+" adds it")
	}
	p := Profile{URL: cmp.Or(urlFlag, os.Getenv("GPUPOOL_URL"), kept.URL, defaultURL)}
	p.URL = strings.TrimRight(p.URL, "/")
	if p.URL != kept.URL {
		kept = Profile{}
	}
	p.Token = cmp.Or(os.Getenv("GPUPOOL_TOKEN"), kept.Token)
	p.CA = cmp.Or(os.Getenv("GPUPOOL_CA"), kept.CA)
	return p, checkURL(p.URL)
}

// checkURL refuses an address that is no http(s) URL, and one that would carry the token in clear over a network.
func checkURL(s string) error {
	u, ok := schema.ParseURL(s)
	if !ok {
		return schema.Invalid("url", s, "https://host[:port], or http://127.0.0.1:port on this machine")
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) && os.Getenv("GPUPOOL_INSECURE") == "" {
		return schema.Invalid("url", s, "https; the token would cross the network in clear (GPUPOOL_INSECURE=1 allows it)")
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func profileNames(m map[string]Profile) []string {
	out := make([]string, 0, len(m))
	for n := range m {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}
