package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gin-gonic/gin"

	"gpupool/schema"
)

// operation is what the contract says of one operation's input.
type operation struct {
	query map[string]*openapi3.Schema
	body  *openapi3.Schema // of application/json; nil = it takes none
}

// operations are the contract's, by method and gin's path: "GET /v1/servers/:id". What a caller sends is checked
// against them, so that the document and the server can't differ.
var operations = sync.OnceValues(func() (map[string]operation, error) {
	doc, err := openapi3.NewLoader().LoadFromData(contractFile)
	if err != nil {
		return nil, fmt.Errorf("reading the contract: %w", err)
	}
	out := map[string]operation{}
	for path, item := range doc.Paths.Map() {
		route := strings.NewReplacer("{", ":", "}", "").Replace(path)
		for method, op := range item.Operations() {
			o := operation{query: map[string]*openapi3.Schema{}}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.In == openapi3.ParameterInQuery {
					o.query[p.Value.Name] = p.Value.Schema.Value
				}
			}
			if op.RequestBody != nil {
				if m := op.RequestBody.Value.Content.Get("application/json"); m != nil {
					o.body = m.Schema.Value
				}
			}
			out[method+" "+route] = o
		}
	}
	return out, nil
})

// theOperation is the one that is called; false for a route outside the contract.
func theOperation(c *gin.Context) (operation, bool) {
	all, err := operations()
	if err != nil {
		return operation{}, false // New has refused to start with it
	}
	method := c.Request.Method
	if method == "HEAD" {
		method = "GET"
	}
	o, ok := all[method+" "+c.FullPath()]
	return o, ok
}

// checkAddress refuses what an address can't carry to anything, and each query parameter that the contract does not
// name, that comes twice, or whose value it does not allow. An unknown one would be a filter that does not filter.
func checkAddress(c *gin.Context) error {
	o, ok := theOperation(c)
	if !ok {
		return nil
	}
	for _, p := range c.Params {
		if !plainText(p.Value) {
			return schema.Invalid(p.Key, p.Value, "text in UTF-8 without control characters")
		}
	}
	q, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return &schema.Error{Code: schema.CodeInvalid, Field: "query", Message: "the address can't be read behind the ?: " + err.Error(), Hint: "name=value&name=value, with %XX for what is not a letter or digit"}
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		s, known := o.query[name]
		if !known {
			hint := "this operation takes no parameters"
			if len(o.query) > 0 {
				hint = "one of " + strings.Join(slices.Sorted(maps.Keys(o.query)), ", ")
			}
			return &schema.Error{Code: schema.CodeInvalid, Field: cmpOr(printable(name), "query"), Message: fmt.Sprintf("there is no query parameter %q here", printable(name)), Hint: hint}
		}
		if len(q[name]) > 1 {
			return &schema.Error{Code: schema.CodeInvalid, Field: name, Message: "it is there twice", Hint: "each parameter once" + listHint(s)}
		}
		if err := checkParameter(name, q[name][0], s); err != nil {
			return err
		}
	}
	return nil
}

func listHint(s *openapi3.Schema) string {
	if s.Type.Is("array") {
		return "; several values with commas between"
	}
	return ""
}

// checkParameter holds one value against its schema. Empty is not given.
func checkParameter(name, value string, s *openapi3.Schema) error {
	if !plainText(value) {
		return schema.Invalid(name, printable(value), "text in UTF-8 without control characters")
	}
	if value == "" {
		return nil
	}
	var v any = value
	switch {
	case s.Type.Is("integer"):
		if !whole(value) {
			return schema.Invalid(name, value, right(s))
		}
		v = json.Number(value)
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return schema.Invalid(name, v, right(s))
		}
	case s.Type.Is("boolean"):
		b, err := strconv.ParseBool(value)
		if err != nil {
			return schema.Invalid(name, value, right(s))
		}
		v = b
	case s.Type.Is("array"):
		parts := strings.Split(value, ",")
		for _, one := range parts {
			if err := checkParameter(name, one, s.Items.Value); err != nil {
				return err
			}
		}
		if s.MaxItems != nil && uint64(len(parts)) > *s.MaxItems {
			return schema.Invalid(name, len(parts), fmt.Sprintf("at most %d values", *s.MaxItems))
		}
		return nil
	}
	return fits(v, s, name)
}

// checkBody holds a JSON body, which strict has read already, against the contract.
func checkBody(c *gin.Context, b []byte) error {
	o, ok := theOperation(c)
	if !ok || o.body == nil {
		return nil
	}
	return fitsJSON(b, o.body, "")
}

// sendersName is a field of an operation's body as its sender wrote it: below it a time is time_limit, in the body it is
// time_limit_ms, and the job that an array is made of is under job.
func sendersName(c *gin.Context, field string) string {
	o, ok := theOperation(c)
	if !ok || o.body == nil || o.query[field] != nil {
		return field
	}
	name, rest := field, ""
	if i := strings.IndexAny(field, ".["); i >= 0 {
		name, rest = field[:i], field[i:]
	}
	in := []struct {
		at string
		s  *openapi3.Schema
	}{{"", o.body}}
	if job := o.body.Properties["job"]; job != nil {
		in = append(in, struct {
			at string
			s  *openapi3.Schema
		}{"job.", job.Value})
	}
	for _, x := range in {
		for _, n := range []string{name, name + "_ms"} {
			if x.s.Properties[n] != nil {
				return x.at + n + rest
			}
		}
	}
	return field
}

// newServerSchema is what the contract says of one server of a bulk enrolment.
func newServerSchema() *openapi3.Schema {
	all, err := operations()
	if err != nil {
		return nil
	}
	return all["POST /v1/servers"].body
}

func fitsJSON(b []byte, s *openapi3.Schema, at string) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("a body that was read before can't be read: %w", err)
	}
	return fits(v, s, at)
}

// fits holds a value against a schema. at is the value's own name, or what comes before its fields' names.
func fits(v any, s *openapi3.Schema, at string) error {
	err := s.VisitJSON(v)
	var bad *openapi3.SchemaError
	if err == nil || s == nil {
		return nil
	}
	if !errors.As(err, &bad) {
		return &schema.Error{Code: schema.CodeInvalid, Field: cmpOr(strings.TrimSuffix(at, "."), "body"), Message: "it is not what the contract says", Hint: "see /openapi.yaml"}
	}
	path := bad.JSONPointer()
	field, value, there := at, v, true
	for _, p := range path {
		switch in := value.(type) {
		case map[string]any:
			value, there = in[p]
			field = strings.TrimPrefix(strings.TrimSuffix(field, ".")+"."+p, ".")
		case []any:
			i, err := strconv.Atoi(p)
			if err != nil || i >= len(in) {
				value, there = nil, false
				break
			}
			value = in[i]
			field += "[" + p + "]"
		}
	}
	field = cmpOr(strings.TrimSuffix(field, "."), "body")
	if !there {
		return &schema.Error{Code: schema.CodeInvalid, Field: field, Message: "it is missing", Hint: cmpOr(right(property(s, path)), "see /openapi.yaml")}
	}
	shown := value
	switch in := value.(type) {
	case []any:
		shown = fmt.Sprintf("a list of %d", len(in))
	case map[string]any:
		shown = fmt.Sprintf("an object of %d", len(in))
	case nil:
		shown = "null"
	case string:
		shown = printable(in)
		if strings.Contains(field, "password") {
			return &schema.Error{Code: schema.CodeInvalid, Field: field, Message: "its value is not valid", Hint: right(bad.Schema)}
		}
	}
	return schema.Invalid(field, shown, right(bad.Schema))
}

// property is the schema of what a path leads to; nil where the contract has none.
func property(s *openapi3.Schema, path []string) *openapi3.Schema {
	for _, p := range path {
		switch {
		case s == nil:
			return nil
		case s.Properties[p] != nil:
			s = s.Properties[p].Value
		case s.Items != nil:
			s = s.Items.Value
		default:
			return nil
		}
	}
	return s
}

// right says in words what a schema allows.
func right(s *openapi3.Schema) string {
	switch {
	case s == nil:
		return ""
	case len(s.Enum) > 0:
		words := make([]string, 0, len(s.Enum))
		for _, e := range s.Enum {
			words = append(words, fmt.Sprint(e))
		}
		return "one of " + strings.Join(words, ", ")
	case s.Type.Includes("integer"):
		return "a whole number" + between(s.Min, s.Max)
	case s.Type.Includes("boolean"):
		return "true or false"
	case s.Type.Includes("array"):
		if s.MaxItems != nil {
			return fmt.Sprintf("a list of %d to %d", s.MinItems, *s.MaxItems)
		}
		return "a list"
	case s.Type.Includes("object"):
		return "an object"
	case s.Format == "date-time":
		return "RFC 3339, like 2026-11-30T08:00:00Z"
	case s.Type.Includes("string"):
		w := "text"
		if s.MaxLength != nil {
			w += fmt.Sprintf(" of %d to %d characters", s.MinLength, *s.MaxLength)
		}
		if words, ok := s.Extensions["x-pattern-words"].(string); ok {
			w += ", " + words
		}
		return w
	}
	return ""
}

func between(low, high *float64) string {
	f := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	switch {
	case low != nil && high != nil:
		return " from " + f(*low) + " to " + f(*high)
	case low != nil:
		return " of at least " + f(*low)
	case high != nil:
		return " of at most " + f(*high)
	}
	return ""
}

// plainText is UTF-8 without control characters: no name, number or filter holds one, and PostgreSQL keeps no NUL.
func plainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// printable is s as a message may show it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}
