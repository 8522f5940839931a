package bmc

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
)

// resource is one Redfish resource, read leniently: a property that is absent, null or of another type is simply not
// there. A typed decode of the whole would lose a resource for one odd field, and firmware has many.
type resource struct {
	uri  string
	etag string
	body map[string]any
}

// decode makes a resource of an answer; a body that isn't a JSON object is an error that names its URI.
func (c *conn) decode(uri string, a *answer) (*resource, error) {
	r, err := decodeBody(uri, a.body)
	if err != nil {
		return nil, &Error{Kind: ErrBody, Address: c.address, URI: uri, Status: a.status, Err: err}
	}
	if r.etag = a.header.Get("ETag"); r.etag == "" {
		r.etag = r.str("@odata.etag")
	}
	return r, nil
}

// maxValues bounds how many values a body holds. A hundred bytes of memory a value make gigabytes of 16 MiB of "{},{},"; the largest
// captured resource has 24,000.
const maxValues = 1 << 20

func decodeBody(uri string, body []byte) (*resource, error) {
	r := &resource{uri: uri}
	n := 0
	for _, b := range body {
		if b == ',' || b == '{' || b == '[' {
			n++
		}
	}
	if n > maxValues {
		return nil, fmt.Errorf("a body of more than %d values", maxValues)
	}
	if err := json.Unmarshal(body, &r.body); err != nil {
		return nil, err
	}
	if r.body == nil {
		r.body = map[string]any{} // the body was "null"
	}
	return r, nil
}

// at walks objects by key; nil when the way ends.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func (r *resource) at(keys ...string) any {
	if r == nil {
		return nil
	}
	return at(r.body, keys...)
}

// object is v as an object; nil when it is none, and a nil map reads as empty.
func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// str is a string property, trimmed; "" when absent, null or not a string.
func (r *resource) str(keys ...string) string { return text(r.at(keys...)) }

// text is v as a trimmed string.
func text(v any) string {
	s, _ := v.(string)
	return strings.TrimSpace(s)
}

// word is a string property that names something: the placeholders that firmware writes for "no value" count as none.
func (r *resource) word(keys ...string) string {
	s := r.str(keys...)
	switch s {
	case "N/A", "NA", "Not Available", "Unknown", "None", "NULL", "Default string", "To be filled by O.E.M.", "$PRODUCT_MANUFACTURER":
		return ""
	}
	return s
}

// num is a number property; ok is false when the BMC doesn't say.
func (r *resource) num(keys ...string) (float64, bool) {
	f, ok := r.at(keys...).(float64)
	return f, ok
}

// link is the @odata.id of a reference property, "" when absent.
func (r *resource) link(keys ...string) string { return linkOf(r.at(keys...)) }

func linkOf(v any) string {
	id, _ := at(v, "@odata.id").(string)
	return id
}

// links are the @odata.ids of a list of references.
func (r *resource) links(keys ...string) []string {
	list, _ := r.at(keys...).([]any)
	var out []string
	for _, v := range list {
		if id := linkOf(v); id != "" {
			out = append(out, id)
		}
	}
	return out
}

// list is a list property of strings.
func stringsOf(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// id is the last segment of a resource's path.
func lastSegment(uri string) string {
	uri = strings.TrimRight(uri, "/")
	return uri[strings.LastIndexByte(uri, '/')+1:]
}

// sameURI compares two links as Redfish means them: without trailing slash, without case in the scheme part.
func sameURI(a, b string) bool { return normalURI(a) == normalURI(b) }

func normalURI(s string) string {
	if u, err := url.Parse(s); err == nil {
		s = u.EscapedPath()
		if u.RawQuery != "" {
			s += "?" + u.RawQuery
		}
	}
	return strings.TrimRight(s, "/")
}
