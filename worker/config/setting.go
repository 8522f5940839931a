package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
)

// Setting is one setting of a Config, by its path in the file: "api.listen".
type Setting struct {
	Path    string // api.listen
	Env     string // GPUPOOL_API_LISTEN
	Help    string // what it is, with its unit and range
	Zero    string // what leaving it out means
	Example string // as YAML
	Secret  bool   // not for logs or screens

	value reflect.Value
}

// Settings are all settings, in the order of the file.
func Settings() []Setting { return settings(&Config{}) }

// settings are the settings of c, each tied to its field.
func settings(c *Config) []Setting {
	var all []Setting
	walk(reflect.ValueOf(c).Elem(), "", func(s Setting, leaf bool) {
		if leaf {
			all = append(all, s)
		}
	})
	return all
}

// walk visits the fields of a struct in order, sections before what is in them.
func walk(v reflect.Value, prefix string, visit func(s Setting, leaf bool)) {
	for i := range v.NumField() {
		f, tag := v.Field(i), v.Type().Field(i).Tag
		s := Setting{
			Path:    prefix + tag.Get("yaml"),
			Help:    tag.Get("help"),
			Zero:    tag.Get("zero"),
			Example: tag.Get("example"),
			Secret:  tag.Get("secret") == "true",
			value:   f,
		}
		s.Env = envPrefix + strings.ToUpper(strings.ReplaceAll(s.Path, ".", "_"))
		leaf := f.Kind() != reflect.Struct
		visit(s, leaf)
		if !leaf {
			walk(f, s.Path+".", visit)
		}
	}
}

// set gives the setting a value written as text: a scalar as it is, a list as YAML or with commas.
func (s Setting) set(text string) error {
	if s.value.Kind() == reflect.String {
		s.value.SetString(text)
		return nil
	}
	source := text
	if s.value.Kind() == reflect.Slice && !strings.HasPrefix(strings.TrimSpace(text), "[") {
		source = "[" + text + "]"
	}
	next := reflect.New(s.value.Type())
	if err := yaml.UnmarshalWithOptions([]byte(source), next.Interface(), yaml.Strict()); err != nil || strings.TrimSpace(text) == "" && s.value.Kind() != reflect.Slice {
		return &FieldError{Field: s.Path, Value: text, Want: "as in " + s.Example, err: err}
	}
	s.value.Set(next.Elem())
	return nil
}

// FieldError says which setting is wrong, what it is, and what would be right.
type FieldError struct {
	Field string // the setting's path
	Value any
	Want  string

	err error
}

func (e *FieldError) Error() string {
	value := fmt.Sprint(e.Value)
	if value == "" {
		value = "empty"
	} else {
		value = fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%s is %s; must be %s", e.Field, value, e.Want)
}

func (e *FieldError) Unwrap() error { return e.err }

// nearest is the known name most like name, for a misspelling; empty if none is close.
func nearest(name string, known []string) string {
	best, bestCost := "", max(3, len(name)/3+1)
	for _, k := range known {
		if cost := distance(name, k); cost < bestCost {
			best, bestCost = k, cost
		}
	}
	return best
}

// distance is Levenshtein's: insertions, deletions and replacements of one byte.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
