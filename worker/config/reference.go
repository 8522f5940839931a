package config

import (
	"fmt"
	"io"
	"net/url"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

// WriteExample writes a configuration file with every setting, commented out, each with its meaning,
// its default and an example as its value.
func WriteExample(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# gpupool configuration. Every setting may be left out. Environment variables and --set override.\n")
	walk(reflect.ValueOf(&Config{}).Elem(), "", func(s Setting, leaf bool) {
		depth := strings.Count(s.Path, ".")
		indent := strings.Repeat("  ", depth)
		key := s.Path[strings.LastIndex(s.Path, ".")+1:]
		fmt.Fprintf(&b, "\n%s# %s\n", indent, s.Help)
		if !leaf {
			fmt.Fprintf(&b, "%s%s:\n", indent, key)
			return
		}
		fmt.Fprintf(&b, "%s# Left out: %s. Environment: %s.\n%s#%s: %s\n", indent, s.Zero, s.Env, indent, key, s.Example)
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteReference writes all settings as a Markdown table.
func WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| setting | environment | meaning | left out | example |\n|---|---|---|---|---|\n")
	cell := strings.NewReplacer("|", `\|`)
	for _, s := range Settings() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | `%s` |\n", s.Path, s.Env, cell.Replace(s.Help), cell.Replace(s.Zero), cell.Replace(s.Example))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var dsnPassword = regexp.MustCompile(`(?i)(password=)('[^']*'|\S+)`)

// String is the configuration as YAML, with passwords hidden.
func (c *Config) String() string {
	shown := *c
	for _, s := range settings(&shown) {
		if s.Secret && s.value.String() != "" {
			s.value.SetString(hide(s.value.String()))
		}
	}
	b, err := yaml.Marshal(shown)
	if err != nil {
		return fmt.Sprintf("configuration: %v", err)
	}
	return string(b)
}

// hide takes the password out of a connection string, as URL or as key=value.
func hide(dsn string) string {
	if u, err := url.Parse(dsn); err == nil && u.Scheme != "" {
		q := u.Query()
		if q.Has("password") {
			q.Set("password", "xxxxx")
			u.RawQuery = q.Encode()
		}
		return u.Redacted()
	}
	if strings.Contains(dsn, "://") { // a URL that doesn't parse: nothing of it is safe to show
		return "(hidden)"
	}
	return dsnPassword.ReplaceAllString(dsn, "${1}xxxxx")
}
