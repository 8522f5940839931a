package profiles

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpupool/schema"
)

// ValueType says what a value may look like. None of them lets a space, a quote or a line break through but keys, which
// are checked word by word: a value is written into command lines, shell scripts and installers' answers.
type ValueType string

const (
	TypeDisk    ValueType = "disk"    // auto, or a device file: /dev/nvme0n1, /dev/disk/by-id/...
	TypeURL     ValueType = "url"     // http:// or https://
	TypeFile    ValueType = "file"    // beneath the boot files' folder
	TypeWord    ValueType = "word"    // letters, digits and . _ + : / @ = , -
	TypeWords   ValueType = "words"   // a list of them
	TypeInteger ValueType = "integer" // 0 to 2^31-1
	TypeBoolean ValueType = "boolean"
	TypeChoice  ValueType = "choice" // one of Options
	TypeKeys    ValueType = "keys"   // a list of SSH public keys
)

// Value is one thing that may be set of a profile.
type Value struct {
	Type    ValueType `yaml:"type" json:"type"`
	Help    string    `yaml:"help" json:"help"`
	Default any       `yaml:"default" json:"default"` // nil = the type's zero: "", 0, false, an empty list
	Options []string  `yaml:"options" json:"options,omitempty"`
}

var (
	diskForm = regexp.MustCompile(`^(auto|/dev/[A-Za-z0-9][A-Za-z0-9/_.:+-]*)$`)
	urlForm  = regexp.MustCompile(`^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/%+@:=-]*)?$`)
	fileForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*$`)
	wordForm = regexp.MustCompile(`^[A-Za-z0-9._+:/@=,-]*$`)
	keyForm  = regexp.MustCompile(`^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com) [A-Za-z0-9+/]{32,}={0,2}( [A-Za-z0-9._@+-]{1,128})?$`)
)

// resolve fills in the default, and refuses a schema that makes no sense.
func (v Value) resolve() (Value, error) {
	if v.Type == TypeChoice && len(v.Options) == 0 {
		return v, fmt.Errorf("options: a choice needs some")
	}
	if v.Default == nil {
		switch v.Type {
		case TypeDisk:
			v.Default = "auto"
		case TypeInteger:
			v.Default = 0
		case TypeBoolean:
			v.Default = false
		case TypeWords, TypeKeys:
			v.Default = []any{}
		case TypeChoice:
			v.Default = v.Options[0]
		case TypeURL, TypeFile:
			return v, fmt.Errorf("default: a %s needs one", v.Type)
		case TypeWord:
			v.Default = ""
		default:
			return v, fmt.Errorf("type: %q: want disk, url, file, word, words, integer, boolean, choice or keys", v.Type)
		}
	}
	checked, err := v.check("default", v.Default)
	v.Default = checked
	return v, err
}

// check returns what a template is given: string, int, bool or []string.
func (v Value) check(field string, given any) (any, error) {
	wrong := func(right string) (any, error) { return nil, schema.Invalid(field, shown(given), right) }
	text, isText := given.(string)
	if isText {
		given = v.read(text)
	}
	switch v.Type {
	case TypeDisk:
		if !isText || !diskForm.MatchString(text) || strings.Contains(text, "..") {
			return wrong("auto, or a device file such as /dev/nvme0n1")
		}
		return text, nil
	case TypeURL:
		if _, ok := schema.ParseURL(text); !isText || !ok || !urlForm.MatchString(text) {
			return wrong("a URL such as http://deb.debian.org/debian, without ?, # or spaces")
		}
		return text, nil
	case TypeFile:
		if !isText || !fileForm.MatchString(text) || strings.Contains(text, "..") {
			return wrong("a file beneath the boot files' folder, such as debian/linux")
		}
		return text, nil
	case TypeWord:
		if !isText || !wordForm.MatchString(text) || len(text) > 300 {
			return wrong("letters, digits and . _ + : / @ = , - without spaces, at most 300")
		}
		return text, nil
	case TypeChoice:
		if !isText || !slices.Contains(v.Options, text) {
			return wrong("one of " + strings.Join(v.Options, ", "))
		}
		return text, nil
	case TypeBoolean:
		b, ok := given.(bool)
		if !ok {
			return wrong("true or false")
		}
		return b, nil
	case TypeInteger:
		n, ok := whole(given)
		if !ok {
			return wrong("a whole number from 0 to 2147483647")
		}
		return n, nil
	case TypeWords:
		return list(given, wordForm, func() (any, error) { return wrong("a list of words of letters, digits and . _ + : / @ = , -") })
	case TypeKeys:
		return list(given, keyForm, func() (any, error) {
			return wrong("a list of SSH public keys: type, base64 and at most one word of comment")
		})
	}
	return nil, fmt.Errorf("type %q", v.Type) // resolve let none through
}

// read turns text, as people and the API write values, into what the type has.
func (v Value) read(text string) any {
	switch v.Type {
	case TypeInteger:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	case TypeBoolean:
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case TypeWords:
		return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
	case TypeKeys:
		var keys []string
		for _, k := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' }) {
			if k = strings.TrimSpace(k); k != "" {
				keys = append(keys, k)
			}
		}
		return keys
	case TypeDisk, TypeURL, TypeFile, TypeWord, TypeChoice: // are text
	}
	return text
}

// Text is a value as people write it.
func Text(value any) string {
	switch x := value.(type) {
	case string:
		return x
	case []string:
		return strings.Join(x, ",")
	default:
		return fmt.Sprint(x)
	}
}

// FromText takes values as text.
func FromText(values map[string]string) map[string]any {
	out := make(map[string]any, len(values))
	for k, v := range values {
		out[k] = v
	}
	return out
}

func whole(given any) (int, bool) {
	var f float64
	switch n := given.(type) {
	case int:
		f = float64(n)
	case int64:
		f = float64(n)
	case uint64:
		f = float64(n)
	case float64:
		f = n
	case json.Number:
		var err error
		if f, err = n.Float64(); err != nil {
			return 0, false
		}
	default:
		return 0, false
	}
	return int(f), f == math.Trunc(f) && f >= 0 && f <= math.MaxInt32
}

func list(given any, form *regexp.Regexp, wrong func() (any, error)) (any, error) {
	out := []string{}
	switch l := given.(type) {
	case []string:
		out = append(out, l...)
	case []any:
		for _, x := range l {
			s, ok := x.(string)
			if !ok {
				return wrong()
			}
			out = append(out, s)
		}
	default:
		return wrong()
	}
	for _, s := range out {
		if s == "" || !form.MatchString(s) {
			return wrong()
		}
	}
	return out, nil
}

func shown(given any) string {
	if s, ok := given.(string); ok {
		return s
	}
	b, err := json.Marshal(given)
	if err != nil {
		return fmt.Sprint(given)
	}
	return string(b)
}

// shellQuote makes one word for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// yamlQuote makes a double-quoted YAML scalar; JSON's strings are some.
func yamlQuote(s string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(s)
	return strings.TrimSpace(b.String()), err
}
